"""How what a measure says of blocks becomes what it says of the whole matrix."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.kernels.blocks import Place
from regard.ops.measures import Entries, Measure, Shape
from regard.ops.tile import entries_in


class Answers:
    """Takes the answers of blocks, and gives whole ones in the form in which the measures gave theirs.

    Args:
        measures: What is asked, by name.
        shape: The shape of the matrix.
        forms: Where it is noted in which form each measure gave its answer: the type, and of how many tensors.
    """

    def __init__(
        self, measures: Mapping[str, Measure], shape: Shape, forms: dict[str, tuple[type, int]] | None = None
    ) -> None:
        self.measures, self.shape = measures, shape
        self.forms = {} if forms is None else forms
        self._wholes: dict[str, list[Tensor]] = {}
        self._making = threading.Lock()

    def add(self, name: str, answer: Any, place: Place) -> None:
        """Take what a measure says of the block at a place."""
        measure = self.measures[name]
        at = measure.entries(place.index, self.shape)
        parts = parts_of(name, measure, answer, at)
        if name not in self._wholes:
            with self._making:
                self._make(name, answer, parts)
        for whole, part in zip(self._wholes[name], parts, strict=True):
            if measure.axis == "queries":
                whole[at] = part
            else:
                whole[at] += part

    def _make(self, name: str, answer: Any, parts: tuple[Tensor, ...]) -> None:
        """Make the whole answers that parts are parts of, if no other thread did."""
        if name not in self._wholes:
            axes = self.measures[name].whole(self.shape)
            self.forms[name] = type(answer), len(parts)
            self._wholes[name] = [part.new_zeros(*axes, *part.shape[len(axes) :]) for part in parts]

    def tensors(self) -> list[Tensor]:
        """All whole answers in a row."""
        return [whole for wholes in self._wholes.values() for whole in wholes]

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The same row of tensors as answers by name."""
        row = iter(tensors)
        return {name: _as_given(kind, [next(row) for _ in range(count)]) for name, (kind, count) in self.forms.items()}


def parts_of(name: str, measure: Measure, answer: Any, entries: Entries) -> tuple[Tensor, ...]:
    """The tensors of a block's answer, which is about these entries of the whole.

    Raises:
        InvalidArgument: If they are none, or have not the shape that the measure's axis says.
    """
    parts = answer if isinstance(answer, tuple) else (answer,)
    start = tuple([entries_in(at) for at in entries])
    for part in parts:
        if not isinstance(part, Tensor):
            raise InvalidArgument(
                f"measure '{name}': of() must give a tensor or several, but gave {type(part).__name__}"
            )
        if part.shape[: len(start)] != start:
            raise InvalidArgument(
                f"measure '{name}': with axis = {measure.axis!r}, what of() gives of this block must start with the "
                f"axes ({', '.join(('batch', 'heads', str(measure.axis))[: len(start)])}) = {start}, but has the shape "
                f"{tuple(part.shape)}"
            )
    return parts


def _as_given(kind: type, parts: list[Tensor]) -> Any:
    if not issubclass(kind, tuple):
        return parts[0]
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)  # pyright: ignore[reportAttributeAccessIssue]
