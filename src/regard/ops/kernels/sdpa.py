"""torch's scaled dot-product attention, for jobs that ask nothing of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.masks import Causal, DenseMask
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDotProduct

DENSE_CELLS = 2**22
"""Up to so many cells SDPA may be given or make something of the size of the matrix: 16 MiB in float32."""


class Sdpa(Kernel):
    """SDPA takes query, key, value, a dense or broadcast mask, and gives the output and nothing else.

    A NaN or an infinity is what torch makes of it: on a CPU one in a query may become 0, and one in a key that a mask
    forbids may reach every row.
    """

    name = "sdpa"
    about = "torch's SDPA, where nothing is asked of the weights in the call"
    scores = (ScaledDotProduct,)
    measures = ()

    def why_not(self, job: KernelInputs) -> Iterator[str]:
        yield from super().why_not(job)
        if job.value is None:
            yield "it gives the output alone, and there is no value to make one from"
        elif job.value.dtype != job.request.query.dtype:
            yield f"value is {job.value.dtype}, the query {job.request.query.dtype}"
        elif job.value.shape[1] != job.request.key.shape[1] and job.request.key.shape[1] != job.request.shape[1]:
            yield "it needs as many heads in value as in key"
        dense = _makes_dense(job)
        if dense and prod(job.request.shape) > DENSE_CELLS:
            # While a program is compiled, sizes may be symbols, which no text takes.
            size = "too many" if torch.compiler.is_compiling() else " × ".join(map(str, job.request.shape))
            yield f"it would hold {size} cells (batch, heads, queries, keys), because {dense}"

    def run(self, job: KernelInputs) -> tuple[Tensor | None, Measured]:
        query, key, value = job.request.query, job.request.key, job.value
        assert value is not None
        device = value.device.type
        if torch.is_autocast_enabled(device):  # the output has the dtype of value, whatever is asked
            with torch.autocast(device, enabled=False):
                return self.run(job)
        if value.shape[1] != key.shape[1]:
            value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        output = scaled_dot_product_attention(
            query if query.stride(-1) == 1 else query.contiguous(),
            key if key.stride(-1) == 1 else key.contiguous(),
            value if value.stride(-1) == 1 else value.contiguous(),
            attn_mask=_written_out(job.request),
            dropout_p=job.dropout,
            is_causal=_is_causal(job.request),
            scale=job.request.scale,
            enable_gqa=_plain(query.shape[1] > key.shape[1]),
        )
        return output, {}


def _plain(holds: bool) -> bool:
    """The same by a branch, since a compiler may hold a symbol, which SDPA does not take and bool() does not change."""
    return True if holds else False  # noqa: SIM210


def _makes_dense(job: KernelInputs) -> str:
    """Why the call would take memory of the size of the matrix; nothing where it is linear."""
    request, value = job.request, job.value
    if _needs_cells(request):
        return "SDPA knows no rule but the causal one, and the mask would be written out"
    if request.query.device.type != "cpu" or value is None:
        return ""
    # torch's kernel for CPUs has neither; torch then multiplies whole matrices without saying so.
    if job.dropout:
        return "SDPA drops weights of a whole matrix on a CPU"
    return "" if value.shape[3] == request.query.shape[3] else "SDPA's CPU kernel wants head_dim as value_dim"


def _is_causal(request: AttentionRequest) -> bool:
    """Whether the mask is what SDPA calls causal: it starts at the first key, and wants a scale above 0."""
    plain = type(request.mask) is Causal and request.offset == 0 and request.rows is None and request.scale > 0
    return _plain(plain and not _sees_all(request))


def _sees_all(request: AttentionRequest) -> bool:
    """Whether a rule forbids nothing here, as when the last query of a causal decoder looks back."""
    if type(request.mask) is not Causal:
        return False
    first = 0 if request.rows is None else int(request.rows.min())
    return first + request.offset >= request.shape[3] - 1


def _needs_cells(request: AttentionRequest) -> bool:
    """Whether a cell would have to be made for each query and key; those of a dense mask are there already."""
    mask = request.mask
    if mask is None or isinstance(mask, DenseMask) or not mask.per_query:
        return False
    return not _is_causal(request) and not _sees_all(request)


def _written_out(request: AttentionRequest) -> Tensor | None:
    """The mask as a bool tensor, (batch or 1, heads or 1, queries or 1, keys); None where SDPA needs none."""
    if request.mask is None or _is_causal(request) or _sees_all(request):
        return None
    *sizes, keys = request.shape
    if torch.compiler.is_compiling():  # which takes the ends of a slice for constants, and compiles anew for others
        batch, heads, queries = (torch.arange(size, device=request.query.device) for size in sizes)
    else:
        batch, heads, queries = (slice(0, size) for size in sizes)
    allowed = request.allowed(request.cells(batch, heads, queries))
    return allowed.expand((1,) * (4 - allowed.ndim) + tuple(allowed.shape[:-1]) + (keys,))
