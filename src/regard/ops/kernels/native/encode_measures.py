"""Write measures as the structures of `library`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.ops.indexing import SelectCells
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.native.encode import MASKS, SCORES, Encoder, unsupported_request
from regard.ops.kernels.native.library import DTYPES, MeasureCall, MeasureKind, Strided
from regard.ops.masks import Mask
from regard.ops.measures import (
    BlockMean,
    Diagonal,
    DistanceHistogram,
    Entropy,
    GroupPool,
    KLDivergence,
    LogSumExp,
    Mass,
    Max,
    MeanDistance,
    Measure,
    Received,
    TopK,
    TransposedProduct,
)
from regard.ops.request import AttentionRequest
from regard.ops.scores import Score
from regard.ops.tree import subtrees

MAX_TOP = 64
"""With more keys per row, sorting takes longer than all else."""

MAX_SEPARATE_COLUMNS = 4
"""Up to as many columns of Wᵀy are sums of their own; a product computes as many as a tile is wide."""


def encode_measure(
    encoder: Encoder, measure: Measure, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    """A measure whose results go to these tensors."""
    return _ENCODERS[type(measure)](encoder, measure, results, request, chunks)


def _numbers(kind: int, *attributes: str) -> Callable[..., Iterator[MeasureCall]]:
    """A measure that consists of its kind and numbers."""

    def encode(
        encoder: Encoder, measure: Measure, results: list[Tensor], request: AttentionRequest, chunks: int
    ) -> Iterator[MeasureCall]:
        second = results[1].data_ptr() if len(results) > 1 else None
        height, width = results[0].shape[-2:]
        numbers = [getattr(measure, name) for name in attributes]
        yield MeasureCall(kind, *numbers, height=height, width=width, result=results[0].data_ptr(), second=second)

    return encode


def _received(
    encoder: Encoder, measure: Received, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    rows = measure.row_weights
    if rows is not None:
        rows = rows.to(torch.float32).expand(request.shape[:3])[..., None]
    yield _column(encoder, rows, results[0].data_ptr(), 1, request, chunks)


def _transposed(
    encoder: Encoder, measure: TransposedProduct, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    result, columns = results[0], measure.rows.shape[3]
    if columns <= MAX_SEPARATE_COLUMNS:
        rows = measure.rows.to(torch.float32)
        for c in range(columns):
            address = result.data_ptr() + 4 * c
            yield _column(encoder, rows[..., c : c + 1], address, columns, request, chunks)
        return
    values = encoder.strided(measure.rows if measure.rows.dtype in DTYPES else measure.rows.to(torch.float32))
    by_chunk = _by_chunk(encoder, request, chunks, columns)
    yield MeasureCall(
        MeasureKind.TRANSPOSED,
        width=columns,
        values=values,
        result=result.data_ptr(),
        by_chunk=by_chunk,
        stride=columns,
    )


def _column(
    encoder: Encoder, rows: Tensor | None, address: int, stride: int, request: AttentionRequest, chunks: int
) -> MeasureCall:
    """The sum of the rows, each times a weight, (batch, heads, queries, 1)."""
    values = Strided() if rows is None else encoder.strided(rows)
    by_chunk = _by_chunk(encoder, request, chunks, 1)
    return MeasureCall(MeasureKind.RECEIVED, width=1, values=values, result=address, by_chunk=by_chunk, stride=stride)


def _by_chunk(encoder: Encoder, request: AttentionRequest, chunks: int, columns: int) -> int | None:
    if chunks == 1:
        return None
    batch, heads, _, keys = request.shape
    return encoder.pointer(
        torch.empty(batch, heads, chunks, keys, columns, dtype=torch.float32, device="cpu"), torch.float32
    )


def _mass(
    encoder: Encoder, measure: Mass, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    mask = encoder.mask(measure.mask, request.shape, request.offset, request.rows)
    yield MeasureCall(MeasureKind.MASS, mask=mask, result=results[0].data_ptr())


def _groups(
    encoder: Encoder, measure: GroupPool, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    measure.check_unchanged()
    query_groups, key_groups = (torch.atleast_2d(g).to(torch.int64) for g in (measure.query_groups, measure.key_groups))
    height, width = measure.num_groups
    yield MeasureCall(
        MeasureKind.GROUP_POOL,
        height=height,
        width=width,
        values=encoder.strided(measure.row_shares()[:, None, :, None]),
        row_groups=encoder.strided(query_groups[:, None, :, None]),
        key_groups=encoder.strided(key_groups[:, None, None]),
        result=results[0].data_ptr(),
    )


def _divergence(
    encoder: Encoder, measure: KLDivergence, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    other = encoder.keep(encoder.matrix(measure.request))
    lse = encoder.strided(measure.lse.to(torch.float32)[..., None])
    yield MeasureCall(MeasureKind.DIVERGENCE, values=lse, other=ctypes.pointer(other), result=results[0].data_ptr())


def _cells(
    encoder: Encoder, measure: SelectCells, results: list[Tensor], request: AttentionRequest, chunks: int
) -> Iterator[MeasureCall]:
    assert isinstance(measure.keys, slice)
    start, stop, _ = measure.keys.indices(request.shape[3])
    width = max(stop - start, 0)
    yield MeasureCall(MeasureKind.SELECT, number=start, width=width, result=results[0].data_ptr())


_ENCODERS: dict[type[Measure], Callable[..., Iterator[MeasureCall]]] = {
    Entropy: _numbers(MeasureKind.ENTROPY),
    LogSumExp: _numbers(MeasureKind.LSE),
    Max: _numbers(MeasureKind.MAX),
    MeanDistance: _numbers(MeasureKind.MEAN_DISTANCE),
    Mass: _mass,
    Diagonal: _numbers(MeasureKind.DIAGONAL, "offset"),
    DistanceHistogram: _numbers(MeasureKind.HISTOGRAM, "max_distance"),
    TopK: _numbers(MeasureKind.TOPK, "k"),
    KLDivergence: _divergence,
    SelectCells: _cells,
    Received: _received,
    TransposedProduct: _transposed,
    BlockMean: _numbers(MeasureKind.BLOCK_MEAN, "block_size"),
    GroupPool: _groups,
}
MEASURES = frozenset(_ENCODERS)


def unsupported_measures(inputs: KernelInputs) -> Iterator[str]:
    """Why measures cannot be computed, beyond their classes."""
    for measure in inputs.measures.values():
        if isinstance(measure, TopK) and measure.k > MAX_TOP:
            yield f"it finds up to {MAX_TOP} keys, not {measure.k}"
        if isinstance(measure, SelectCells) and not _is_range(measure):
            yield "it selects a range of weights only"
        if isinstance(measure, Mass):
            yield from _unsupported_rules(measure.mask)
        if isinstance(measure, KLDivergence):
            other = measure.request
            yield from _unsupported_rules(other.mask)
            yield from _unsupported_rules(other.score)
            yield from unsupported_request(other)
            if other.query.dtype not in DTYPES or other.key.dtype not in DTYPES:
                yield f"it does not support {other.query.dtype}"


def _is_range(measure: SelectCells) -> bool:
    return measure.source == "weights" and isinstance(measure.keys, slice) and measure.keys.step in (None, 1)


def _unsupported_rules(rule: Any) -> Iterator[str]:
    for part in subtrees(rule):
        for base, supported in ((Mask, MASKS), (Score, SCORES)):
            if isinstance(part, base) and type(part) not in supported:
                yield f"it does not support the {base.__name__.lower()} {type(part).__name__}"
