"""The errors that Regard raises. Messages say what was expected, what was passed and what to do."""

from __future__ import annotations

import difflib
import importlib
import reprlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any


class RegardError(Exception):
    """Base of all errors of Regard; the command line prints the message and exits with code 2."""


class InvalidArgument(RegardError, ValueError):
    """An argument has an invalid value or shape."""


class InvalidType(RegardError, TypeError):
    """An argument has an invalid type."""


class KernelNotSupported(InvalidArgument):
    """The named kernel cannot compute a call."""


class StaleView(RegardError, ValueError):
    """A weight matrix was used after its tensors were changed in place.

    Changes that torch does not count, through ``.data`` or memory shared with NumPy, are not noticed.
    """


class InvalidFile(RegardError, OSError):
    """A file is missing, unreadable or malformed; the message names the file and, where there is one, the line."""


class InvalidCheckpoint(InvalidFile):
    """A checkpoint is missing, damaged, or does not fit its configuration."""


class UnsupportedCheckpoint(InvalidCheckpoint):
    """A checkpoint has a configuration that the models of this library do not support."""


class InvalidRecipe(InvalidArgument):
    """A recipe has unknown keys or impossible values."""


class TrainingDiverged(RegardError, ArithmeticError):
    """Training produced NaN or infinite weights."""


class ProcessLost(RegardError):
    """Another process of a training has ended or does not answer; the message has its number."""


class MissingExtra(RegardError, ImportError):
    """Optional dependencies of a feature are not installed."""


MAX_LISTED = 20
"""Maximum number of problems listed in one error."""


MAX_PROBLEM = 1000
"""Maximum length of one of them; names in files can have any length."""


def raise_problems(
    problems: Sequence[str], error: type[RegardError] = InvalidArgument, *, limit: int | None = MAX_LISTED
) -> None:
    """Raise one error that lists all problems, equal ones once; do nothing if there are none.

    Args:
        problems: Sentences with the argument, what was expected and what was passed.
        error: The type to raise.
        limit: List at most this many and count the rest; None lists all.

    Raises:
        RegardError: Of the given type, if there are problems.
    """
    problems = [text if len(text) <= MAX_PROBLEM else f"{text[:MAX_PROBLEM]}…" for text in dict.fromkeys(problems)]
    if len(problems) == 1:
        raise error(problems[0])
    if problems:
        limit = len(problems) if limit is None else limit
        more = [f"  - … and {len(problems) - limit} more"] if len(problems) > limit else []
        listed = [f"  - {problem}" for problem in problems[:limit]]
        raise error("\n".join([f"{len(problems)} problems:", *listed, *more]))


MAX_REPR = 80
"""Maximum length of a value in an error message."""


class _ShortRepr(reprlib.Repr):
    """Visits as many parts of a value as fit into a message, because YAML can make a small file a huge value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 8
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = MAX_REPR
        self.parts_left = MAX_REPR

    def repr1(self, x: Any, level: int) -> str:
        self.parts_left -= 1
        return super().repr1(x, level) if self.parts_left >= 0 else self.fillvalue

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[:MAX_REPR])

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:MAX_REPR])

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 4 * MAX_REPR else f"an int of {x.bit_length()} bits"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        pairs = [f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}" for key in islice(x, MAX_REPR)]
        return f"{{{', '.join(pairs)}}}"  # in the order of the dict, not sorted

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x)


def short_repr(value: object) -> str:
    """The `repr` of a value for an error message: at most 80 characters, whatever the size of the value.

    Examples:
        >>> short_repr(["a", 1])
        "['a', 1]"
        >>> len(short_repr([[0] * 100_000] * 100_000))
        80
        >>> short_repr(10**5000)
        'an int of 16610 bits'
    """
    text = _ShortRepr().repr1(value, _ShortRepr().maxlevel)
    return text if len(text) <= MAX_REPR else text[: MAX_REPR - 1] + "…"


def require(module: str, *, extra: str, needed_by: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Its full name.
        extra: The extra of this library that installs it.
        needed_by: What needs it, for the message.

    Raises:
        MissingExtra: If the package is not installed.

    Examples:
        >>> require("scipy.sparse", extra="graph", needed_by="to_csr").csr_array
        <class 'scipy.sparse._csr.csr_array'>
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = error.name or module
        message = f"{needed_by} needs {package.partition('.')[0]}: install it with `pip install 'regard[{extra}]'`"
        raise MissingExtra(message) from None


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """The closest choice as a hint, ``", did you mean 'entropy'?"``, or nothing if none is close.

    Examples:
        >>> did_you_mean("entropi", ["entropy", "received"])
        ", did you mean 'entropy'?"
    """
    if not isinstance(name, str) or len(name) > MAX_REPR:
        return ""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f", did you mean '{close[0]}'?" if close else ""
