"""The batch axis of a layer of several windows, images or tiles, as the fields of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from regard.checks import Checks
from regard.errors import short_repr
from regard.recordings.batch_axis import BatchAxis, Windows


def axis_fields(axis: BatchAxis) -> dict[str, Any]:
    """The fields of the axis of a layer whose entries all belong to one sequence."""
    return {
        "unit": axis.unit,
        "places": axis.places,
        "windows": None if axis.windows is None else asdict(axis.windows),
    }


def axis_from(fields: Any, shape: Sequence[int], layer: str) -> BatchAxis:
    """The axis that was written.

    Args:
        fields: Its fields.
        shape: (batch, heads, queries, keys) of the layer.
        layer: The name of the layer, for messages.

    Raises:
        InvalidArgument: If they do not fit the layer.
        InvalidType: If they have other types.
    """
    where, (batch, _, queries, keys) = f"layer {short_repr(layer)}: batch_axis", shape
    names = {"unit", "places", "windows"}
    with Checks() as checks:
        if not isinstance(fields, Mapping) or set(fields) != names:
            checks.fail_type(f"{where}: expected {', '.join(sorted(names))}, got {short_repr(fields)}")
    unit, places, cut = fields["unit"], fields["places"], fields["windows"]
    with Checks() as checks:
        is_known = isinstance(unit, str) and unit not in ("", "unknown")
        checks.that(is_known, f"{where}: unit: expected what an entry is, got {short_repr(unit)}")
        are_names = isinstance(places, tuple) and all(isinstance(place, str) for place in places)
        if not are_names or len(places) != batch:
            checks.fail(f"{where}: places: expected a place for each of {batch} entries, got {short_repr(places)}")
        if cut is not None:
            sizes = cut if isinstance(cut, Mapping) and set(cut) == {"height", "width", "size", "shift"} else None
            are_sizes = sizes is not None and all(type(each) is int and each >= 0 for each in sizes.values())
            windows = Windows(**sizes) if sizes is not None and are_sizes and sizes["size"] else None
            is_cut = windows is not None and windows.count > 0 and batch % windows.count == 0
            if windows is None or not is_cut or not queries == keys == windows.size**2:
                checks.fail(
                    f"{where}: windows: expected height, width, size and shift of {batch} windows of {keys} tokens, "
                    f"got {short_repr(cut)}"
                )
    return BatchAxis(unit, (0,) * batch, 1, places, None if cut is None else Windows(**cut))
