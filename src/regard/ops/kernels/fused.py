"""torch's scaled dot-product attention, for jobs that ask nothing of the weights."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.ops.kernels.base import Job, Kernel, Measured
from regard.ops.masks import Causal
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDot

DENSE_CELLS = 2**22
"""Up to so many cells (4 MiB of bool) a structured rule is written out for SDPA, which knows no rule but the causal
one."""


class Fused(Kernel):
    """SDPA takes query, key, value, a dense or broadcast mask, and gives the output and nothing else."""

    name = "fused"
    about = "torch's SDPA, where nothing is asked of the weights in the call"
    scores = (ScaledDot,)
    measures = ()

    def why_not(self, job: Job) -> list[str]:
        reasons = super().why_not(job)
        if job.value is None:
            reasons.append("it gives the output alone, and there is no value to make one from")
        elif job.value.dtype != job.request.query.dtype:
            reasons.append(f"value is {job.value.dtype}, the query {job.request.query.dtype}")
        elif job.value.shape[1] != job.request.key.shape[1] and job.request.key.shape[1] != job.request.shape[1]:
            reasons.append("it needs as many heads in value as in key")
        batch, _, queries, keys = job.request.shape
        if _needs_cells(job.request) and batch * queries * keys > DENSE_CELLS:
            reasons.append(f"it would write the mask {job.request.mask!r} out as {batch} × {queries} × {keys} cells")
        return reasons

    def run(self, job: Job) -> tuple[Tensor | None, Measured]:
        request, value = job.request, job.value
        assert value is not None
        group = request.shape[1] // request.key.shape[1]
        if value.shape[1] != request.key.shape[1]:
            value = value.repeat_interleave(request.shape[1] // value.shape[1], 1)
        output = scaled_dot_product_attention(
            request.query,
            request.key,
            value,
            attn_mask=_written_out(request),
            dropout_p=job.dropout,
            is_causal=_is_causal(request),
            scale=request.scale,
            enable_gqa=group > 1,
        )
        return output, {}


def _is_causal(request: AttentionRequest) -> bool:
    """Whether the mask is what SDPA calls causal, which starts at the first key."""
    return type(request.mask) is Causal and request.offset == 0 and request.rows is None and not _sees_all(request)


def _sees_all(request: AttentionRequest) -> bool:
    """Whether a rule forbids nothing here, as when the last query of a causal decoder looks back."""
    if not isinstance(request.mask, Causal):
        return False
    batch, heads, queries, _ = request.shape
    cells = request.cells(slice(0, batch), slice(0, heads), slice(0, queries))
    return request.mask.certain(cells) == cells.keys


def _needs_cells(request: AttentionRequest) -> bool:
    """Whether SDPA needs a cell for each query and key."""
    mask = request.mask
    return mask is not None and mask.per_query and not _is_causal(request) and not _sees_all(request)


def _written_out(request: AttentionRequest) -> Tensor | None:
    """The mask as a bool tensor, (batch or 1, heads or 1, queries or 1, keys); None where SDPA needs none."""
    if request.mask is None or _is_causal(request) or _sees_all(request):
        return None
    batch, heads, queries, keys = request.shape
    allowed = request.mask.allowed(request.cells(slice(0, batch), slice(0, heads), slice(0, queries)))
    return (
        allowed.expand((1,) * (4 - allowed.ndim) + tuple(allowed.shape[:-1]) + (keys,)) if allowed.ndim < 4 else allowed
    )
