"""Configurations of models: fields state their types and bounds in annotations, and `validate` checks them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.checks import Checks
from regard.errors import InvalidType, short_repr
from regard.nn.feed_forward import Activation
from regard.nn.multi_head_attention import check_heads
from regard.nn.positions import position_classes

Config = TypeVar("Config")

MAX_SIZE = 2**28
"""Larger sizes are mistakes. Below it, the number of bytes of any matrix fits in 63 bits."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number, for annotations: low <= number <= high, above < number < below."""

    low: float = -inf
    high: float = inf
    above: float = -inf
    below: float = inf

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high and self.above < number < self.below

    def __str__(self) -> str:
        bounds = {"of at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        return " and ".join(f"{text} {bound}" for text, bound in bounds.items() if isfinite(bound))


@dataclass(frozen=True)
class Names:
    """Names of classes, for annotations: as a Literal, but the user can define more classes."""

    known: Callable[[], Iterable[str]]


Size = Annotated[int, Range(1, MAX_SIZE)]
Count = Annotated[int, Range(0, MAX_SIZE)]
TokenId = Annotated[int, Range(0, MAX_SIZE)]
Rate = Annotated[float, Range(0, below=1)]
Positive = Annotated[float, Range(above=0)]
Epsilon = Annotated[float, Range(0)]

Norm = Literal["layer_norm", "rms_norm"]
Positions = Annotated[str, Names(position_classes)]
ROTARY_SCALING_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class FrozenDict(dict[str, float]):
    """A hashable dict that cannot be changed, for frozen configurations."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, float]]]:
        return FrozenDict, (dict(self),)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("a configuration cannot be changed; make another one with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True, kw_only=True)
class TransformerLayerConfig:
    """The fields that all Transformers share: sizes and options of their layers.

    Args:
        d_model: Size of the hidden states.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads (grouped-query attention). Default: num_heads.
        head_dim: Size of a head. Default: d_model / num_heads.
        d_ff: Size of the hidden layer in feed-forward networks.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        gated: Whether feed-forward networks are gated; with ``"silu"`` this is SwiGLU.
        norm: ``"layer_norm"`` or ``"rms_norm"``.
        norm_first: Whether norms come before sublayers (pre-norm) or after them (post-norm).
        norm_eps: Added to the variance in norms.
        attention_bias: Whether the projections of attention have a bias.
        attention_out_bias: Whether the output projection has one. Default: as attention_bias.
        feed_forward_bias: Whether the linear maps of feed-forward networks have a bias.
        positions: ``"sinusoidal"`` (Vaswani 2017) or ``"learned"``, added to embeddings; ``"relative"`` (Shaw 2018),
            ``"rotary"`` (Su 2021), ``"alibi"`` (Press 2022) or ``"t5"`` (Raffel 2020), in self-attention; or
            ``"none"``: only the causal mask depends on the order of tokens. The name of your own subclass of
            `regard.nn.AttentionPositions` is valid, too.
        max_distance: Larger distances count as this one, in relative and t5 positions. Default: 16 and 128.
        rotary_base: Base θ of rotary positions: pair i of d turns by θ^(−2i / d) per token.
        rotary_scaling: Slows rotary positions down for sequences longer than those of pretraining. The keys are those
            of transformers: ``factor`` alone divides all frequencies; with ``low_freq_factor``, ``high_freq_factor``
            and ``original_max_position_embeddings`` only low ones, as in Llama 3.1. Default: none.
        dropout: Dropout rate for embeddings and for the output of each sublayer.
        attention_dropout: Dropout rate for attention weights.
        activation_dropout: Dropout rate for the hidden layer in feed-forward networks.

    Raises:
        InvalidArgument: With every field that is out of bounds, unknown or inconsistent.
    """

    d_model: Size = 512
    num_heads: Size = 8
    num_kv_heads: Size | None = None
    head_dim: Size | None = None
    d_ff: Size = 2048
    activation: Activation = "relu"
    gated: bool = False
    norm: Norm = "layer_norm"
    norm_first: bool = False
    norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    attention_out_bias: bool | None = None
    feed_forward_bias: bool = True
    positions: Positions = "sinusoidal"
    max_distance: Count | None = None
    rotary_base: Positive = 10000.0
    rotary_scaling: Mapping[str, Positive] | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0

    def __post_init__(self) -> None:
        with Checks() as checks:
            if validate(self, checks) and not checks.problems:
                self._check(checks)

    @property
    def resolved_head_dim(self) -> int:
        """Size of a head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def has_attention_out_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias

    def _check(self, checks: Checks) -> None:
        """Check whether fields fit together; each of them is valid alone."""
        check_heads(checks, self.d_model, self.num_heads, self.num_kv_heads, self.head_dim)
        if self.rotary_scaling is not None:
            object.__setattr__(self, "rotary_scaling", FrozenDict(self.rotary_scaling))
            _check_rotary_scaling(checks, self.rotary_scaling)
        if checks.problems:
            return
        head_dim = self.resolved_head_dim
        if self.num_heads * head_dim > MAX_SIZE:
            checks.fail(f"head_dim: expected at most {MAX_SIZE // self.num_heads}, got {head_dim}")
        position_classes()[self.positions].check_config(self, checks)


def _check_rotary_scaling(checks: Checks, scaling: Mapping[str, float]) -> None:
    if set(scaling) not in ({"factor"}, set(ROTARY_SCALING_KEYS)):
        keys = f"the key 'factor', or all of {', '.join(sorted(ROTARY_SCALING_KEYS))}"
        checks.fail(f"rotary_scaling: expected {keys}, got {short_repr(scaling)}")
    elif len(scaling) > 1 and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        checks.fail(f"rotary_scaling: expected high_freq_factor above low_freq_factor, got {short_repr(scaling)}")


def check_config(config: Config, kind: type[Config]) -> Config:
    """Return the configuration of a model.

    Raises:
        InvalidType: If it is the configuration of another model.
    """
    if not isinstance(config, kind):
        raise InvalidType(f"config: expected a {kind.__name__}, got {type(config).__name__}")
    return config


def check_below(checks: Checks, limit: str, size: int, **ids: int | None) -> None:
    """Check that token ids are below the size of a vocabulary, which messages call `limit`."""
    for name, token in ids.items():
        if token is not None and token >= size:
            checks.fail(f"{name}: expected an id below {limit}={size}, got {token}")


def validate(config: Any, checks: Checks) -> bool:
    """Check each field of a dataclass against its annotation: type, bounds, choices, and that numbers are finite.

    Wrong types are problems with values, because configurations are read from files.

    Returns:
        bool: Whether all types are right, so that fields can be compared; bounds may be exceeded.
    """
    comparable = True
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        choices = _choices(hint)
        if choices is not None:
            checks.choice(name, value, choices)
        elif not _fits(value, hint):
            checks.fail(f"{name}: expected {_expected(hint)}, got {short_repr(value)}")
            comparable &= _fits(value, hint, bounded=False)
    return comparable


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _choices(hint: Any) -> Iterable[str] | None:
    """The values that an annotation lists; None if it does not list values."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated and isinstance(parts[1], Names):
        return list(parts[1].known())
    return parts if get_origin(hint) is Literal else None


def _fits(value: Any, hint: Any, *, bounded: bool = True) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _fits(value, parts[0]) and (not bounded or value in parts[1])
    if kind is Literal:
        return value in parts
    if kind in (Union, UnionType):
        return any(_fits(value, part, bounded=bounded) for part in parts)
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(_fits(item, parts[0], bounded=bounded) for item in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(_fits(item, parts[1], bounded=bounded) for item in value.values())
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # False for NaN
    return type(value) is hint  # a bool is not an int


def _expected(hint: Any) -> str:
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return f"{_expected(parts[0])} {parts[1]}"
    if kind is Literal:
        return f"one of {', '.join(parts)}"
    if kind in (Union, UnionType):
        return ", or ".join(map(_expected, parts))
    if kind is tuple:
        return f"a sequence, each entry {_expected(parts[0])}"
    if kind is Mapping:
        return f"a dict, each value {_expected(parts[1])}"
    return {int: "an int", float: "a finite number", bool: "True or False", str: "a str", NoneType: "None"}[hint]
