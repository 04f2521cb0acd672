"""The numbers that the page of a trace contains, and how they are packed."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.tracing.steps import exponentials

if TYPE_CHECKING:
    from regard.explore.trace_selection import TraceSelection
    from regard.tracing.trace import Trace

MAX_BYTES = 1_500_000
"""Size of the packed numbers up to which a page contains all heads and queries."""
MAX_FEATURES = 64
"""Features that a page contains if one head and one query are larger than that."""
UNIT = 10_000
"""Weights are packed as integers, in ten-thousandths: the page shows four decimals."""
NOT_ON_PAGE = ("weighted values", "heads joined")
"""Steps that the page computes from others, or does not show."""


@dataclass(frozen=True)
class TraceNumbers:
    """Steps of a trace by name, in float32.

    Args:
        steps: Names of the axes, and values.
        num_heads: Number of heads of the layer; keys and values can have fewer.
        has_heads: Whether there are all heads, or only one.
        has_queries: Whether there are all queries, or only one.
    """

    steps: Mapping[str, tuple[tuple[str, ...], Tensor]]
    num_heads: int
    has_heads: bool = True
    has_queries: bool = True

    def __contains__(self, name: str) -> bool:
        return name in self.steps

    def values(self, source: str, index: Mapping[str, int], axis: str = "") -> Tensor:
        """Evaluate steps in float64: all entries of an axis, or one number.

        Args:
            source: A step, a product of steps such as ``"weights*value"``, or a sum of products.
            index: The entry of each axis, as ``{"head": 2, "query": 8}``.
            axis: The axis whose entries are returned. Default: none.
        """
        terms = [[self._look_up(name, index, axis) for name in term.split("*")] for term in source.split("+")]
        return sum((prod(factors[1:], start=factors[0]) for factors in terms), torch.zeros(()).double())

    def size(self, source: str, axis: str) -> int:
        """Number of entries of an axis."""
        steps = [self.steps[name] for name in re.split(r"[+*]", source)]
        return next(value.shape[axes.index(axis)] for axes, value in steps if axis in axes)

    def _look_up(self, name: str, index: Mapping[str, int], axis: str) -> Tensor:
        axes, value = self.steps[name]
        for own, size in zip(axes, value.shape, strict=True):
            value = value.movedim(0, -1) if own == axis else value[self._entry(own, index[own], size)]
        return value.double()

    def _entry(self, axis: str, entry: int, size: int) -> int:
        """The entry of an axis that may be shared by several heads, or of which there is only the chosen one."""
        return entry * size // self.num_heads if axis == "head" else 0 if size == 1 else entry

    def narrow(self, axis: str, start: int, count: int, *, skip: str = "") -> TraceNumbers:
        """Those of some entries of an axis only, in all steps but one."""
        steps = {}
        for name, (axes, value) in self.steps.items():
            if axis in axes and name != skip:
                own = axes.index(axis)
                first = self._entry(axis, start, value.shape[own])
                value = value.narrow(own, first, min(count, value.shape[own] - first))
            steps[name] = (axes, value)
        return replace(self, steps=steps)

    @property
    def packed_size(self) -> int:
        """Size of the numbers on the page, in bytes of base64."""
        return sum(len(entry["data"]) for entry in self.pack().values())

    def pack(self) -> dict[str, Any]:
        """The steps for JSON: axes, shape, type, and the numbers in base64."""
        return {
            name: {"axes": axes, "shape": tuple(value.shape), **_pack(name, value)}
            for name, (axes, value) in self.steps.items()
        }


def page_numbers(trace: Trace, selection: TraceSelection) -> TraceNumbers:
    """The numbers of a page: all heads and queries; if these are too large, one head; then also one query."""
    numbers = TraceNumbers(_page_steps(trace), len(trace["weights"]))
    if numbers.packed_size > MAX_BYTES:
        numbers = replace(numbers.narrow("head", selection.head, 1), has_heads=False)
    if numbers.packed_size > MAX_BYTES:
        numbers = numbers.narrow("query", selection.query, 1)
        numbers = numbers.narrow("token", selection.query, 1, skip="input")  # keys are computed from it
        numbers = replace(numbers, has_queries=False)
    if numbers.packed_size > MAX_BYTES:
        numbers = numbers.narrow("feature", 0, MAX_FEATURES)
    return numbers


def _page_steps(trace: Trace) -> dict[str, tuple[tuple[str, ...], Tensor]]:
    steps = {step.name: (step.axes, step.value) for step in trace if step.name not in NOT_ON_PAGE}
    if "exponentials" not in steps:
        scores = trace["masked scores" if "masked scores" in trace else "scaled scores"]
        powers = exponentials(scores)
        steps |= {"exponentials": (("head", "query", "key"), powers), "sums": (("head", "query"), powers.sum(-1))}
    steps["sum of weights"] = (("head", "query"), trace["weights"].sum(-1))
    if "W_O" in trace:
        heads = trace["sum of weighted values"]  # (head, query, dim)
        by_head = trace["W_O"].unflatten(0, (heads.shape[0], heads.shape[2]))  # (head, dim, feature)
        steps["W_O"] = (("head", "dim", "feature"), by_head)
        steps["part of the head"] = (("head", "query", "feature"), heads @ by_head)
    rounded = {
        name: (axes, (value * UNIT).round() / UNIT if _is_matrix(name) else value)
        for name, (axes, value) in steps.items()
    }
    return {name: (axes, value.float()) for name, (axes, value) in rounded.items()}


def _is_matrix(name: str) -> bool:
    """Whether a step is a matrix of weights: large, and shown but not multiplied by the page."""
    return name.startswith("W_")


def _pack(name: str, value: Tensor) -> dict[str, str]:
    """Numbers as base64: int16 in ten-thousandths, or float32."""
    units = (value.double() * UNIT).round()
    if _is_matrix(name) and units.abs().max() < 2**15:
        return {"type": "int16", "data": _base64(units.to(torch.int16))}
    return {"type": "float32", "data": _base64(value)}


def _base64(value: Tensor) -> str:
    array = value.contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")
