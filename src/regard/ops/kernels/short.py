"""Short sequences on a CPU: many small matrices at once, with a gradient written out.

Made for training on sentences. There SDPA's CPU kernel, made for long sequences, spends most of its backward pass on
blocks that are almost empty: for 222 sentences of 18 tokens in bfloat16 it takes six times as long as the plain
products here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.ops.autograd import first_order_only, vmap_by_loop
from regard.ops.dropout import keep_mask
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.measures import FORBIDDEN
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDotProduct

LONGEST = 128
"""Up to so many keys the weights of a query are few enough to be kept, as its key and value are."""


class Short(Kernel):
    """Up to 128 keys and queries: the weights are kept from the forward to the backward pass."""

    name = "short"
    about = "short sequences on a CPU, in training: small dense products, gradient written out"
    devices = ("cpu",)
    scores = (ScaledDotProduct,)
    measures = ()

    def why_not(self, job: KernelInputs) -> Iterator[str]:
        """Also: too long, no value, heads of value unlike the key's, or nothing to train."""
        request, value = job.request, job.value
        if torch.compiler.is_compiling():  # first, or the program would be one for short sequences alone
            yield "a compiler cannot follow it"
        longest = max(request.shape[2:])
        if longest > LONGEST:
            yield f"it takes up to {LONGEST} queries and keys, not {longest}"
        yield from super().why_not(job)
        if value is None:
            yield "it gives the output alone, and there is no value to make one from"
        elif value.shape[1] != request.key.shape[1] or value.dtype != request.query.dtype:
            yield "it needs heads and dtype of value to be those of key"
        elif not job.dropout and not (
            torch.is_grad_enabled() and any(t.requires_grad for t in (request.query, request.key, value))
        ):
            yield "it is made for training, and nothing here has a gradient or is dropped"

    def run(self, job: KernelInputs) -> tuple[Tensor | None, Measured]:
        request, value = job.request, job.value
        assert value is not None
        forbidden = None
        if request.mask is not None:
            batch, heads, queries, _ = request.shape
            forbidden = ~request.allowed(request.cells(slice(0, batch), slice(0, heads), slice(0, queries)))
        kept = None
        if job.dropout:
            kept = keep_mask(torch.Size(request.shape), job.dropout, int(torch.randint(2**62, ())), value.device)
        output, *_ = _Short.apply(request.query, request.key, value, request, forbidden, kept)
        return output, {}


class _Short(torch.autograd.Function):
    """softmax(Q Kᵀ · scale) V, in which heads that share keys are rows of one product.

    Shapes inside: query and output (batch, kv_heads, group · queries, dim), weights (batch, kv_heads, group · queries,
    keys).
    """

    @staticmethod
    def forward(
        Q: Tensor, K: Tensor, V: Tensor, request: AttentionRequest, forbidden: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, ...]:
        shape = *Q.shape[:3], K.shape[2]
        with torch.autocast("cpu", enabled=False):
            q, k, v = (_packed(tensor, K, request.dtype) for tensor in (Q, K, V))
            q = q * request.scale
            S = q @ k.mT
            if forbidden is not None:
                S.view(shape).masked_fill_(forbidden, FORBIDDEN)
            P = _softmax(S)
            if forbidden is not None and bool((unseen := forbidden.all(-1, keepdim=True)).any()):
                P.view(shape).masked_fill_(unseen, 0.0)
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
        q, k, v, P, kept, *given = ctx.saved_tensors
        in_place = not torch.is_grad_enabled()  # as in training; torch.func may need what would be overwritten
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            dO = _packed(gradient, k, P.dtype)
            kept = None if kept is None else kept.view(P.shape)
            dV = (P if kept is None else P * kept).mT @ dO
            dP = dO @ v.mT
            if kept is not None:
                dP = dP.mul_(kept) if in_place else dP * kept
            total = (dP * P).sum(-1, keepdim=True)
            dS = dP.sub_(total).mul_(P) if in_place else (dP - total) * P
            dQ, dK = (dS @ k * ctx.scale).view(*gradient.shape[:3], -1), dS.mT @ q  # q holds the scale already
        found = first_order_only((tensor.to(gradient.dtype) for tensor in (dQ, dK, dV)), gradient, *given)
        return *found, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Short, info.batch_size, in_dims, inputs)


def _softmax(S: Tensor) -> Tensor:
    """The softmax of each row; torch's own takes five times as long where a row has fewer than 16 entries."""
    if S.shape[-1] >= 16:
        return S.softmax(-1)
    P = (S - S.amax(-1, keepdim=True)).exp_()
    return P.div_(P.sum(-1, keepdim=True))


def _packed(tensor: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, heads, tokens, dim) → (batch, kv_heads, group · tokens, dim), without gaps for torch to copy away."""
    whole = tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()
    return whole.view(whole.shape[0], key.shape[1], -1, whole.shape[3])
