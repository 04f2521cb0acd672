"""How what a measure says of blocks becomes what it says of the whole matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.kernels.blocks import Place
from regard.ops.measures import Measure, Shape

_AXES = {"queries": (0, 1, 2), "keys": (0, 1, 3), None: (0, 1)}
"""Which axes of the matrix an answer starts with, by what the measure's axis says."""


class Answers:
    """Takes the answers of blocks, and gives whole ones in the form in which the measures gave theirs.

    Args:
        measures: What is asked, by name.
        shape: The shape of the matrix.
    """

    def __init__(self, measures: Mapping[str, Measure], shape: Shape) -> None:
        self.measures, self.shape = measures, shape
        self._wholes: dict[str, list[Tensor]] = {}
        self._kinds: dict[str, type] = {}

    def add(self, name: str, answer: Any, place: Place) -> None:
        """Take what a measure says of the block at a place."""
        measure = self.measures[name]
        parts = parts_of(name, measure, answer, place)
        if name not in self._wholes:
            self._kinds[name] = type(answer)
            self._wholes[name] = [part.new_zeros(self._whole_shape(measure, part)) for part in parts]
        at = entries(measure, place)
        for whole, part in zip(self._wholes[name], parts, strict=True):
            if measure.axis == "queries":
                whole[at] = part
            else:
                whole[at] += part

    def tensors(self) -> list[Tensor]:
        """All whole answers in a row."""
        return [whole for wholes in self._wholes.values() for whole in wholes]

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The same row of tensors as answers by name."""
        row = iter(tensors)
        return {name: _as_given(self._kinds[name], [next(row) for _ in self._wholes[name]]) for name in self._wholes}

    def _whole_shape(self, measure: Measure, part: Tensor) -> tuple[int, ...]:
        batch, heads, queries, keys = self.shape
        if measure.axis is None:
            return (batch, heads, *part.shape[2:])
        return (batch, heads, queries if measure.axis == "queries" else keys, *part.shape[3:])


def parts_of(name: str, measure: Measure, answer: Any, place: Place) -> tuple[Tensor, ...]:
    """The tensors of a block's answer.

    Raises:
        InvalidArgument: If they are none, or have not the shape that the measure's axis says.
    """
    parts = answer if isinstance(answer, tuple) else (answer,)
    if measure.axis not in _AXES:
        raise InvalidArgument(f"measure '{name}': axis must be 'queries', 'keys' or None, but is {measure.axis!r}")
    start = tuple(at.stop - at.start for at in entries(measure, place))
    for part in parts:
        if not isinstance(part, Tensor):
            raise InvalidArgument(
                f"measure '{name}': of() must give a tensor or several, but gave {type(part).__name__}"
            )
        if tuple(part.shape[: len(start)]) != start:
            raise InvalidArgument(
                f"measure '{name}': with axis = {measure.axis!r}, what of() gives of this block must start with the "
                f"axes ({', '.join(('batch', 'heads', str(measure.axis))[: len(start)])}) = {start}, but has the shape "
                f"{tuple(part.shape)}"
            )
    return parts


def entries(measure: Measure, place: Place) -> tuple[slice, ...]:
    """Which entries of the whole answer a block's answer is, or is added to."""
    index = place.index
    return tuple(index[axis] for axis in _AXES[measure.axis])


def _as_given(kind: type, parts: list[Tensor]) -> Any:
    if not issubclass(kind, tuple):
        return parts[0]
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)  # pyright: ignore[reportAttributeAccessIssue]
