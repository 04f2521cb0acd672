"""Errors list all problems at once, up to a limit."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import regard
from regard.errors import InvalidArgument, InvalidType, raise_problems, short_repr


def test_one_problem_is_the_message():
    with pytest.raises(InvalidArgument, match=r"^key: is missing$"):
        raise_problems(["key: is missing"])
    raise_problems([])


def test_many_problems_are_counted_and_not_all_listed():
    with pytest.raises(InvalidArgument) as caught:
        raise_problems([f"weight {number}" for number in range(30)])
    lines = str(caught.value).splitlines()
    assert lines[0] == "30 problems:"
    assert len(lines) == 22
    assert lines[1] == "  - weight 0"
    assert lines[-2:] == ["  - weight 19", "  - … and 10 more"]
    with pytest.raises(InvalidArgument, match=r"\n  - weight 29$"):
        raise_problems([f"weight {number}" for number in range(30)], limit=None)


def test_equal_problems_are_listed_once():
    with pytest.raises(InvalidType) as caught:
        raise_problems(["key: is missing", "value: is missing", "key: is missing"], InvalidType)
    assert str(caught.value) == "2 problems:\n  - key: is missing\n  - value: is missing"


def _aliases(depth: int) -> object:
    value: object = ["lol"] * 9
    for _ in range(depth):
        value = [value] * 9
    return value


class _Unprintable:
    def __repr__(self) -> str:
        return "x" * 1000


def test_values_in_messages_are_short():
    values = (
        _aliases(30),
        {1: _aliases(30)},
        "x" * 10**7,
        b"x" * 10**7,
        10**5000,
        -(10**5000),
        {"a" * 10**6: 1},
        _Unprintable(),
    )
    loop: list[object] = []
    loop.append(loop)
    for value in (*values, loop):
        started = time.perf_counter()
        assert len(short_repr(value)) <= 80
        assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    "value", [None, True, -5, 1.5, "a'b", b"a", (1,), (), [1, [2]], {"b": 1, "a": (2,)}, {3}, set(), range(3)]
)
def test_short_values_are_written_as_they_are(value):
    assert short_repr(value) == repr(value)


def test_no_message_shows_a_value_of_unbounded_length():
    """Every ``got {value!r}`` is `short_repr`; what is left shows a slice, or a name of this library."""
    allowed = {"text_encoder.py"}
    for path in Path(regard.__file__).parent.rglob("*.py"):
        values = re.findall(r"got [^\n]*\{([^{}\[\]]+)!r", path.read_text(encoding="utf-8"))
        assert not values or path.name in allowed, f"{path}: {values}"


def test_a_problem_is_not_longer_than_a_page():
    with pytest.raises(InvalidArgument) as error:
        raise_problems(["x" * 10_000])
    assert len(str(error.value)) == 1001
