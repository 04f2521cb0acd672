"""Position encodings inside self-attention: relative vectors (Shaw), rotary (RoPE), linear biases (ALiBi) and T5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.nn.absolute_positions import GrowingTable
from regard.ops import AttentionOutput, attend
from regard.ops.measures import DistanceHistogram, as_measures
from regard.ops.rotary import rotate
from regard.ops.scores import Alibi, RelativeKey, ScaledDotProduct, Score, T5RelativeBias

_HISTOGRAM = "weights by distance"  # name of the measure that `RelativePositions` adds to those of the caller


class AttentionPositions(nn.Module):
    """Base class of position encodings that `MultiHeadAttention` calls instead of `regard.attend`.

    Key j is token j, and the queries are the last tokens. With a cache, each row therefore needs its own keys.
    """

    def rotate(self, heads: Float[Tensor, "batch heads tokens head_dim"], offset: int) -> Tensor:
        """Rotate queries or keys whose first token has position ``offset``; keys are cached after that."""
        return heads

    def score_bias(self) -> Score | None:
        """The score that is added to the scaled dot product; None adds nothing."""
        return None

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


class RelativePositions(AttentionPositions):
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

    def score_bias(self) -> RelativeKey:
        return RelativeKey(self.key_embedding)

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
        added = (histogram @ self.value_embedding.to(histogram.dtype)).to(attended.output.dtype)
        return AttentionOutput(attended.output + added, attended.weights, measured)


class RotaryPositions(GrowingTable, AttentionPositions):
    """Rotate pairs of features of queries and keys by angles proportional to the position; see `regard.rotary`.

    With n frequencies, the pairs are (0, n), (1, n + 1), ..., as in Llama. Angles are computed in float64 and stored
    in float32; converting the model to another dtype converts them too.

    Args:
        frequencies: Angle between neighbouring tokens for each pair, in radians, as from `rotary_frequencies`.
            The first 2n features of each head are rotated.

    Raises:
        InvalidArgument: If there is no frequency; in a call, if heads have fewer than 2n features or offset is below 0.

    Memory: O(longest sequence × n): the table grows when needed.

    Reference: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equations 15 and 34.

    Examples:
        >>> import torch
        >>> from regard import rotary
        >>> x = torch.randn(1, 2, 5, 8)
        >>> positions = RotaryPositions(rotary_frequencies(8))
        >>> torch.allclose(positions.rotate(x, 3), rotary(x, torch.arange(3, 8)), atol=1e-6)
        True
    """

    def __init__(self, frequencies: Sequence[float]) -> None:
        super().__init__()
        if not frequencies:
            raise InvalidArgument("frequencies: expected at least one, got none")
        self.frequencies = tuple(frequencies)
        self.reset_buffers()

    def compute_table(self, length: int) -> Tensor:
        """Cosines and sines, (2, length, n)."""
        positions = torch.arange(length, dtype=torch.float64)
        angles = positions[:, None] * torch.tensor(self.frequencies, dtype=torch.float64)
        return torch.stack([angles.cos(), angles.sin()]).float()

    def table_shape(self, length: int) -> tuple[int, int, int]:
        return 2, length, len(self.frequencies)

    def rotate(self, heads: Float[Tensor, "batch heads tokens head_dim"], offset: int) -> Tensor:
        dims, head_dim = 2 * len(self.frequencies), heads.shape[3]
        if dims > head_dim:
            raise InvalidArgument(
                f"heads: expected head_dim of at least {dims}, twice the number of frequencies, got {head_dim}"
            )
        if offset < 0:  # would slice the table from its end
            raise InvalidArgument(f"offset: expected an int of at least 0 with rotary positions, got {offset}")
        end = offset + heads.shape[2]
        cos, sin = self.table_for(end)[:, offset:end].to(torch.promote_types(heads.dtype, torch.float32))
        return rotate(heads, cos, sin)


class AlibiPositions(AttentionPositions):
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

    def score_bias(self) -> Alibi:
        return Alibi(self.slopes)


class T5Positions(AttentionPositions):
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

    def score_bias(self) -> T5RelativeBias:
        return T5RelativeBias(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance)


def rotary_frequencies(dims: int, base: float = 10000.0) -> list[float]:
    """Angles between neighbouring tokens in radians, base^(−2m / dims) for each pair m.

    Args:
        dims: Number of rotated features of each head, even.
        base: The slowest pair has a period of nearly 2π · base tokens. Default: 10000.

    Raises:
        InvalidType: If dims is not an int or base is not a number.
        InvalidArgument: If dims is odd or below 2, or base is not above 0.

    Examples:
        >>> rotary_frequencies(4)
        [1.0, 0.01]
    """
    with Checks() as checks:
        if checks.integer("dims", dims, low=2) and dims % 2:
            checks.fail(f"dims: expected an even int, got {dims}")
        checks.number("base", base, above=0)
    return [float(base) ** (-pair / dims) for pair in range(0, dims, 2)]
