"""Write a call as the structures of `library`, from the steps of its rules; and which steps the library has."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.native.library import (
    DTYPES,
    MaskKind,
    MaskStep,
    MaskSteps,
    MeasureCall,
    MeasureKind,
    NativeMatrix,
    ScoreKind,
    ScoreStep,
    Strided,
    strided,
)
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.step_support import StepSupport
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.rules import Rule
from regard.ops.scores import Score
from regard.ops.steps import Step

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

_array_type = lru_cache(maxsize=64)(operator.mul)
"""The type of an array of structures, which ctypes makes anew once nobody holds it."""

SUPPORT = StepSupport(KINDS, frozenset(DTYPES), MAX_TOPK, MAX_MASK_DEPTH, max_mask_steps=2**31)


class Packer:
    """Writes structures, and keeps the tensors alive that they point to, except those of the inputs.

    Attributes:
        kept: What follows from the rules.
        scratch: Memory that the library writes to and nobody reads afterwards.
    """

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.scratch: list[Tensor] = []

    def gradient(self, kind: str, tensor: Tensor | None) -> Tensor | None:
        """Where the gradient of a step's tensor goes; None if it is not needed, as in a forward pass."""
        return None

    def keep(self, thing: Any) -> Any:
        """Keep something alive as long as this packer."""
        self.kept.append(thing)
        return thing

    def strided(self, tensor: Tensor | None) -> Strided:
        """A tensor with four axes, whose axes of size 1 are broadcast; None for none."""
        if tensor is None:
            return Strided()
        self.kept.append(tensor)
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return Strided(tensor.data_ptr(), *strides, DTYPES.get(tensor.dtype, 0))

    def tensors(self, step: Step) -> Iterator[Strided]:
        """The tensors of a step; what a structure has beyond them stays zero."""
        return map(self.strided, step.tensors())

    def pointer(self, tensor: Tensor | None, dtype: torch.dtype) -> int | None:
        """The address of a tensor's elements in a dtype, contiguous."""
        return None if tensor is None else self.keep(tensor.to(dtype).contiguous()).data_ptr()

    def array(self, cls: type[ctypes.Structure], items: list[Any]) -> Any:
        """Structures as an array; None for none."""
        return self.keep(_array_type(cls, len(items))(*items)) if items else None

    def matrix(self, inputs: KernelInputs) -> NativeMatrix:
        """What a weight matrix is made from."""
        request, steps = inputs.request, inputs.steps
        batch, heads, queries, keys = request.shape
        assert steps.score is not None
        scores, sinks = [*map(self._score_step, steps.score[1:])], request.score.sinks  # the first is the dot product
        matrix = NativeMatrix(
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
            score_steps=len(scores),
            scores=self.array(ScoreStep, scores) if scores else None,
            sinks=None if sinks is None else self.pointer(sinks, torch.float32),
        )
        if steps.mask:
            matrix.mask = self.mask(steps.mask)
        if request.full_shape is not None:  # a part of the matrix
            matrix.batch_index = self.pointer(request.batch, torch.int64)
            matrix.head_index = self.pointer(request.heads, torch.int64)
            matrix.row_index = self.pointer(request.rows, torch.int64)
        return matrix

    def mask(self, steps: Iterable[Step]) -> MaskSteps:
        """A mask."""
        packed: list[MaskStep] = []
        for step in steps:
            first, second = (*step.numbers, 0, 0)[:2]
            first, second = UNLIMITED if first is None else first, UNLIMITED if second is None else second
            packed.append(MaskStep(MASK_KINDS[step.kind], first, second, *self.tensors(step)))
        return MaskSteps(len(packed), self.array(MaskStep, packed))

    def _score_step(self, step: Step) -> ScoreStep:
        kind = SCORE_KINDS[step.kind]
        if kind == ScoreKind.SOFT_CAP:
            return ScoreStep(kind, cap=step.numbers[0])
        (values,) = step.tensors()
        assert values is not None
        packed = ScoreStep(kind, shift=step.numbers[0] if step.numbers else 0)
        is_readable = kind == ScoreKind.ADD_BIAS or values.stride(3) == 1
        packed.values = self.strided(values if is_readable else values.contiguous())
        gradient = self.gradient(step.kind, values)
        if gradient is not None:
            batch, heads = gradient.shape[:2]
            packed.gradient = gradient.data_ptr()
            packed.gradient_batch = 0 if batch == 1 else gradient.stride(0)
            packed.gradient_head = 0 if heads == 1 else gradient.stride(1)
        return packed

    def measure(self, step: Step, results: list[Tensor], chunks: int) -> list[MeasureCall]:
        """A measure whose results go to these tensors."""
        if step.kind in ("received", "transposed"):
            return [*self._columns(step, results[0], chunks)]
        height, width = results[0].shape[-2:]
        call = MeasureCall(
            MEASURE_KINDS[step.kind],
            number=step.numbers[0] if step.numbers else 0,
            height=height,
            width=width,
            result=results[0].data_ptr(),
            second=results[1].data_ptr() if len(results) > 1 else None,
        )
        for name, tensor in zip(("values", "row_groups", "key_groups"), self.tensors(step), strict=False):
            setattr(call, name, tensor)
        if step.mask is not None:
            call.mask = self.mask(step.mask)
        if step.other is not None:
            call.other = ctypes.pointer(self.keep(self.matrix(KernelInputs(None, step.other, {}))))
        return [call]

    def _columns(self, step: Step, result: Tensor, chunks: int) -> Iterator[MeasureCall]:
        """Sums over rows; a few columns are one call each."""
        (rows,) = step.tensors()
        columns = 1 if rows is None else rows.shape[3]
        if columns > MAX_SEPARATE_COLUMNS:
            assert rows is not None
            rows = rows if rows.dtype in DTYPES else rows.to(torch.float32)
            yield self._column(MeasureKind.TRANSPOSED, rows, result, 0, columns, columns, chunks)
            return
        gradient, rows = self.gradient(step.kind, rows), None if rows is None else rows.to(torch.float32)
        for c in range(columns):
            column = None if rows is None else rows[..., c : c + 1]
            call = self._column(MeasureKind.RECEIVED, column, result, c, 1, columns, chunks)
            call.values_gradient = None if gradient is None else gradient.data_ptr() + 4 * c
            yield call

    def _column(
        self, kind: int, rows: Tensor | None, result: Tensor, column: int, width: int, columns: int, chunks: int
    ) -> MeasureCall:
        """The sums of the rows, each times `width` numbers (without any, 1), from a column of `result` on."""
        by_chunk = None
        if chunks > 1:
            batch, heads, keys = result.shape[:3]
            self.scratch.append(result.new_empty(batch, heads, chunks, keys, width))
            by_chunk = self.scratch[-1].data_ptr()
        address = result.data_ptr() + 4 * column
        return MeasureCall(
            kind, width=width, values=self.strided(rows), result=address, by_chunk=by_chunk, stride=columns
        )
