"""Write a call as the structures of `library`: masks as steps in postfix order, scores as steps in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.ops.kernels.native.library import (
    DTYPES,
    MaskKind,
    MaskStep,
    MaskSteps,
    Matrix,
    ScoreKind,
    ScoreStep,
    Strided,
    strided,
)
from regard.ops.masks import And, Causal, DenseMask, Documents, Mask, Not, Or, Padding, Prefix, Spans, Window
from regard.ops.request import AttentionRequest
from regard.ops.scores import Alibi, Bias, RelativeKey, ScaledDotProduct, Score, Sinks, SoftCap, Sum, T5RelativeBias
from regard.ops.tile import Shape

UNLIMITED = -(2**63)
MAX_MASK_DEPTH = 16
"""As in csrc/mask.h: how many masks a row has to remember at once."""


Positions = tuple[int, Tensor | None]
"""Of queries: an offset, and rows to add it to; None for all rows."""


class Encoder:
    """Writes structures, and keeps the tensors alive that they point to.

    Args:
        score_gradients: Backward: where the gradients of a score's values go, by the id of the score.
    """

    def __init__(self, score_gradients: Mapping[int, Tensor] | None = None) -> None:
        self._kept: list[Any] = []
        self._score_gradients = score_gradients or {}

    def keep(self, thing: Any) -> Any:
        """Keep something alive as long as this encoder."""
        self._kept.append(thing)
        return thing

    def strided(self, tensor: Tensor) -> Strided:
        """A tensor with four axes, whose axes of size 1 are broadcast."""
        self._kept.append(tensor)
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return Strided(tensor.data_ptr(), *strides, DTYPES.get(tensor.dtype, 0))

    def pointer(self, tensor: Tensor | None, dtype: torch.dtype) -> int | None:
        """The address of a tensor's elements in a dtype, contiguous."""
        if tensor is None:
            return None
        tensor = tensor.to(dtype).contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def array(self, cls: type[ctypes.Structure], items: list[Any]) -> Any:
        """Structures as an array; None for none."""
        return self.keep((cls * len(items))(*items)) if items else None

    def matrix(self, request: AttentionRequest) -> Matrix:
        """What a weight matrix is made from."""
        batch, heads, queries, keys = request.shape
        scores = self.scores(request)
        self._kept.append(request)
        return Matrix(
            batch=batch,
            heads=heads,
            kv_heads=request.key.shape[1],
            queries=queries,
            keys=keys,
            head_dim=request.query.shape[3],
            query=strided(request.query),
            key=strided(request.key),
            scale=request.scale,
            offset=request.offset,
            batch_index=self.pointer(request.batch, torch.int64),
            head_index=self.pointer(request.heads, torch.int64),
            row_index=self.pointer(request.rows, torch.int64),
            mask=self.mask(request.mask, full_shape(request), request.offset),
            score_steps=len(scores),
            scores=self.array(ScoreStep, scores),
            sinks=self.pointer(request.score.sinks, torch.float32),
        )

    def mask(self, mask: Mask | None, shape: Shape, offset: int, rows: Tensor | None = None) -> MaskSteps:
        """A mask for tensors of a shape, whose queries are these rows (default: all) plus an offset."""
        steps = [] if mask is None else self._mask_steps(mask, shape, (offset, rows))
        return MaskSteps(len(steps), self.array(MaskStep, steps))

    def _mask_steps(self, mask: Mask, shape: Shape, positions: Positions) -> list[MaskStep]:
        return self.mask_encoders[type(mask)](self, mask, shape, positions)

    def _window(self, mask: Window, shape: Shape, positions: Positions) -> list[MaskStep]:
        left, right = (UNLIMITED if limit is None else limit for limit in (mask.left, mask.right))
        return [MaskStep(MaskKind.WINDOW, left, right)]

    def _padding(self, mask: Padding, shape: Shape, positions: Positions) -> list[MaskStep]:
        value = mask.lengths_or_mask
        if mask.has_lengths:
            return [MaskStep(MaskKind.RANGES, second=self.strided(value.to(torch.int64)[:, None, None, None]))]
        return [MaskStep(MaskKind.DENSE, first=self.strided(value[:, None, None, :]))]

    def _prefix(self, mask: Prefix, shape: Shape, positions: Positions) -> list[MaskStep]:
        lengths = torch.as_tensor(mask.lengths, dtype=torch.int64, device="cpu").expand(shape[0])[:, None, None, None]
        prefix = MaskStep(MaskKind.RANGES, second=self.strided(lengths))
        return [prefix, MaskStep(MaskKind.WINDOW, UNLIMITED, 0), MaskStep(MaskKind.OR)]

    def _documents(self, mask: Documents, shape: Shape, positions: Positions) -> list[MaskStep]:
        of_key = mask.document_ids.to(torch.int64)
        if mask.query_document_ids is None:
            offset, rows = positions
            position = (torch.arange(shape[2], device="cpu") if rows is None else rows) + offset
            inside = (position >= 0) & (position < of_key.shape[-1])
            of_query = of_key[..., position.clamp(0, of_key.shape[-1] - 1)].where(inside, -1)
        else:
            of_query = mask.query_document_ids.to(torch.int64)
        # No query attends to a key with a negative id: such a key becomes -1, such a query -2.
        of_key, of_query = of_key.clamp(min=-1), of_query.where(of_query >= 0, -2)
        return [MaskStep(MaskKind.SAME_DOCUMENT, first=self._ids(of_query, 2), second=self._ids(of_key, 3))]

    def _ids(self, ids: Tensor, axis: int) -> Strided:
        """The ids of queries (axis 2) or keys (axis 3), (tokens,) or (batch or 1, tokens)."""
        ids = torch.atleast_2d(ids)
        return self.strided(ids[:, None, :, None] if axis == 2 else ids[:, None, None, :])

    def _spans(self, mask: Spans, shape: Shape, positions: Positions) -> list[MaskStep]:
        steps: list[MaskStep] = []
        for number, (start, stop) in enumerate(zip(mask.starts.unbind(-1), mask.stops.unbind(-1), strict=True)):
            first, second = (self.strided(each.to(torch.int64)[..., None]) for each in (start, stop))
            steps.append(MaskStep(MaskKind.RANGES, first=first, second=second))
            if number:
                steps.append(MaskStep(MaskKind.OR))
        return steps

    def _dense(self, mask: DenseMask, shape: Shape, positions: Positions) -> list[MaskStep]:
        return [MaskStep(MaskKind.DENSE, first=self.strided(mask.tensor.expand(shape)))]

    def _and(self, mask: And, shape: Shape, positions: Positions) -> list[MaskStep]:
        return [*self._both(mask, shape, positions), MaskStep(MaskKind.AND)]

    def _or(self, mask: Or, shape: Shape, positions: Positions) -> list[MaskStep]:
        return [*self._both(mask, shape, positions), MaskStep(MaskKind.OR)]

    def _both(self, mask: And | Or, shape: Shape, positions: Positions) -> list[MaskStep]:
        left, right = (self._mask_steps(part, shape, positions) for part in (mask.left, mask.right))
        return [*left, *right]

    def _not(self, mask: Not, shape: Shape, positions: Positions) -> list[MaskStep]:
        return [*self._mask_steps(mask.mask, shape, positions), MaskStep(MaskKind.NOT)]

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

    def scores(self, request: AttentionRequest) -> list[ScoreStep]:
        """What is done to the scaled dot product."""
        order = score_order(request.score)
        assert order is not None
        return [self._score_step(score, full_shape(request), request.offset) for score in order]

    def _score_step(self, score: Score, shape: Shape, offset: int) -> ScoreStep:
        if isinstance(score, SoftCap):
            return ScoreStep(ScoreKind.SOFT_CAP, cap=score.cap)
        shift = offset + shape[2] - 1
        if isinstance(score, Bias):
            kind, values = ScoreKind.ADD_BIAS, score.tensor.to(torch.float32).expand(shape)
        elif isinstance(score, RelativeKey):
            kind, shift, table = ScoreKind.ADD_RELATIVE, score.table.shape[-2] // 2, score.table.to(torch.float32)
            values = table[None, None] if table.ndim == 2 else table[None]
        else:
            kind, values = ScoreKind.ADD_DISTANCES, by_distance(score, shape, offset)[None, :, None].contiguous()
        gradient = self._score_gradients.get(id(score))
        if gradient is None:
            return ScoreStep(kind, shift=shift, values=self.strided(values))
        batch, head = (
            0 if size == 1 else stride for size, stride in zip(gradient.shape[:2], gradient.stride()[:2], strict=True)
        )
        return ScoreStep(
            kind,
            shift=shift,
            values=self.strided(values),
            gradient=gradient.data_ptr(),
            gradient_batch=batch,
            gradient_head=head,
        )


