"""Write a call as the structures of `library`: masks as steps in postfix order, scores as steps in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.native.library import Call, ColumnSums, MaskStep, ScoreStep, Strided, strided
from regard.ops.kernels.results import MeasureResults
from regard.ops.masks import And, Causal, DenseMask, Documents, Mask, Not, Or, Padding, Prefix, Spans, Window
from regard.ops.measures import Entropy, LogSumExp, Received
from regard.ops.request import AttentionRequest
from regard.ops.scores import Alibi, Bias, ScaledDotProduct, Score, Sinks, SoftCap, Sum, T5RelativeBias

WINDOW, RANGES, SAME, CELLS, AND, OR, NOT = range(7)  # MaskKind in csrc/call.h
ADD_CELLS, ADD_DISTANCES, SOFT_CAP = range(3)  # ScoreKind
UNLIMITED = -(2**63)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_CHUNKS = 16
"""A head is cut into as many parts at most. More would need more memory for the sums over their columns."""
MIN_ROWS_PER_CHUNK = 128
CACHE_BYTES = 600_000
"""A block of rows fits in the second-level cache of most cores, together with the keys that are being multiplied."""


class EncodedCall:
    """A call for the library, and the tensors that its pointers refer to."""

    def __init__(self, inputs: KernelInputs, output: Tensor | None, results: MeasureResults) -> None:
        request, value = inputs.request, inputs.value
        self._kept: list[Any] = []
        batch, heads, queries, keys = request.shape
        self.chunks = max(1, min(MAX_CHUNKS, queries // MIN_ROWS_PER_CHUNK))
        self._encode_measures(inputs, results)
        masks, scores = self._mask(request), self._scores(request)
        sinks = request.score.sinks
        self.call = Call(
            batch=batch,
            heads=heads,
            kv_heads=request.key.shape[1],
            value_heads=heads if value is None else value.shape[1],
            queries=queries,
            keys=keys,
            head_dim=request.query.shape[3],
            value_dim=0 if value is None else value.shape[3],
            dtype=DTYPES[request.query.dtype],
            query=strided(request.query),
            key=strided(request.key),
            value=Strided() if value is None else strided(value),
            output=Strided() if output is None else strided(output),
            scale=request.scale,
            offset=request.offset,
            batch_index=self._pointer(request.batch, torch.int64),
            head_index=self._pointer(request.heads, torch.int64),
            row_index=self._pointer(request.rows, torch.int64),
            mask_steps=len(masks),
            score_steps=len(scores),
            mask=self._array(MaskStep, masks),
            scores=self._array(ScoreStep, scores),
            sinks=self._pointer(sinks, torch.float32),
            lse=self._row_result(results, inputs, LogSumExp),
            entropy=self._row_result(results, inputs, Entropy),
            column_sums=len(self._columns),
            columns=self._array(ColumnSums, self._columns),
            chunks=self.chunks,
            cache_bytes=CACHE_BYTES,
        )
        self._kept.append((request, value, output, results))

    def _encode_measures(self, inputs: KernelInputs, results: MeasureResults) -> None:
        request = inputs.request
        batch, heads, queries, keys = request.shape
        self._columns: list[ColumnSums] = []
        for name, measure in inputs.measures.items():
            if isinstance(measure, Received):
                weights = Strided()
                if measure.row_weights is not None:
                    expanded = measure.row_weights.to(torch.float32).expand(batch, heads, queries)[..., None]
                    weights = self._strided(expanded)
                by_chunk = request.query.new_empty(batch, heads, self.chunks, keys, dtype=torch.float32)
                (sums,) = results.whole(name)
                self._columns.append(ColumnSums(weights, sums.data_ptr(), self._pointer(by_chunk, torch.float32)))

    def _row_result(self, results: MeasureResults, inputs: KernelInputs, cls: type) -> int | None:
        for name, measure in inputs.measures.items():
            if type(measure) is cls:
                return results.whole(name)[0].data_ptr()
        return None

    def _mask(self, request: AttentionRequest) -> list[MaskStep]:
        if request.mask is None:
            return []
        shape = request.shape if request.full_shape is None else request.full_shape
        return self._mask_steps(request.mask, shape, request.offset)

    def _mask_steps(self, mask: Mask, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        return self.mask_encoders[type(mask)](self, mask, shape, offset)

    def _window(self, mask: Window, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        left, right = (UNLIMITED if limit is None else limit for limit in (mask.left, mask.right))
        return [MaskStep(WINDOW, left, right)]

    def _padding(self, mask: Padding, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        value = mask.lengths_or_mask
        if mask.has_lengths:
            return [MaskStep(RANGES, second=self._strided(value.to(torch.int64)[:, None, None, None]))]
        return [MaskStep(CELLS, first=self._strided(value[:, None, None, :]))]

    def _prefix(self, mask: Prefix, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        lengths = torch.as_tensor(mask.lengths, dtype=torch.int64).expand(shape[0])[:, None, None, None]
        prefix = MaskStep(RANGES, second=self._strided(lengths))
        return [prefix, MaskStep(WINDOW, UNLIMITED, 0), MaskStep(OR)]

    def _documents(self, mask: Documents, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        of_key = mask.document_ids.to(torch.int64)
        if mask.query_document_ids is None:
            position = torch.arange(shape[2]) + offset
            inside = (position >= 0) & (position < of_key.shape[-1])
            of_query = of_key[..., position.clamp(0, of_key.shape[-1] - 1)].where(inside, -1)
        else:
            of_query = mask.query_document_ids.to(torch.int64)
        # No query attends to a key with a negative id: such a key becomes -1, such a query -2.
        of_key, of_query = of_key.clamp(min=-1), of_query.where(of_query >= 0, -2)
        return [MaskStep(SAME, first=self._ids(of_query, 2), second=self._ids(of_key, 3))]

    def _ids(self, ids: Tensor, axis: int) -> Strided:
        """The ids of queries (axis 2) or keys (axis 3), (tokens,) or (batch or 1, tokens)."""
        ids = torch.atleast_2d(ids)
        return self._strided(ids[:, None, :, None] if axis == 2 else ids[:, None, None, :])

    def _spans(self, mask: Spans, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        steps: list[MaskStep] = []
        for number, (start, stop) in enumerate(zip(mask.starts.unbind(-1), mask.stops.unbind(-1), strict=True)):
            first, second = (self._strided(each.to(torch.int64)[..., None]) for each in (start, stop))
            steps.append(MaskStep(RANGES, first=first, second=second))
            if number:
                steps.append(MaskStep(OR))
        return steps

    def _dense(self, mask: DenseMask, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        return [MaskStep(CELLS, first=self._strided(mask.tensor.expand(shape)))]

    def _and(self, mask: And, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        return [*(s for part in (mask.left, mask.right) for s in self._mask_steps(part, shape, offset)), MaskStep(AND)]

    def _or(self, mask: Or, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        return [*(s for part in (mask.left, mask.right) for s in self._mask_steps(part, shape, offset)), MaskStep(OR)]

    def _not(self, mask: Not, shape: tuple[int, ...], offset: int) -> list[MaskStep]:
        return [*self._mask_steps(mask.mask, shape, offset), MaskStep(NOT)]

    mask_encoders: ClassVar[dict[type[Mask], Callable[..., list[MaskStep]]]] = {
        Window: _window,
        Causal: _window,
        Padding: _padding,
        Prefix: _prefix,
        Documents: _documents,
        Spans: _spans,
        DenseMask: _dense,
        And: _and,
        Or: _or,
        Not: _not,
    }

    def _scores(self, request: AttentionRequest) -> list[ScoreStep]:
        order = score_order(request.score)
        assert order is not None
        shape = request.shape if request.full_shape is None else request.full_shape
        return [self._score_step(score, shape, request.offset) for score in order]

    def _score_step(self, score: Score, shape: tuple[int, ...], offset: int) -> ScoreStep:
        if isinstance(score, SoftCap):
            return ScoreStep(SOFT_CAP, cap=score.cap)
        if isinstance(score, Bias):
            return ScoreStep(ADD_CELLS, values=self._strided(score.tensor.to(torch.float32).expand(shape)))
        shift = offset + shape[2] - 1  # the first number is that of the last query's distance to the first key
        distance = torch.arange(-shift, shape[3] - offset)
        if isinstance(score, T5RelativeBias):
            values = score.table[score.bucket(distance)].mT.to(torch.float32)
        else:
            assert isinstance(score, Alibi)
            values = score.slopes.to(torch.float32)[:, None] * -distance.abs()
        return ScoreStep(ADD_DISTANCES, shift=shift, values=self._strided(values.contiguous()[None, :, None]))

    def _strided(self, tensor: Tensor) -> Strided:
        """A tensor with four axes, whose axes of size 1 are broadcast."""
        self._kept.append(tensor)
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return Strided(tensor.data_ptr(), *strides)

    def _pointer(self, tensor: Tensor | None, dtype: torch.dtype) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.to(dtype).contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _array(self, cls: type[ctypes.Structure], items: list[Any]) -> Any:
        return (cls * len(items))(*items) if items else None


MASKS = frozenset(EncodedCall.mask_encoders)
SCORES = frozenset({ScaledDotProduct, Sum, Bias, Alibi, T5RelativeBias, SoftCap, Sinks})
MEASURES = frozenset({Entropy, LogSumExp, Received})


MAX_MASK_DEPTH = 16
"""As in csrc/mask.h: how many masks a row has to remember at once."""


def mask_depth(mask: Mask | None) -> int:
    """How many masks are remembered at once while the steps of a mask are computed."""
    if isinstance(mask, (And, Or)):
        return max(mask_depth(mask.left), 1 + mask_depth(mask.right))
    return mask_depth(mask.mask) if isinstance(mask, Not) else 2


def score_order(score: Score) -> list[Score] | None:
    """What is done to the scaled dot product, in order; None if a score is not made in this way."""
    if isinstance(score, ScaledDotProduct):
        return []
    if isinstance(score, Sinks):
        return score_order(score.score)
    if isinstance(score, SoftCap):
        inner = score_order(score.score)
        return None if inner is None else [*inner, score]
    if isinstance(score, Sum):
        for first, second in ((score.left, score.right), (score.right, score.left)):
            inner = score_order(first)
            added = _terms(second)
            if inner is not None and added is not None:
                return [*inner, *added]
    return None


def _terms(score: Score) -> list[Score] | None:
    """The biases of a sum of biases; None if it is something else."""
    if isinstance(score, (Bias, Alibi, T5RelativeBias)):
        return [score]
    if isinstance(score, Sinks):
        return _terms(score.score)
    if isinstance(score, Sum):
        left, right = _terms(score.left), _terms(score.right)
        return None if left is None or right is None else [*left, *right]
    return None
