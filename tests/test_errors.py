"""Errors list all problems at once, up to a limit."""

from __future__ import annotations

import numpy as np
import pytest

from regard.errors import InvalidArgument, InvalidType, count_problems, raise_problems


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


def test_counts_are_integers_of_at_least_a_minimum():
    assert count_problems(heads=4, width=None, size=np.int64(2)) == []
    assert count_problems(0, heads=-1, width=0) == ["heads must be at least 0, but is -1"]
    problems = count_problems(heads=2.0, width="4", size=True)
    assert problems == [
        "heads must be an int, but is 2.0",
        "width must be an int, but is '4'",
        "size must be an int, but is True",
    ]
