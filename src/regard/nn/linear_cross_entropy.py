"""Cross-entropy of a linear layer, fused so that the (tokens, vocab) logits are never stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.autograd import AutogradFunction, first_order_only

IGNORE_INDEX = -100
"""Label of tokens that do not count."""
# Number of logits in a block. Each block adds to the gradient of the whole weight, which takes as long for few tokens
# as for many: a block has enough of them for the products to take most of the time.
CPU_BLOCK = 2**23
GPU_BLOCK = 2**26
# Number of elements of the weight's gradient that are computed at a time on a CPU: few enough that memory for the
# product, and for its copy in the gradient's dtype, is used again instead of returned to the system.
CPU_PIECE = 2**21


class TokenLoss(NamedTuple):
    """Scalars returned by `linear_cross_entropy`; only ``loss`` has a gradient."""

    loss: Float[Tensor, ""]
    """Mean cross-entropy with label smoothing."""
    nll: Float[Tensor, ""]
    """Sum of negative log-likelihoods without label smoothing; exp(nll / num_tokens) is the perplexity."""
    num_tokens: Int[Tensor, ""]
    """Number of targets that are not ignored."""


def linear_cross_entropy(
    hidden: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    target: Int64[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE_INDEX,
    bias: Float[Tensor, " vocab"] | None = None,
) -> TokenLoss:
    """Cross-entropy of softmax(hidden · weightᵀ + bias) against target, computed in blocks of tokens.

    loss = mean over tokens of −(1 − ε) log p[target] − ε / vocab · Σ log p

    It equals ``F.cross_entropy(F.linear(hidden, weight, bias), target, label_smoothing=ε, ignore_index=...)``, but
    stores no (tokens, vocab) tensor: each block's gradient is computed in the forward pass, while its softmax is still
    in cache. Under autocast, matrix multiplications use its dtype.

    Args:
        hidden: (tokens, d_model).
        weight: (vocab, d_model).
        target: (tokens,), token ids below vocab, or ignore_index.
        label_smoothing: ε, the probability that is spread evenly over the vocabulary, from 0 to 1. Default: 0.
        ignore_index: Target of tokens that do not count. Default: −100.
        bias: (vocab,). Default: none.

    Returns:
        TokenLoss: Scalars. As in torch, the loss is NaN if all tokens are ignored; its gradients are then 0.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If a shape, dtype or value is wrong, or a second derivative is computed.

    Memory: O(block × vocab + vocab × d_model); all gradients are stored until the backward pass.

    Reference: Szegedy et al. 2016, "Rethinking the Inception architecture", section 7 (label smoothing); Wijmans et al.
    2024, "Cut your losses in large-vocabulary language models" (cross-entropy without stored logits).

    Examples:
        >>> import torch
        >>> hidden, weight = torch.zeros(3, 8), torch.zeros(4, 8)
        >>> loss, nll, num_tokens = linear_cross_entropy(hidden, weight, torch.tensor([1, 3, 0]), ignore_index=0)
        >>> loss, num_tokens
        (tensor(1.3863), tensor(2))
    """
    _check(hidden, weight, target, label_smoothing, bias)
    counted = target != ignore_index
    if not bool(counted.all()):
        hidden, target = hidden[counted], target[counted]
    _check_target(target, weight.shape[0])
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    grad_enabled = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):  # autocast would copy each block to float32 and back for the softmax
        loss, nll = _LinearCrossEntropy.apply(hidden, weight, bias, target, label_smoothing, grad_enabled)
    return TokenLoss(loss, nll, counted.sum())


class _LinearCrossEntropy(AutogradFunction):
    """The mean loss and its gradients, which the forward pass computes block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor]:
        tokens, vocab = target.shape[0], weight.shape[0]
        product_weight = weight.to(hidden.dtype)
        exact = torch.promote_types(weight.dtype, torch.float32)  # sums are at least float32
        weight_sum = product_weight.sum(0, dtype=exact)  # (d_model,)
        bias_sum = 0.0 if bias is None else bias.sum(dtype=exact)
        nll = torch.zeros((), dtype=exact, device=hidden.device)
        smooth = torch.zeros((), dtype=exact, device=hidden.device)
        gradients: tuple[Tensor, Tensor, Tensor | None] | None = None
        if grad_enabled and any(ctx.needs_input_grad):
            bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=exact)
            gradients = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact), bias_gradient
        is_cpu = hidden.device.type == "cpu"
        size = max(1, (CPU_BLOCK if is_cpu else GPU_BLOCK) // vocab)
        piece = max(1, CPU_PIECE // hidden.shape[1]) if is_cpu else vocab
        rows = torch.arange(size, device=hidden.device)[:, None]
        for start in range(0, tokens, size):
            block = hidden[start : start + size]  # (block, d_model)
            ids = target[start : start + size, None]  # (block, 1)
            logits = block @ product_weight.mT  # (block, vocab)
            if bias is not None:
                logits += bias
            target_logits = logits.gather(1, ids).to(exact)
            probability, lse = _softmax(logits, ids, target_logits)
            nll += (lse - target_logits).sum()
            if smoothing:  # Σ over the vocabulary of lse − logits, without reading the logits again
                smooth += (vocab * lse - bias_sum).sum() - block.to(exact).sum(0) @ weight_sum
            if gradients is not None:
                hidden_gradient, weight_gradient, bias_gradient = gradients
                # The constant −ε / vocab is added once, after the loop.
                delta = ((target_logits - lse).exp() - (1 - smoothing)).to(probability.dtype)
                probability[rows[: len(ids)], ids] = delta  # scatter_ would copy the block twice in 16 bits
                torch.mm(probability, product_weight, out=hidden_gradient[start : start + size])
                for total, columns in zip(weight_gradient.split(piece), probability.split(piece, dim=1), strict=True):
                    total += columns.mT @ block
                if bias_gradient is not None:
                    bias_gradient += probability.sum(0, dtype=exact)
        loss = ((1 - smoothing) * nll + smoothing / vocab * smooth) / tokens
        if gradients is not None:
            hidden_gradient, weight_gradient, bias_gradient = gradients
            if smoothing:
                hidden_gradient -= smoothing / vocab * weight_sum
                weight_gradient -= smoothing / vocab * hidden.sum(0, dtype=exact)
                if bias_gradient is not None:
                    bias_gradient -= smoothing / vocab * tokens
            ctx.save_for_backward(hidden, weight, bias)
            ctx.gradients = gradients
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, nll_gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        with torch.no_grad():
            factor = loss_gradient / max(len(inputs[0]), 1)  # without tokens, the loss is NaN and the gradients are 0
            gradients = [
                (gradient * factor).to(tensor.dtype) if gradient is not None and needed else None
                for gradient, tensor, needed in zip(ctx.gradients, inputs, ctx.needs_input_grad[:3], strict=True)
            ]
        return (*first_order_only(gradients, loss_gradient, *inputs), None, None, None)


def _softmax(logits: Tensor, ids: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of a block of logits in their dtype, and its log-sum-exp (block, 1) in that of target_logits.

    The log-sum-exp follows from the target's probability, log p = logit − lse, without reading the logits again. If p
    is zero or subnormal (below 6e-5 in float16), it has lost digits; then the largest probability is used instead.
    """
    probability = torch.softmax(logits, dim=-1)
    target_probability = probability.gather(1, ids)
    lse = target_logits - target_probability.to(target_logits.dtype).log()
    subnormal = target_probability < torch.finfo(probability.dtype).tiny
    if bool(subnormal.any()):
        largest, index = logits.max(dim=-1, keepdim=True)
        exact = largest.to(lse.dtype) - probability.gather(1, index).to(lse.dtype).log()
        lse = torch.where(subnormal, exact, lse)
    return probability, lse


def _check(hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, bias: Tensor | None) -> None:
    with Checks() as checks:
        if checks.number("label_smoothing", label_smoothing, low=0) and label_smoothing > 1:
            checks.fail(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing}")
        if not all([checks.tensor("hidden", hidden), checks.tensor("weight", weight), checks.tensor("target", target)]):
            return
        if checks.input("hidden", hidden, {"tokens": None, "d_model": None}):
            checks.input("weight", weight, {"vocab": None, "d_model": hidden.shape[1]})
            checks.input("target", target, {"tokens": hidden.shape[0]})
        checks.that(target.dtype == torch.int64, f"target: expected the dtype torch.int64, got {target.dtype}")
        if bias is not None:
            checks.tensor("bias", bias, shapes={"(vocab,)": weight.shape[:1]})


def _check_target(target: Tensor, vocab: int) -> None:
    """Check that targets are token ids; only on a CPU, because reading them would synchronize a GPU."""
    if target.device.type == "cpu" and target.numel():
        smallest, largest = (int(end) for end in target.aminmax())
        if smallest < 0 or largest >= vocab:
            wrong = smallest if smallest < 0 else largest
            raise InvalidArgument(f"target: expected integers from 0 to {vocab - 1}, or ignore_index, got {wrong}")
