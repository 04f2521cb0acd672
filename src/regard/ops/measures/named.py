"""Measures by name, and what a user may give for `measure=`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard.errors import InvalidArgument, InvalidType, did_you_mean, raise_problems
from regard.ops.measures.base import Measure
from regard.ops.measures.distance import Diagonal, DistanceHistogram, MeanDistance
from regard.ops.measures.entropy import Entropy, LogSumExp, Max
from regard.ops.measures.mass import Mass
from regard.ops.measures.pooling import BlockMean, GroupPool
from regard.ops.measures.received import Received
from regard.ops.measures.topk import TopK
from regard.ops.tree import tensors_out_of_reach

MEASURES: dict[str, type[Measure]] = {
    "block_mean": BlockMean,
    "distance_histogram": DistanceHistogram,
    "diagonal": Diagonal,
    "entropy": Entropy,
    "group_pool": GroupPool,
    "lse": LogSumExp,
    "mass": Mass,
    "max": Max,
    "mean_distance": MeanDistance,
    "received": Received,
    "topk": TopK,
}
"""What `measure=` knows by name."""

_EXAMPLES = {
    "block_mean": "BlockMean(64)",
    "distance_histogram": "DistanceHistogram(16)",
    "diagonal": "Diagonal(-1)",
    "group_pool": "GroupPool(query_groups, key_groups)",
    "mass": "Mass(mask)",
    "topk": "TopK(8)",
}
"""Those that need to be told more than their name."""

MeasureLike = str | Measure | Sequence[str | Measure] | Mapping[str, str | Measure]


def as_measures(asked: MeasureLike) -> dict[str, Measure]:
    """Measures by their name, from what a user gave: a name, a measure, several of them, or a dict that renames them.

    Raises:
        InvalidArgument: If a name is unknown, needs an argument, or comes twice.
        InvalidType: If something is neither a name nor a measure.
    """
    if isinstance(asked, tuple) and not asked:  # as in a call that asks nothing: no time is spent on it
        return {}
    if isinstance(asked, (str, Measure)):
        asked = [asked]
    if not isinstance(asked, (Mapping, Sequence)):
        raise InvalidType(
            f"measure: expected a name, a Measure, several or a dict, got {type(asked).__name__} {asked!r}"
        )
    named = list(asked.items()) if isinstance(asked, Mapping) else [(None, each) for each in asked]
    found: dict[str, Measure] = {}
    wrong: list[str] = []
    for name, each in named:
        measure = _by_name(each, wrong) if isinstance(each, str) else each
        if measure is None:
            continue
        if name is not None and not isinstance(name, str):
            raise InvalidType(f"measure: the names that a dict gives are texts, but there is {name!r}")
        if isinstance(measure, type) and issubclass(measure, Measure):
            raise InvalidType(f"measure: got the class {measure.__name__}; make one of it: {measure.__name__}(...)")
        if not isinstance(measure, Measure):
            raise InvalidType(f"measure: expected a name or a Measure, got {type(each).__name__} {each!r}")
        lost = tensors_out_of_reach(measure)
        if lost:
            wrong.append(
                f"measure: {type(measure).__name__} holds {', '.join(lost)}, which would get no gradient: make the "
                "class a dataclass with such tensors as fields"
            )
        name = name or measure.name
        if measure.axis not in ("queries", "keys", None):
            wrong.append(f"measure '{name}': axis must be 'queries', 'keys' or None, but is {measure.axis!r}")
        if name in found:
            wrong.append(f"measure: '{name}' is asked for twice; give a dict to name each, as {{'{name}_2': ...}}")
        found[name] = measure
    raise_problems(wrong, InvalidArgument)
    return found


def _by_name(name: str, wrong: list[str]) -> Measure | None:
    if name in _EXAMPLES:
        wrong.append(f"measure: '{name}' needs an argument: give regard.{_EXAMPLES[name]}")
    elif name in MEASURES:
        return MEASURES[name]()
    else:
        wrong.append(
            f"measure: unknown name '{name}'{did_you_mean(name, MEASURES)} (known: {', '.join(sorted(MEASURES))})"
        )
    return None
