"""The base class of position encodings, which says all that models need to know about one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from torch import nn

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr


class Positions(nn.Module):
    """Base class of position encodings: of those added to embeddings, and of those inside attention.

    A class with a name is what models build for that name as ``positions`` in their configuration; it needs the method
    `from_config`. Models add the positions to embeddings, as ``positions(x, offset)``, unless the class is a subclass
    of `AttentionPositions`. Parameters that do not start as the model's other matrices need a method
    ``reset_parameters``, and buffers, which are not saved, a method ``reset_buffers``. Nothing else has to know the
    class: whether the beams of a search may share a cache follows from where the positions are.

    Attributes:
        name: Set by ``class Alibi(AttentionPositions, name="alibi")``; None for a class that models cannot build.
        is_shared: Whether all layers of a stack have one module. Default: True.

    Raises:
        InvalidType: When the class is defined, if it has a name but no `from_config`.
        InvalidArgument: When the class is defined, if its name is that of a class of this library.

    Examples:
        >>> {"alibi", "learned", "rotary"} <= position_classes().keys()
        True
    """

    name: ClassVar[str | None] = None
    is_shared: ClassVar[bool] = True

    def __init_subclass__(cls, *, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is not None and cls.from_config.__func__ is Positions.from_config.__func__:
            raise InvalidType(f"{cls.__name__}: expected a classmethod from_config(config, *, causal), got none")
        builtin = position_classes().get(name or "")
        if builtin is not None and _is_builtin(builtin):
            raise InvalidArgument(
                f"name: expected another name than that of {builtin.__name__}, got {short_repr(name)}"
            )
        cls.name = name

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        """Build the positions of a model.

        Args:
            config: The model's configuration, a `regard.models.TransformerLayerConfig`.
            causal: Whether tokens attend only to themselves and to earlier ones.
        """
        raise NotImplementedError

    @classmethod
    def check_config(cls, config: Any, checks: Checks) -> None:
        """Check that the positions fit a configuration, whose fields are valid each."""
        cls.check_max_distance(config, checks, None)

    @classmethod
    def check_max_distance(cls, config: Any, checks: Checks, low: int | None, high: int | None = None) -> None:
        """Check that max_distance is None or an int of at least `low` and at most `high`; without `low`, only None."""
        distance = config.max_distance
        if distance is None:
            return
        if low is None:
            checks.fail(f"max_distance: expected None for {cls.name} positions, got {distance}; leave it out")
        elif distance < low or (high is not None and distance > high):
            bounds = f"of at least {low}" + ("" if high is None else f" and at most {high}")
            checks.fail(f"max_distance: expected an int {bounds} for {cls.name} positions, got {distance}")

    def describe(self) -> tuple[str, str]:
        """The formula of what is added, to embeddings or to scores, and one sentence about it."""
        return "a function of the position", "The layer adds a number for each position."


def position_classes() -> Mapping[str, type[Positions]]:
    """The classes with a name, by name: those of this library, and those that have been defined by the user."""
    return {str(cls.name): cls for cls in _subclasses(Positions) if cls.name is not None}


def _subclasses(cls: type[Positions]) -> Iterator[type[Positions]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _is_builtin(cls: type) -> bool:
    return cls.__module__.startswith("regard.nn.")
