"""Trace: attention step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor

from regard.errors import short_repr


@dataclass(frozen=True, eq=False)
class Step:
    """One intermediate result.

    Args:
        name: Its name.
        formula: How it follows from the steps before.
        axes: Names of its axes.
        value: The result.
        labels: For each axis the names of its entries; None numbers them.
        explanation: What the step does and why, in a sentence or two; empty if the formula says it.
    """

    name: str
    formula: str
    axes: tuple[str, ...]
    value: Tensor
    labels: tuple[tuple[str, ...] | None, ...]
    explanation: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """All steps of one attention layer.

    Args:
        title: What was traced.
        steps: The steps in order.
        layer: The name of the layer in its model; empty if it is in none.
        layers: The names of all attention layers of the model.

    Examples:
        >>> import regard
        >>> trace = regard.trace()
        >>> trace["scaled scores"].shape
        torch.Size([1, 4, 4])
        >>> trace.names
        ('input', 'W_Q', 'W_K', 'W_V', 'query', 'key', 'value', 'scores', 'scaled scores', 'exponentials', 'sums',
        'weights', 'weighted values', 'output')
    """

    title: str
    steps: tuple[Step, ...]
    layer: str = ""
    layers: tuple[str, ...] = ()

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
        raise KeyError(f"no step is called {short_repr(name)}; there are {', '.join(self.names)}")

    def to_json(self, indent: int | None = None) -> str:
        """Every step with all its elements; −∞ and NaN are null."""
        steps = [
            {"name": step.name, "formula": step.formula, "explanation": step.explanation}
            | {"axes": step.axes, "labels": step.labels}
            | {"shape": tuple(step.value.shape), "value": _finite(step.value.tolist())}
            for step in self.steps
        ]
        return json.dumps({"title": self.title, "steps": steps}, indent=indent, ensure_ascii=False)


class TraceBuilder:
    """Collects the steps of a trace.

    Args:
        **names: Names of the entries of an axis, as ``query=("the", "cat")``; None, or a missing axis, numbers them.
    """

    def __init__(self, **names: Sequence[str] | None) -> None:
        self.steps: list[Step] = []
        self._names = {axis: None if labels is None else tuple(map(str, labels)) for axis, labels in names.items()}

    def name(self, axis: str, labels: Sequence[str]) -> None:
        """Name the entries of an axis of the steps to come."""
        self._names[axis] = tuple(map(str, labels))

    def add(self, name: str, formula: str, axes: str, value: Tensor, explanation: str = "") -> Tensor:
        """Add a step, whose axes are words separated by spaces, and return its value."""
        names, value = tuple(axes.split()), value.detach()
        self.steps.append(Step(name, formula, names, value, tuple(map(self._names.get, names)), explanation))
        return value


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if isfinite(value) else None
