"""Checks of arguments: collect every problem, then raise them as one error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, RegardError, did_you_mean, raise_problems, short_repr

Result = TypeVar("Result")
Kind = Literal["floating-point", "integer", "bool"]

_UNDER = {"floating-point": "a floating-point tensor", "integer": "an integer tensor", "bool": "a bool tensor"}


_LIBRARIES = frozenset(("regard", "torch", "transformers", "contextlib"))
"""Packages whose frames a warning skips."""


class Checks:
    """Collect problems with arguments and raise all of them in one error.

    Each method checks one thing and returns whether it holds, so that later checks can rely on it. Messages read
    ``argument: expected X, got Y; do Z``. The error is `InvalidType` if any argument has a wrong type, else
    `InvalidArgument`.

    Examples:
        >>> from regard.checks import Checks
        >>> with Checks() as checks:
        ...     _ = checks.integer("num_heads", 0, low=1)
        ...     _ = checks.number("dropout", 2.0, low=0, below=1)
        Traceback (most recent call last):
        regard.errors.InvalidArgument: 2 problems:
          - num_heads: expected an int of at least 1, got 0
          - dropout: expected a finite number of at least 0 and below 1, got 2.0
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.error: type[RegardError] = InvalidArgument

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.raise_problems()

    def raise_problems(self) -> None:
        """Raise one error with every problem; do nothing if there is none.

        Raises:
            InvalidType: If an argument has a wrong type.
            InvalidArgument: If all types are right and a value is wrong.
        """
        if self.problems:
            raise_problems(self.problems, self.error)

    def fail(self, problem: str) -> bool:
        """Add a problem with a value; returns False."""
        self.problems.append(problem)
        return False

    def fail_type(self, problem: str) -> bool:
        """Add a problem with a type; returns False."""
        self.error = InvalidType
        return self.fail(problem)

    def that(self, condition: bool, problem: str) -> bool:
        """Add a problem with a value unless the condition holds."""
        return condition or self.fail(problem)

    def collect(self, convert: Callable[..., Result], *args: Any) -> Result | None:
        """``convert(*args)``, or None if it raises one of Regard's errors, which becomes a problem."""
        try:
            return convert(*args)
        except InvalidType as error:
            self.fail_type(str(error))
        except RegardError as error:
            self.fail(str(error))
        return None

    def integer(
        self, name: str, value: Any, *, low: int | None = None, below: int | None = None, optional: bool = False
    ) -> bool:
        """Check that a value is an int (not a bool) with ``low <= value < below``, or None if optional."""
        if value is None and optional:
            return True
        if value is None or isinstance(value, (bool, Tensor)) or not hasattr(type(value), "__index__"):
            return self.fail_type(
                f"{name}: expected {describe_range('an int', optional, low, below)}, got {short_repr(value)}"
            )
        if (low is not None and value < low) or (below is not None and value >= below):
            return self.fail(f"{name}: expected {describe_range('an int', optional, low, below)}, got {value}")
        return True

    def number(
        self,
        name: str,
        value: Any,
        *,
        low: float | None = None,
        above: float | None = None,
        below: float | None = None,
        high: float | None = None,
        optional: bool = False,
    ) -> bool:
        """Check that a value is a finite number with ``low <= value <= high`` and ``above < value < below``."""
        if value is None and optional:
            return True
        limits = optional, low, below, above, high
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            expected = describe_range("a finite number", *limits)
            return self.fail_type(f"{name}: expected {expected}, got {short_repr(value)}")
        too_low = (low is not None and value < low) or (above is not None and value <= above)
        too_high = (high is not None and value > high) or (below is not None and value >= below)
        if too_low or too_high or not _is_finite(value):
            return self.fail(f"{name}: expected {describe_range('a finite number', *limits)}, got {value}")
        return True

    def choice(self, name: str, value: Any, choices: Iterable[str]) -> bool:
        """Check that a value is one of several names."""
        known = list(choices)
        if isinstance(value, str) and value in known:
            return True
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        return self.fail(f"{name}: expected one of {', '.join(known)}, got {short_repr(value)}{hint}")

    def sequence(self, name: str, value: Any, of: str) -> bool:
        """Check that a value is a sequence, and not a str; ``of`` names its elements."""
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            return True
        return self.fail_type(f"{name}: expected a sequence of {of}, got {type(value).__name__}; pass a list")

    def strings(self, name: str, value: Any) -> bool:
        """Check that a value is a sequence of str."""
        if not self.sequence(name, value, "str"):
            return False
        others = [index for index, text in enumerate(value) if not isinstance(text, str)]
        for index in others:
            self.fail_type(f"{name}[{index}]: expected a str, got {type(value[index]).__name__}")
        return not others

    def tensor(
        self,
        name: str,
        value: Any,
        kind: Kind | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        device: torch.device | None = None,
    ) -> bool:
        """Check type, dtype, device and shape of a tensor.

        Args:
            name: The argument, as messages call it.
            value: The tensor.
            kind: Its kind of dtype; None takes any.
            shapes: The shapes it may have, by their axes: ``{"(batch, keys)": (2, 5)}``; None takes any.
            device: Where it must be; None takes any.

        Returns:
            bool: Whether all of this holds.
        """
        if not isinstance(value, Tensor) or (kind is not None and not _is_kind(value, kind)):
            expected = "a tensor" if kind is None else _UNDER[kind]
            return self.fail_type(f"{name}: expected {expected}, got {describe(value)}")
        valid = device is None or self.device(name, value, device)
        if shapes and not any(_has_shape(value, shape) for shape in shapes.values()):
            expected = " or ".join(f"{axes} = {tuple(shape)}" for axes, shape in shapes.items())
            valid = self.fail(f"{name}: expected shape {expected}, got {tuple(value.shape)}")
        return valid

    def device(self, name: str, value: Tensor, device: torch.device) -> bool:
        """Check that a tensor is on the query's device."""
        return value.device == device or self.fail(
            f"{name}: expected a tensor on {device} like the query, got one on {value.device}; move it with .to()"
        )

    def broadcastable(self, name: str, value: Tensor, axes: str, shape: Sequence[int], hint: str = "") -> bool:
        """Check that a tensor can be expanded to a shape, whose axes are named for the message."""
        return broadcastable_to(value, shape) or self.fail(
            f"{name}: expected a shape broadcastable to {axes} = {tuple(shape)}, got {tuple(value.shape)}{hint}"
        )

    def input(self, name: str, x: Any, sizes: Mapping[str, int | None], weight: Tensor | None = None) -> bool:
        """Check the shape of a layer's input, where None allows any size, and its dtype unless autocast converts it."""
        if not self.tensor(name, x):
            return False
        valid = x.ndim == len(sizes) and all(
            size is None or size == own for size, own in zip(sizes.values(), x.shape, strict=True)
        )
        if not valid:
            axes = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in sizes.items())
            self.fail(f"{name}: expected shape ({axes}), got {tuple(x.shape)}")
        if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
            return self.fail(
                f"{name}: expected the weights' dtype {weight.dtype}, got {x.dtype}; convert it with .to()"
            )
        return valid


