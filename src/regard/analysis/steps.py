"""A calculation of attention, kept step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from regard.ops.masks import MaskLike, to_dense

MOST = 10**6
"""How many numbers the largest step may have: this is for looking at, and its size is tokens² · heads · head_dim."""


@dataclass(frozen=True, eq=False)
class Step:
    """One intermediate result.

    Args:
        name: What it is called, in the field's words.
        formula: How it follows from those before it.
        axes: What its axes are.
        value: Its numbers.
        labels: For each axis what its entries are called; None numbers them.
    """

    name: str
    formula: str
    axes: tuple[str, ...]
    value: Tensor
    labels: tuple[tuple[str, ...] | None, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one attention layer.

    Args:
        title: What was traced.
        steps: In the order of the calculation.

    Example:
        >>> import regard
        >>> trace = regard.trace()
        >>> trace["scaled scores"].shape
        torch.Size([1, 4, 4])
        >>> trace.names
        ('input', 'W_Q', 'W_K', 'W_V', 'query', 'key', 'value', 'scores', 'scaled scores', 'weights', 'weighted values',
        'output')
    """

    title: str
    steps: tuple[Step, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps."""
        return tuple(step.name for step in self.steps)

    def __repr__(self) -> str:
        steps = ", ".join(f"{step.name} {tuple(step.value.shape)}" for step in self.steps)
        return f"Trace({self.title!r}: {steps})"

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __getitem__(self, name: str) -> Tensor:
        for step in self.steps:
            if step.name == name:
                return step.value
        raise KeyError(f"no step is called {name!r}; there are {', '.join(self.names)}")

    def to_json(self, indent: int | None = None) -> str:
        """Every step with all its numbers; −∞ and what is no number are null."""
        steps = [
            {"name": step.name, "formula": step.formula, "axes": step.axes, "labels": step.labels}
            | {"shape": tuple(step.value.shape), "value": _finite(step.value.tolist())}
            for step in self.steps
        ]
        return json.dumps({"title": self.title, "steps": steps}, indent=indent, ensure_ascii=False)


class Calculation:
    """Steps as they are added, each of whose axes ``query`` and ``key`` gets the names of its tokens.

    Args:
        queries: What the queries are called; None numbers them.
        keys: What the keys are called.
    """

    def __init__(self, queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
        self.steps: list[Step] = []
        self._names = {
            axis: None if names is None else tuple(map(str, names))
            for axis, names in (("query", queries), ("key", keys))
        }

    def add(self, name: str, formula: str, axes: str, value: Tensor) -> Tensor:
        """Keep a step, whose axes are words with a space between them, and give its value."""
        names = tuple(axes.split())
        self.steps.append(Step(name, formula, names, value, tuple(map(self._names.get, names))))
        return value

    def weigh(self, scores: Tensor, mask: MaskLike | None) -> Tensor:
        """Add what makes weights of scores (heads, queries, keys): the mask, if there is one, and the softmax.

        Raises:
            InvalidArgument: If the mask does not fit.
        """
        if mask is not None:
            heads, queries, keys = scores.shape
            shape = (1, heads, queries, keys)
            allowed = to_dense(mask, shape, device=scores.device)[0]
            self.add("mask", "1 where the query may attend to the key", "head query key", allowed.double())
            hidden = scores.masked_fill(~allowed, -torch.inf)
            scores = self.add("masked scores", "−∞ where the mask is 0", "head query key", hidden)
        unseen = (scores == -torch.inf).all(-1, keepdim=True)
        shares = scores.softmax(-1).masked_fill(unseen, 0.0)  # a row with no key has no softmax; its weights are 0
        return self.add("weights", "P = softmax of each row", "head query key", shares)


def size_objections(**sizes: int) -> list[str]:
    """Say that a step with these axes would be too large to look at."""
    largest = prod(sizes.values())
    if largest <= MOST:
        return []
    product = " × ".join(f"{size} {axis}" for axis, size in sizes.items())
    came = f"the largest step would be {product} = {largest:,} numbers, more than {MOST:,}"
    return [f"{came}: trace a shorter sequence, or ask regard.weights(...) for parts"]


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if isfinite(value) else None
