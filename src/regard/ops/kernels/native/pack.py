"""Write a call as the structures of `library`, from the steps of its rules; and which steps the library has."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels.native.library import (
    DTYPES,
    MaskKind,
    MaskStep,
    MaskSteps,
    Matrix,
    MeasureCall,
    MeasureKind,
    ScoreKind,
    ScoreStep,
    Strided,
    strided,
)
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest
from regard.ops.rules import Rule, has_steps
from regard.ops.scores import Score
from regard.ops.steps import Place, Step
from regard.ops.tree import subtrees

MASK_KINDS, SCORE_KINDS, MEASURE_KINDS = (
    {kind.name.lower(): kind for kind in kinds} for kinds in (MaskKind, ScoreKind, MeasureKind)
)
KINDS: dict[type[Rule], frozenset[str]] = {
    Mask: frozenset(MASK_KINDS),
    Score: frozenset(SCORE_KINDS) | {"dot_product"},
    Measure: frozenset(MEASURE_KINDS),
}
"""The kinds of steps that the library has, by the base of the rule."""

UNLIMITED = -(2**63)

MAX_MASK_DEPTH = 16
"""As in csrc/mask.h: how many masks a row has to remember at once."""

MAX_TOPK = 64
"""With more keys per row, sorting takes longer than all else."""

MAX_SEPARATE_COLUMNS = 4
"""Up to as many columns of Wᵀy are sums of their own; a product computes as many as a tile is wide."""


class Packer:
    """Writes structures, and keeps the tensors alive that they point to."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def gradient(self, kind: str, tensor: Tensor | None) -> Tensor | None:
        """Where the gradient of a step's tensor goes; None if it is not needed, as in a forward pass."""
        return None

    def keep(self, thing: Any) -> Any:
        """Keep something alive as long as this packer."""
        self._kept.append(thing)
        return thing

    def strided(self, tensor: Tensor | None) -> Strided:
        """A tensor with four axes, whose axes of size 1 are broadcast; None for none."""
        if tensor is None:
            return Strided()
        self._kept.append(tensor)
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return Strided(tensor.data_ptr(), *strides, DTYPES.get(tensor.dtype, 0))

    def _strided_all(self, step: Step, count: int) -> list[Strided]:
        """The tensors of a step, and nothing in place of those that are missing."""
        tensors = step.tensors()
        return [self.strided(tensor) for tensor in tensors] + [Strided()] * (count - len(tensors))

    def pointer(self, tensor: Tensor | None, dtype: torch.dtype) -> int | None:
        """The address of a tensor's elements in a dtype, contiguous."""
        return None if tensor is None else self.keep(tensor.to(dtype).contiguous()).data_ptr()

    def array(self, cls: type[ctypes.Structure], items: list[Any]) -> Any:
        """Structures as an array; None for none."""
        return self.keep((cls * len(items))(*items)) if items else None

    def matrix(self, request: AttentionRequest) -> Matrix:
        """What a weight matrix is made from."""
        batch, heads, queries, keys = request.shape
        self._kept.append(request)
        place, mask = request.place, request.mask
        steps = request.score.steps(place)
        assert steps is not None
        scores = [self._score_step(step) for step in steps[1:]]  # the first is the dot product
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
            mask=MaskSteps() if mask is None else self.mask(mask.steps(place) or ()),
            score_steps=len(scores),
            scores=self.array(ScoreStep, scores),
            sinks=self.pointer(request.score.sinks, torch.float32),
        )

    def mask(self, steps: Iterable[Step]) -> MaskSteps:
        """A mask."""
        packed: list[MaskStep] = []
        for step in steps:
            limits = [UNLIMITED if number is None else number for number in (*step.numbers, 0, 0)[:2]]
            packed.append(MaskStep(MASK_KINDS[step.kind], *limits, *self._strided_all(step, 2)))
        return MaskSteps(len(packed), self.array(MaskStep, packed))

    def _score_step(self, step: Step) -> ScoreStep:
        kind = SCORE_KINDS[step.kind]
        if kind == ScoreKind.SOFT_CAP:
            return ScoreStep(kind, cap=step.numbers[0])
        (values,) = step.tensors()
        assert values is not None
        packed = ScoreStep(kind, shift=step.numbers[0] if step.numbers else 0)
        packed.values = self.strided(values.contiguous() if kind == ScoreKind.ADD_DISTANCES else values)
        gradient = self.gradient(step.kind, values)
        if gradient is not None:
            batch, heads = gradient.shape[:2]
            packed.gradient = gradient.data_ptr()
            packed.gradient_batch = 0 if batch == 1 else gradient.stride(0)
            packed.gradient_head = 0 if heads == 1 else gradient.stride(1)
        return packed

    def measure(
        self, step: Step, results: list[Tensor], request: AttentionRequest, chunks: int
    ) -> Iterator[MeasureCall]:
        """A measure whose results go to these tensors."""
        if step.kind in ("received", "transposed"):
            yield from self._columns(step, results[0], request, chunks)
            return
        height, width = results[0].shape[-2:]
        values, row_groups, key_groups = self._strided_all(step, 3)
        yield MeasureCall(
            MEASURE_KINDS[step.kind],
            number=step.numbers[0] if step.numbers else 0,
            height=height,
            width=width,
            values=values,
            row_groups=row_groups,
            key_groups=key_groups,
            mask=MaskSteps() if step.mask is None else self.mask(step.mask),
            other=None if step.other is None else ctypes.pointer(self.keep(self.matrix(step.other))),
            result=results[0].data_ptr(),
            second=results[1].data_ptr() if len(results) > 1 else None,
        )

    def _columns(self, step: Step, result: Tensor, request: AttentionRequest, chunks: int) -> Iterator[MeasureCall]:
        """Sums over rows; a few columns are one call each."""
        (rows,) = step.tensors()
        columns = 1 if rows is None else rows.shape[3]
        if columns > MAX_SEPARATE_COLUMNS:
            assert rows is not None
            rows = rows if rows.dtype in DTYPES else rows.to(torch.float32)
            yield self._column(MeasureKind.TRANSPOSED, rows, result.data_ptr(), columns, columns, request, chunks)
            return
        gradient, rows = self.gradient(step.kind, rows), None if rows is None else rows.to(torch.float32)
        for c in range(columns):
            column, address = None if rows is None else rows[..., c : c + 1], result.data_ptr() + 4 * c
            call = self._column(MeasureKind.RECEIVED, column, address, 1, columns, request, chunks)
            call.values_gradient = None if gradient is None else gradient.data_ptr() + 4 * c
            yield call

    def _column(
        self,
        kind: int,
        rows: Tensor | None,
        address: int,
        width: int,
        stride: int,
        request: AttentionRequest,
        chunks: int,
    ) -> MeasureCall:
        """The sums of the rows, each times `width` numbers; without any, times 1."""
        batch, heads, _, keys = request.shape
        by_chunk, values = None, self.strided(rows)
        if chunks > 1:
            sums = request.query.new_empty(batch, heads, chunks, keys, width, dtype=torch.float32)
            by_chunk = self.keep(sums).data_ptr()
        return MeasureCall(kind, width=width, values=values, result=address, by_chunk=by_chunk, stride=stride)


