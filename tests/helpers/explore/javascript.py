"""Where the checks of the page's JavaScript are, and what happens where they cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "explore/js"


def missing(what: str) -> None:
    """Skip a check with a reason; in continuous integration it has failed."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, so the checks of the page's JavaScript must run, but {what}")
    pytest.skip(what)
