"""The errors that Regard raises: each says what was expected, what came and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any


class RegardError(Exception):
    """Base of every error that Regard raises on purpose; the command line shows its message and exits with 2."""


class InvalidArgument(RegardError, ValueError):
    """An argument has a value or a shape that cannot be served."""


class InvalidType(RegardError, TypeError):
    """An argument has a type that cannot be served."""


class KernelNotSupported(InvalidArgument):
    """No kernel, or not the one that was asked for, can serve a request."""


class StaleView(RegardError, ValueError):
    """A view of weights was asked after the tensors that it looks at were changed in place."""


class InvalidFile(RegardError, OSError):
    """A file is missing, unreadable or malformed; the message names the file and, where there is one, the line."""


class InvalidCheckpoint(InvalidFile):
    """A checkpoint is missing, damaged, or does not fit its configuration."""


class UnsupportedCheckpoint(InvalidCheckpoint):
    """A checkpoint has a configuration that the models of this library do not cover."""


class InvalidRecipe(InvalidArgument):
    """A recipe has unknown keys or impossible values."""


class TrainingDiverged(RegardError, ArithmeticError):
    """A training came to weights that are no numbers."""


class MissingExtra(RegardError, ImportError):
    """A part was used whose optional dependencies are not installed."""


MOST = 20
"""Objections in one error: beyond, there is one cause for all."""


def raise_problems(
    objections: Sequence[str], error: type[RegardError] = InvalidArgument, *, most: int | None = MOST
) -> None:
    """Raise one error that lists all objections, equal ones once; do nothing if there are none.

    Args:
        objections: Sentences, each with the argument, what was expected and what came.
        error: The type to raise.
        most: Beyond so many the rest is counted. None: all are told.

    Raises:
        RegardError: Of the given type, if there is any objection.
    """
    objections = list(dict.fromkeys(objections))
    if len(objections) == 1:
        raise error(objections[0])
    if objections:
        most = len(objections) if most is None else most
        more = [f"  - … and {len(objections) - most} more"] if len(objections) > most else []
        listed = [f"  - {objection}" for objection in objections[:most]]
        raise error("\n".join(["several things do not fit:", *listed, *more]))


def count_problems(least: int = 1, **counts: Any) -> list[str]:
    """Say which of the named counts, where they are given, are no integers of at least ``least``."""
    objections = []
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral | None):
            objections.append(f"{name} must be an int, but is {count!r}")
        elif count is not None and count < least:
            objections.append(f"{name} must be at least {least}, but is {count}")
    return objections


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Say which of the choices was perhaps meant: ``", did you mean 'entropy'?"``, or nothing where none is near.

    Example:
        >>> did_you_mean("entropi", ["entropy", "received"])
        ", did you mean 'entropy'?"
    """
    near = difflib.get_close_matches(name, list(choices), n=1)
    return f", did you mean '{near[0]}'?" if near else ""