def broadcastable_to(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor can be expanded to a shape."""
    own = tensor.shape
    return own == shape or (
        len(own) <= len(shape)
        and all(size == 1 or size == target for size, target in zip(own[::-1], shape[::-1], strict=False))
    )


def warn(message: str) -> None:
    """Warn with the line of the caller's own code: the first frame outside of Regard, torch and transformers."""
    frame, level = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def as_device(device: Any) -> torch.device:
    """The device that an argument means.

    Raises:
        InvalidType: If it is something else, such as a dtype, which `torch.Tensor.to` also takes.
        InvalidArgument: If torch knows no device of this name.
    """
    try:
        return torch.device(device)
    except (TypeError, RuntimeError) as error:
        kind = InvalidType if isinstance(error, TypeError) else InvalidArgument
        raise kind(f"device: expected a device such as 'cpu' or 'cuda:0', got {short_repr(device)}") from None


def describe(value: Any) -> str:
    """A tensor as dtype and shape, a named tuple of tensors by its fields; anything else as the name of its type.

    Examples:
        >>> import torch
        >>> describe(torch.zeros(2, 3))
        'float32 (2, 3)'
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value):
        names = getattr(value, "_fields", range(len(value)))
        parts = (f"{name}={describe(part)}" for name, part in zip(names, value, strict=True))
        return f"{type(value).__name__}({', '.join(parts)})"
    return type(value).__name__


def _has_shape(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Size by size: a compiler that holds symbols for sizes takes tuples of them for different."""
    return tensor.ndim == len(shape) and all(size == each for size, each in zip(tensor.shape, shape, strict=True))


def _is_kind(tensor: Tensor, kind: Kind) -> bool:
    if kind == "bool":
        return tensor.dtype == torch.bool
    if kind == "floating-point":
        return tensor.is_floating_point()
    return not (tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex())


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def describe_range(
    kind: str,
    optional: bool,
    low: float | None = None,
    below: float | None = None,
    above: float | None = None,
    high: float | None = None,
) -> str:
    """The numbers that an argument may be, in words.

    Examples:
        >>> describe_range("an int", optional=True, low=1, below=8)
        'an int of at least 1 and below 8, or None'
    """
    bounds = [f"of at least {_short(low)}"] if low is not None else []
    bounds += [f"above {above}"] if above is not None else []
    bounds += [f"below {_short(below)}"] if below is not None else []
    bounds += [f"at most {_short(high)}"] if high is not None else []
    return f"{kind} {' and '.join(bounds)}".rstrip() + (", or None" if optional else "")


def _short(bound: float) -> str:
    """A bound near a large power of two as that power: 2**62."""
    for offset, text in ((0, ""), (1, " + 1"), (-1, " - 1")):
        size = abs(int(bound) - offset)
        if size >= 2**31 and size & (size - 1) == 0:
            return f"{'-' if bound < 0 else ''}2**{size.bit_length() - 1}{text}"
    return f"{bound}"
