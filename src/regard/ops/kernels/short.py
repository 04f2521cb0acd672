"""Short sequences on a CPU: many small matrices at once, with a gradient written out.

For training on sentences. SDPA's CPU kernel is made for long sequences, and its backward pass spends most of its time
on blocks that are almost empty: for 222 sentences of 18 tokens in bfloat16 it takes six times as long as the plain
products here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.ops.autograd import Function, first_order_only, vmap_by_loop
from regard.ops.dropout import draw_seed, keep_mask
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.measures.base import lowest
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDotProduct

MAX_LENGTH = 128
"""Up to this many keys, the weights of a query are few enough to be stored, as its key and value are."""


class Short(Kernel):
    """Up to 128 keys and queries: the weights are stored from the forward to the backward pass."""

    name = "short"
    description = "short sequences on a CPU, in training: small dense products, gradient written out"
    devices = ("cpu",)
    scores = frozenset({ScaledDotProduct})
    measures = frozenset()

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: too many queries or keys, no value, or a value whose dtype or heads differ from the key's."""
        request, value = inputs.request, inputs.value
        if torch.compiler.is_compiling():  # first: else the program would be one for short sequences only
            yield "it cannot be compiled"
        longest = max(request.shape[2:])
        if longest > MAX_LENGTH:
            yield f"it supports up to {MAX_LENGTH} queries and keys, not {longest}"
        yield from super().unsupported_reasons(inputs)
        if value is None:
            yield "it returns the output only, and there is no value"
        elif value.shape[1] != request.key.shape[1] or value.dtype != request.query.dtype:
            yield "heads and dtype of value differ from those of key"

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Nothing is trained."""
        if not _is_training(inputs):
            yield "it is made for training, and nothing here requires grad or is dropped"

    def suits(self, inputs: KernelInputs) -> bool:
        return _is_training(inputs) and not any(self.unsupported_reasons(inputs))  # the quick question first

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        request, value = inputs.request, inputs.value
        assert value is not None
        masked = None
        if request.mask is not None:
            batch, heads, queries, _ = request.shape
            masked = ~request.allowed(request.tile(slice(0, batch), slice(0, heads), slice(0, queries)))
        kept = None
        if inputs.dropout:
            seed = draw_seed()
            kept = keep_mask(torch.Size(request.shape), inputs.dropout, seed, value.device)
        output, *_ = _Short.apply(request.query, request.key, value, request, masked, kept)
        return output, {}


def _is_training(inputs: KernelInputs) -> bool:
    tensors = (inputs.request.query, inputs.request.key, inputs.value)
    requires_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return requires_grad or inputs.dropout > 0


class _Short(Function):
    """softmax(Q Kᵀ · scale) V, in which heads that share keys are rows of one product.

    Shapes: query and output (batch, kv_heads, group · queries, dim), weights (batch, kv_heads, group · queries, keys).
    """

    @staticmethod
    def forward(
        Q: Tensor, K: Tensor, V: Tensor, request: AttentionRequest, masked: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, ...]:
        shape = *Q.shape[:3], K.shape[2]
        with torch.autocast("cpu", enabled=False):
            q, k, v = (_pack(tensor, K, request.dtype) for tensor in (Q, K, V))
            q = q * request.scale
            S = q @ k.mT
            if masked is not None:
                S.view(shape).masked_fill_(masked, lowest(S.dtype))
            P = _softmax(S)
            if masked is not None and bool((no_keys := masked.all(-1, keepdim=True)).any()):
                P.view(shape).masked_fill_(no_keys, 0.0)
            output = (P if kept is None else P * kept.view(P.shape)) @ v
        return output.view(*Q.shape[:3], V.shape[3]).to(V.dtype), q, k, v, P

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        Q, K, V, request, _, kept = inputs
        ctx.scale = request.scale
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:], kept, Q, K, V)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, P, kept, *inputs = ctx.saved_tensors
        in_place = not torch.is_grad_enabled()  # torch.func may need what would be overwritten
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            dO = _pack(gradient, k, P.dtype)
            kept = None if kept is None else kept.view(P.shape)
            dV = (P if kept is None else P * kept).mT @ dO
            dP = dO @ v.mT
            if kept is not None:
                dP = dP.mul_(kept) if in_place else dP * kept
            total = (dP * P).sum(-1, keepdim=True)
            dS = dP.sub_(total).mul_(P) if in_place else (dP - total) * P
            dQ, dK = (dS @ k * ctx.scale).view(*gradient.shape[:3], -1), dS.mT @ q  # q includes the scale
        gradients = first_order_only((tensor.to(gradient.dtype) for tensor in (dQ, dK, dV)), gradient, *inputs)
        return *gradients, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Short, info.batch_size, in_dims, inputs)


def _softmax(S: Tensor) -> Tensor:
    """The softmax of each row; torch's own takes five times as long for rows of fewer than 16 entries."""
    if S.shape[-1] >= 16:
        return S.softmax(-1)
    P = (S - S.amax(-1, keepdim=True)).exp_()
    return P.div_(P.sum(-1, keepdim=True))


def _pack(tensor: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, heads, tokens, dim) → (batch, kv_heads, group · tokens, dim), contiguous, which torch does not copy."""
    whole = tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()
    return whole.view(whole.shape[0], key.shape[1], -1, whole.shape[3])
