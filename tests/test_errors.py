"""Errors: all objections at once, as far as a person reads."""

from __future__ import annotations

import pytest

from regard.errors import InvalidArgument, refuse


def test_one_objection_is_the_message():
    with pytest.raises(InvalidArgument, match=r"^key: is missing$"):
        refuse(["key: is missing"])
    refuse([])


def test_many_objections_are_counted_and_not_all_listed():
    with pytest.raises(InvalidArgument) as caught:
        refuse([f"weight {number}" for number in range(30)])
    lines = str(caught.value).splitlines()
    assert lines[1] == "  - weight 0"
    assert lines[-2:] == ["  - weight 19", "  - … and 10 more"]