def unsupported_request(request: AttentionRequest) -> list[str]:
    """Why the mask or the score of a matrix cannot be computed."""
    place, reasons = request.place, []
    if request.mask is not None:
        reasons += _unsupported_mask(request.mask, request.mask.steps(place))
    steps = request.score.steps(place)
    reasons += _unsupported_kinds(request.score, steps, KINDS[Score])
    if steps is not None and steps[0].kind != "dot_product":
        reasons.append(_not_a_biased_product(request.score))
    num_relative = 0
    for step in steps or ():
        num_relative += step.kind == "add_relative"
    return [*reasons, "it supports one RelativeKey in a score"] if num_relative > 1 else reasons


def unsupported_measure(measure: Measure, place: Place) -> list[str]:
    """Why a measure cannot be computed."""
    steps = measure.steps(place)
    reasons = _unsupported_kinds(measure, steps, KINDS[Measure])
    for step in steps or ():
        if step.kind == "topk" and step.numbers[0] > MAX_TOPK:
            reasons.append(f"it finds up to {MAX_TOPK} keys, not {step.numbers[0]}")
        if step.mask is not None:
            reasons += _unsupported_mask(measure, step.mask)
        if step.other is not None:
            reasons += unsupported_request(step.other)
            dtypes = {step.other.query.dtype, step.other.key.dtype}
            reasons += [f"it does not support {dtype}" for dtype in dtypes if dtype not in DTYPES]
    return reasons


def _unsupported_mask(rule: Rule, steps: list[Step] | None) -> list[str]:
    reasons, depth = _unsupported_kinds(rule, steps, KINDS[Mask]), 0
    for step in steps or ():
        depth += _DEPTH_CHANGES.get(step.kind, 1)
        if depth > MAX_MASK_DEPTH:
            return [*reasons, f"it supports masks combined up to {MAX_MASK_DEPTH} deep"]
    return reasons


_DEPTH_CHANGES = {"and": -1, "or": -1, "not": 0}
"""How many masks a step adds to those that are remembered, where that is not 1."""


def _unsupported_kinds(rule: Rule, steps: list[Step] | None, kinds: frozenset[str]) -> list[str]:
    """A reason for each step of another kind, or for each rule that has no steps."""
    reasons: list[str] = []
    for step in steps or ():
        if step.kind not in kinds:
            reasons.append(f"it has no step '{step.kind}' of the {rule.base.__name__.lower()} {type(rule).__name__}")
    if steps is not None:
        return reasons
    reasons = [
        f"it does not support the {part.base.__name__.lower()} {type(part).__name__}"
        for part in subtrees(rule)
        if isinstance(part, Rule) and not has_steps(type(part))
    ]
    return reasons or [_not_a_biased_product(rule) if isinstance(rule, Score) else f"it does not support {rule!r}"]


def _not_a_biased_product(score: Rule) -> str:
    return f"it adds biases to one ScaledDotProduct, the score is {score!r}"
