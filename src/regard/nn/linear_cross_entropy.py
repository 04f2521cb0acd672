"""The loss of predicting words, without ever holding the logits of all words for all tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.nn.linear import check_input
from regard.ops.autograd import first_order_only

# Logits that one block may hold: on a CPU few enough to stay in cache between the product that makes them, the softmax
# and the products that use it; on a GPU enough to fill it.
CPU_BLOCK = 2**21
GPU_BLOCK = 2**26


class TokenLoss(NamedTuple):
    """What :func:`linear_cross_entropy` gives: all scalars, of which only ``loss`` has a gradient."""

    loss: Float[Tensor, ""]
    """The mean label-smoothed cross-entropy."""
    nll: Float[Tensor, ""]
    """The sum of the negative log-likelihoods, without smoothing: exp(nll / num_tokens) is the perplexity."""
    num_tokens: Int[Tensor, ""]
    """The number of targets that counted."""


def linear_cross_entropy(
    hidden: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    target: Int64[Tensor, " tokens"],
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    bias: Float[Tensor, " vocab"] | None = None,
) -> TokenLoss:
    """Cross-entropy of softmax(hidden · weightᵀ + bias) against target, block of tokens by block of tokens.

    loss = mean over tokens of −(1 − ε) log p[target] − ε / vocab · Σ log p

    It equals ``F.cross_entropy(F.linear(hidden, weight, bias), target, label_smoothing=ε, ignore_index=...)``. The
    gradient of a block is made at once, while its softmax is in cache, so that nothing of the size tokens × vocab is
    kept. Tokens to be ignored are left out before the product. Under autocast the products are in its dtype.

    Args:
        hidden: (tokens, d_model).
        weight: (vocab, d_model).
        target: (tokens,), integers below vocab.
        label_smoothing: ε, the share of probability that is spread over all words alike, from 0 to 1.
        ignore_index: A target that does not count.
        bias: (vocab,). Default: none.

    Returns:
        TokenLoss: Scalars; as in torch, the loss is NaN if no token counts, and its gradients are 0.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If shapes, dtypes or values do not fit.

    Memory:
        O(block × vocab + vocab × d_model); the gradients of hidden, weight and bias are kept until the backward pass.
        It can be differentiated once; a second derivative raises InvalidArgument.

    Reference:
        Szegedy et al. 2016, "Rethinking the Inception architecture", section 7 (label smoothing); Wijmans et al. 2024,
        "Cut your losses in large-vocabulary language models" (the loss without its logits).

    Example:
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
        dtype = torch.get_autocast_dtype(device)
        hidden = hidden.to(dtype)
    with_gradient = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    )
    with torch.autocast(device, enabled=False):  # which would make softmax copy each block to float32 and back
        loss, nll = _LinearCrossEntropy.apply(hidden, weight, bias, target, label_smoothing, with_gradient)
    return TokenLoss(loss, nll, counted.sum())


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum over blocks of the loss; its gradients, for a mean loss, are made on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        with_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        tokens, vocab = target.shape[0], weight.shape[0]
        product_weight = weight.to(hidden.dtype)
        exact = torch.promote_types(weight.dtype, torch.float32)  # sums are at least float32
        weight_sum = product_weight.sum(0, dtype=exact)  # (d_model,)
        bias_sum = 0.0 if bias is None else bias.sum(dtype=exact)
        nll = torch.zeros((), dtype=exact, device=hidden.device)
        spread = torch.zeros((), dtype=exact, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if with_gradient else None
        weight_gradient = torch.zeros_like(weight, dtype=exact) if with_gradient else None
        bias_gradient = None if bias is None or not with_gradient else torch.zeros_like(bias, dtype=exact)
        size = max(1, (CPU_BLOCK if hidden.device.type == "cpu" else GPU_BLOCK) // vocab)
        rows = torch.arange(size, device=hidden.device)[:, None]
        for start in range(0, tokens, size):
            block = hidden[start : start + size]  # (block, d_model)
            words = target[start : start + size, None]  # (block, 1)
            logits = block @ product_weight.mT  # (block, vocab)
            if bias is not None:
                logits += bias
            chosen = logits.gather(1, words).to(exact)
            probability, lse = _softmax(logits, words, chosen)
            nll += (lse - chosen).sum()
            if smoothing:  # Σ over words of lse − logits, without a pass over the logits
                spread += (vocab * lse - bias_sum).sum() - block.to(exact).sum(0) @ weight_sum
            if hidden_gradient is not None and weight_gradient is not None:
                # What is left out here, −ε / vocab for every word and token, is added to the sums at the end.
                delta = ((chosen - lse).exp() - (1 - smoothing)).to(probability.dtype)
                probability[rows[: len(words)], words] = delta  # scatter_ would copy the block twice in 16 bits
                torch.mm(probability, product_weight, out=hidden_gradient[start : start + size])
                weight_gradient += probability.mT @ block
                if bias_gradient is not None:
                    bias_gradient += probability.sum(0, dtype=exact)
        loss = ((1 - smoothing) * nll + smoothing / vocab * spread) / tokens
        if hidden_gradient is not None and weight_gradient is not None:
            constant = smoothing / vocab
            if constant:
                hidden_gradient -= constant * weight_sum
                weight_gradient -= constant * hidden.sum(0, dtype=exact)
                if bias_gradient is not None:
                    bias_gradient -= constant * tokens
            ctx.save_for_backward(hidden, weight, bias)  # what the gradients follow from, so that they require one too
            ctx.gradients = (hidden_gradient, weight_gradient, bias_gradient)
            ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
            ctx.tokens = tokens
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor, nll_gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            factor = loss_gradient / max(ctx.tokens, 1)  # without tokens the loss is NaN, but no weight moves it
            gradients = [
                (gradient * factor).to(dtype) if gradient is not None and needed else None
                for gradient, dtype, needed in zip(ctx.gradients, ctx.dtypes, ctx.needs_input_grad[:3], strict=True)
            ]
        return (*first_order_only(gradients, loss_gradient, *ctx.saved_tensors), None, None, None)


def _softmax(logits: Tensor, words: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of a block of logits in their dtype, and its log-sum-exp (block, 1) in chosen's.

    The log-sum-exp follows from one entry, log p = logit − lse, at no further pass over the logits. Where that entry is
    too small for all its digits (zero, or subnormal as below 6e-5 in float16), the largest one serves.
    """
    probability = torch.softmax(logits, dim=-1)
    picked = probability.gather(1, words)
    lse = chosen - picked.to(chosen.dtype).log()
    lost = picked < torch.finfo(picked.dtype).tiny
    if bool(lost.any()):
        largest, index = logits.max(dim=-1, keepdim=True)
        exact = largest.to(chosen.dtype) - probability.gather(1, index).to(chosen.dtype).log()
        lse = torch.where(lost, exact, lse)
    return probability, lse


def _check(hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, bias: Tensor | None) -> None:
    with Checks() as checks:
        if checks.number("label_smoothing", label_smoothing, low=0) and label_smoothing > 1:
            checks.fail(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing}")
        if not all([checks.tensor("hidden", hidden), checks.tensor("weight", weight), checks.tensor("target", target)]):
            return
        if check_input(checks, "hidden", hidden, {"tokens": None, "d_model": None}):
            check_input(checks, "weight", weight, {"vocab": None, "d_model": hidden.shape[1]})
            check_input(checks, "target", target, {"tokens": hidden.shape[0]})
        checks.that(target.dtype == torch.int64, f"target: expected the dtype torch.int64, got {target.dtype}")
        if bias is not None:
            checks.tensor("bias", bias, shapes={"(vocab,)": weight.shape[:1]})


def _check_target(target: Tensor, vocab: int) -> None:
    """Check that targets are words; only on a CPU, where looking does not make a device wait."""
    if target.device.type == "cpu" and target.numel():
        smallest, largest = (int(end) for end in target.aminmax())
        if smallest < 0 or largest >= vocab:
            wrong = smallest if smallest < 0 else largest
            raise InvalidArgument(f"target: expected integers from 0 to {vocab - 1}, or ignore_index, got {wrong}")
