"""What configurations of models share: types of fields with their bounds, and the fields of all Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StrictBool, StrictStr
from pydantic_core import PydanticKnownError

from regard.checks import Checks
from regard.errors import InvalidType, short_repr
from regard.nn.feed_forward import Activation
from regard.nn.multi_head_attention import check_heads
from regard.nn.positions import position_classes
from regard.validation import Config, config_class

ConfigT = TypeVar("ConfigT")

MAX_SIZE = 2**28
"""Larger sizes are mistakes. Below it, the number of bytes of any matrix fits in 63 bits."""


class FrozenDict(dict[str, float]):
    """A hashable dict that cannot be changed, for frozen configurations."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, float]]]:
        return FrozenDict, (dict(self),)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise TypeError("a configuration cannot be changed; make another one with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse  # pyright: ignore[reportAssignmentType]


def _check_positions(name: object) -> object:
    if not isinstance(name, str) or name not in position_classes():
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, position_classes()))})
    return name


def _as_tuple(values: object) -> object:
    """JSON has only lists."""
    return tuple(values) if isinstance(values, list) else values


Size = Annotated[int, Strict(), Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Strict(), Field(ge=0, le=MAX_SIZE)]
TokenId = Annotated[int, Strict(), Field(ge=0, le=MAX_SIZE)]
TokenIds = Annotated[tuple[TokenId, ...], Strict(), BeforeValidator(_as_tuple)]
Labels = Annotated[tuple[StrictStr, ...], Strict(), BeforeValidator(_as_tuple)]
Rate = Annotated[float, Strict(), Field(ge=0, lt=1)]
Positive = Annotated[float, Strict(), Field(gt=0)]
Epsilon = Annotated[float, Strict(), Field(ge=0)]

Norm = Literal["layer_norm", "rms_norm"]
Positions = Annotated[str, BeforeValidator(_check_positions)]
RotaryScaling = Annotated[Mapping[str, Positive], AfterValidator(FrozenDict)]
ROTARY_SCALING_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@config_class
class TransformerLayerConfig(Config):
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
    gated: StrictBool = False
    norm: Norm = "layer_norm"
    norm_first: StrictBool = False
    norm_eps: Epsilon = 1e-5
    attention_bias: StrictBool = True
    attention_out_bias: StrictBool | None = None
    feed_forward_bias: StrictBool = True
    positions: Positions = "sinusoidal"
    max_distance: Count | None = None
    rotary_base: Positive = 10000.0
    rotary_scaling: RotaryScaling | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0

    @property
    def resolved_head_dim(self) -> int:
        """Size of a head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def has_attention_out_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias

    def check(self, checks: Checks) -> None:
        super().check(checks)
        check_heads(checks, self.d_model, self.num_heads, self.num_kv_heads, self.head_dim)
        if self.rotary_scaling is not None:
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


def check_config(config: ConfigT, kind: type[ConfigT]) -> ConfigT:
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
