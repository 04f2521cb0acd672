"""Position encodings inside self-attention: relative vectors (Shaw), linear biases (ALiBi) and T5."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.nn.positions import Positions
from regard.ops import AttentionOutput, attend
from regard.ops.measures import DistanceHistogram, as_measures
from regard.ops.scores import Alibi, RelativeKey, ScaledDotProduct, Score, T5RelativeBias
from regard.ops.scores.bias import MAX_DISTANCE

_HISTOGRAM = "weights by distance"  # name of the measure that `RelativePositions` adds to those of the caller


class AttentionPositions(Positions):
    """Base class of position encodings that `MultiHeadAttention` calls instead of `regard.attend`.

    Key j is token j, and the queries are the last tokens. With a cache, each row therefore needs its own keys. Results
    may depend on distances only: in a batch of a GPT, shorter sequences begin at later positions.

    Attributes:
        head_axes: For each parameter or buffer with an axis of query heads: the index of that axis, which tensor
            parallelism divides; an empty mapping if all heads use the same. Parameters are then read through `local`.
            Default: None, a class that cannot be divided.
    """

    head_axes: ClassVar[Mapping[str, int] | None] = None

    def local(self, parameter: Tensor) -> Tensor:
        """The part of a parameter that this process computes with: all of it without tensor parallelism."""
        return parameter

    def rotate(self, heads: Float[Tensor, "batch heads tokens head_dim"], offset: int) -> Tensor:
        """Rotate queries or keys whose first token has position ``offset``; keys are cached after that."""
        return heads

    def score_bias(self) -> Score | None:
        """The score that is added to the scaled dot product; None adds nothing."""
        return None

    def describe(self) -> tuple[str, str]:
        return "B, a function of the distance j − i", "The layer adds a number for each distance."

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        **options: Any,
    ) -> AttentionOutput:
        """Attend as `regard.attend`, with its options except ``score``."""
        bias = self.score_bias()
        return attend(query, key, value, score=None if bias is None else ScaledDotProduct() + bias, **options)


class RelativePositions(AttentionPositions, name="relative"):
    """Add a learned vector per clipped distance to the keys and another one to the values; all heads share them.

    outputᵢ = Σⱼ Pᵢⱼ (vⱼ + b[d]), P = softmax over j of qᵢ · (kⱼ + a[d]) / √head_dim, d = clip(j − i, −k, k)

    ``key_embedding`` is a and ``value_embedding`` is b. Dropout of the weights P does not apply to the term of b.

    Args:
        head_dim: Size of each head.
        max_distance: k. Default: 16.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If head_dim is below 1 or max_distance below 0.

    Memory: O(queries · k) besides that of attention: no vector per pair of tokens is stored.

    Reference: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 to 5.

    Examples:
        >>> import torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, positions=RelativePositions(4, max_distance=3))
        >>> layer(torch.randn(2, 5, 16)).output.shape
        torch.Size([2, 5, 16])
    """

    is_shared = False  # as in the paper
    head_axes = MappingProxyType({})

    def __init__(self, head_dim: int, max_distance: int = 16) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("head_dim", head_dim, low=1)
            checks.integer("max_distance", max_distance, low=0)
        self.max_distance = max_distance
        self.key_embedding = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.value_embedding = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize both tables with Xavier's uniform distribution."""
        nn.init.xavier_uniform_(self.key_embedding)
        nn.init.xavier_uniform_(self.value_embedding)

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls(config.resolved_head_dim, **_max_distance(config))

    @classmethod
    def check_config(cls, config: Any, checks: Checks) -> None:
        cls.check_max_distance(config, checks, 0)

    def describe(self) -> tuple[str, str]:
        why = (
            "A learned vector for each distance is added to the key; its product with the query is added to the score."
        )
        return "B = Qᵢ · a[j − i] · scale", why

    def score_bias(self) -> RelativeKey:
        return RelativeKey(self.local(self.key_embedding))

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        **options: Any,
    ) -> AttentionOutput:
        measures = {**as_measures(options.pop("measure", ())), _HISTOGRAM: DistanceHistogram(self.max_distance)}
        attended = super().forward(query, key, value, measure=measures, **options)
        measured = dict(attended.measured)
        histogram = measured.pop(_HISTOGRAM)  # (batch, heads, queries, 2k + 1)
        table = self.local(self.value_embedding).to(histogram.dtype)
        added = (histogram @ table).to(attended.output.dtype)
        return AttentionOutput(attended.output + added, attended.weights, measured)


class AlibiPositions(AttentionPositions, name="alibi"):
    """Add −slope · |i − j| to the scores, with one slope per head; see `regard.Alibi`.

    Args:
        num_heads: Number of query heads.

    Raises:
        InvalidType: If num_heads is not an int.
        InvalidArgument: If num_heads is below 1.

    Reference: Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.

    Examples:
        >>> AlibiPositions(2).slopes
        tensor([0.0625, 0.0039])
    """

    head_axes = MappingProxyType({"slopes": 0})
    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("num_heads", num_heads, low=1)
        self.num_heads = num_heads
        self.register_buffer("slopes", None, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the slopes; needed after building the module on the ``meta`` device."""
        self.slopes = Alibi.for_heads(self.num_heads).slopes

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls(config.num_heads)

    def describe(self) -> tuple[str, str]:
        why = "ALiBi lowers the score in proportion to the distance, in each head at its own rate."
        return "B = −slope · |j − i|", why

    def score_bias(self) -> Alibi:
        return Alibi(self.slopes)


class T5Positions(AttentionPositions, name="t5"):
    """Add a learned bias per head and bucket of distances to the scores, as in T5; see `regard.T5RelativeBias`.

    As in T5, all layers of a stack can share one module. Unlike in T5, scores are divided by √head_dim.

    Args:
        num_heads: Number of query heads.
        bidirectional: Whether half of the buckets are for keys after the query, as in an encoder.
        num_buckets: Number of buckets. Default: 32.
        max_distance: Distance from which all keys share the last bucket. Default: 128.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is too small.

    Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.

    Examples:
        >>> T5Positions(4, bidirectional=True).weight.shape
        torch.Size([32, 4])
    """

    head_axes = MappingProxyType({"weight": 1})

    def __init__(self, num_heads: int, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("num_heads", num_heads, low=1)
            checks.integer("num_buckets", num_buckets, low=1)
            checks.integer("max_distance", max_distance, low=1)
        self.bidirectional, self.max_distance = bidirectional, max_distance
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()
        self.score_bias()  # checks that the sizes fit together

    def reset_parameters(self) -> None:
        """Initialize all biases with 0."""
        nn.init.zeros_(self.weight)

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls(config.num_heads, bidirectional=not causal, **_max_distance(config))

    @classmethod
    def check_config(cls, config: Any, checks: Checks) -> None:
        # With 32 buckets, T5 needs 8 for the smallest distances in each of two directions, and 16 in one direction.
        cls.check_max_distance(config, checks, 17, MAX_DISTANCE)

    def describe(self) -> tuple[str, str]:
        return "B = b[bucket of j − i]", "T5 adds a learned number for each head and each range of distances."

    def score_bias(self) -> T5RelativeBias:
        return T5RelativeBias(self.local(self.weight), bidirectional=self.bidirectional, max_distance=self.max_distance)


def _max_distance(config: Any) -> dict[str, int]:
    """The argument, unless the configuration leaves the default to the class."""
    return {} if config.max_distance is None else {"max_distance": config.max_distance}
