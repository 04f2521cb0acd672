"""Large products of test cases, sampled so that every pair of values of two axes still occurs.

Most faults need only one or two settings to meet, so a pairwise sample finds nearly what the whole product finds,
in a few dozen cases instead of thousands. ``make test-all`` (``pytest --all``) runs the whole product.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from typing import Any

import pytest


def everything() -> bool:
    """Whether all cases were requested (``pytest --all`` or ``REGARD_TEST_ALL=1``)."""
    return os.environ.get("REGARD_TEST_ALL") == "1"


def pairwise(*axes: Sequence[Any], seed: int = 0) -> list[tuple[Any, ...]]:
    """Cases in which every pair of values of two axes occurs; the whole product with ``--all``.

    Args:
        axes: One sequence of values an axis; the values need neither be hashable nor comparable.
        seed: Picks one of the many samples; the same seed gives the same sample.

    Example:
        >>> cases = pairwise("abc", [1, 2, 3], [True, False])
        >>> {(letter, number) for letter, number, _ in cases} == set(itertools.product("abc", [1, 2, 3]))
        True
    """
    axes = tuple(list(axis) for axis in axes)
    if everything() or len(axes) < 3:
        return list(itertools.product(*axes))
    return [
        tuple(axis[i] for axis, i in zip(axes, case, strict=True))
        for case in _cover([len(axis) for axis in axes], random.Random(seed))
    ]


def each_value(*axes: Sequence[Any], seed: int = 0) -> list[tuple[Any, ...]]:
    """As many cases as the longest axis has values, so that each value of each axis occurs; the product with ``--all``.

    For what other tests cover in pairs, or where the axes have little to do with one another.
    """
    axes = tuple(list(axis) for axis in axes)
    if everything():
        return list(itertools.product(*axes))
    rng, count = random.Random(seed), max(map(len, axes))
    columns = [(axis * (count // len(axis) + 1))[:count] for axis in axes]
    return list(zip(*(rng.sample(column, count) for column in columns), strict=True))


def grouped(cases: Sequence[tuple[Any, ...]], count: int = 1) -> list[Any]:
    """Cases with the same first values as one parameter set: these values and the list of what follows in each case.

    A test that loops over the list with ``subtests`` reports each case that fails, and pytest collects one item instead
    of hundreds.

    Args:
        cases: The cases.
        count: How many values come first; they are hashable.
    """
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for case in cases:
        groups.setdefault(tuple(case[:count]), []).append(tuple(case[count:]))
    return [pytest.param(*first, rest, id="-".join(_label(value) for value in first)) for first, rest in groups.items()]


def _label(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_label, value))
    return str(getattr(value, "name", getattr(value, "__name__", value))).removeprefix("torch.")


def sampled(cases: Sequence[Any], count: int, seed: int = 0) -> list[Any]:
    """A few of the cases in their order, drawn with a seed; all of them with ``--all``."""
    if everything() or count >= len(cases):
        return list(cases)
    return [cases[i] for i in sorted(random.Random(seed).sample(range(len(cases)), count))]


def _cover(sizes: list[int], rng: random.Random) -> list[tuple[int, ...]]:
    """Indices of cases that cover every pair, built greedily from a pair that is still missing."""
    missing = {
        ((i, a), (j, b))
        for (i, m), (j, n) in itertools.combinations(enumerate(sizes), 2)
        for a, b in itertools.product(range(m), range(n))
    }
    cases = []
    while missing:
        case = dict(rng.choice(sorted(missing)))
        for axis in rng.sample(range(len(sizes)), len(sizes)):
            if axis not in case:
                gains = {
                    value: sum(_pair((axis, value), chosen) in missing for chosen in case.items())
                    for value in range(sizes[axis])
                }
                best = max(gains.values())
                case[axis] = rng.choice([value for value, gain in gains.items() if gain == best])
        missing -= set(itertools.combinations(sorted(case.items()), 2))
        cases.append(tuple(value for _, value in sorted(case.items())))
    return cases


def _pair(one: tuple[int, int], other: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one, other) if one < other else (other, one)