def full_shape(request: AttentionRequest) -> Shape:
    """The shape that mask and score were made for."""
    return request.shape if request.full_shape is None else request.full_shape


def by_distance(score: Score, shape: Shape, offset: int) -> Tensor:
    """What a score adds at each distance, (heads, distances), from the last query's distance to the first key on."""
    distance = torch.arange(1 - offset - shape[2], shape[3] - offset, device="cpu")
    if isinstance(score, T5RelativeBias):
        return score.table[score.bucket(distance)].mT.to(torch.float32)
    assert isinstance(score, Alibi)
    return score.slopes.to(torch.float32)[:, None] * -distance.abs()


MASKS = frozenset(Encoder.mask_encoders)
BIASES = (Bias, Alibi, T5RelativeBias, RelativeKey)
SCORES = frozenset({ScaledDotProduct, Sum, SoftCap, Sinks, *BIASES})


def unsupported_request(request: AttentionRequest) -> Iterator[str]:
    """Why a weight matrix cannot be computed, beyond the classes of its mask and score."""
    if mask_depth(request.mask) > MAX_MASK_DEPTH:
        yield f"it supports masks combined up to {MAX_MASK_DEPTH} deep"
    order = score_order(request.score)
    if order is None:
        yield f"it adds biases to one ScaledDotProduct, the score is {request.score!r}"
    elif sum(isinstance(score, RelativeKey) for score in order) > 1:
        yield "it supports one RelativeKey in a score"


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
    if isinstance(score, BIASES):
        return [score]
    if isinstance(score, Sinks):
        return _terms(score.score)
    if isinstance(score, Sum):
        left, right = _terms(score.left), _terms(score.right)
        return None if left is None or right is None else [*left, *right]
    return None
