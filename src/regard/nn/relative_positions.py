"""Positions that act where queries meet keys: relative vectors, rotation, linear biases, buckets of distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops import AttentionOutput, attend
from regard.ops.measures import DistanceHistogram, as_measures
from regard.ops.rotary import rotate
from regard.ops.scores import Alibi, RelativeKey, ScaledDotProduct, Score, T5RelativeBias

_VALUES = "values by distance"  # what the measure is called that no caller asked for


class AttentionPositions(nn.Module):
    """Base: what a :class:`~regard.nn.MultiHeadAttention` calls in place of :func:`regard.attend`.

    Key j is token j, and the queries are the last tokens: with a cache, each row needs keys of its own.
    """

    def rotate(self, heads: Float[Tensor, "batch heads tokens head_dim"], offset: int) -> Tensor:
        """What is done to queries and keys, whose first token stands at ``offset``, before keys are kept."""
        return heads

    def score_bias(self) -> Score | None:
        """The rule for what is added to scaled scores."""
        return None

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys head_dim"],
        **options: Any,
    ) -> AttentionOutput:
        """As :func:`regard.attend`, whose options are given, but for ``score``."""
        bias = self.score_bias()
        return attend(query, key, value, score=None if bias is None else ScaledDotProduct() + bias, **options)


class RelativePositions(AttentionPositions):
    """A learned vector for each distance, clipped, on the keys and on the values; all heads share them.

    outputᵢ = Σⱼ Pᵢⱼ (vⱼ + b[d]), P = softmax over j of qᵢ · (kⱼ + a[d]) / √head_dim, d = clip(j − i, −k, k)

    Where weights are dropped in training, the term of b keeps them all.

    Args:
        head_dim: Width of a head.
        max_distance: k.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is too small.

    Memory: O(queries · k) beside what the output takes: no vector is made for a pair of tokens.

    Reference:
        Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", equations 3 to 5.

    Example:
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
        """Draw both tables from Xavier's uniform distribution."""
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
        asked = {**as_measures(options.pop("measure", ())), _VALUES: DistanceHistogram(self.max_distance)}
        attended = super().forward(query, key, value, measure=asked, **options)
        measured = dict(attended.measured)
        distance_histogram = measured.pop(_VALUES)  # (batch, heads, queries, 2k + 1)
        added = (distance_histogram @ self.value_embedding.to(distance_histogram.dtype)).to(attended.output.dtype)
        return AttentionOutput(attended.output + added, attended.weights, measured)


class RotaryPositions(AttentionPositions):
    """Queries and keys are turned by angles that grow with their position; see :func:`regard.rotary`.

    Pairs are halves, (0, dims / 2), (1, dims / 2 + 1), ..., as in Llama.

    Args:
        frequencies: The angle between neighbours, in radians, of each pair; :func:`rotary_frequencies` makes them. They
            turn the first 2 · len(frequencies) entries of a head.

    Raises:
        InvalidArgument: If there is no frequency, or in a call if heads are narrower.

    Angles are computed in float64 and kept in float32; a model that is moved to another dtype takes them along.

    Memory: O(longest sequence seen × dims): the table grows as it is needed.

    Reference: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equations 15 and 34.

    Example:
        >>> import torch
        >>> from regard import rotary
        >>> x = torch.randn(1, 2, 5, 8)
        >>> positions = RotaryPositions(rotary_frequencies(8))
        >>> torch.allclose(positions.rotate(x, 3), rotary(x, torch.arange(3, 8)), atol=1e-6)
        True
    """

    table: Tensor

    def __init__(self, frequencies: Sequence[float]) -> None:
        super().__init__()
        if not frequencies:
            raise InvalidArgument("frequencies: expected at least one, got none")
        self.frequencies = tuple(frequencies)
        self.register_buffer("table", None, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the first angles anew; whoever built the module on the ``meta`` device must call it."""
        self.table = self._angles(512)

    def rotate(self, heads: Float[Tensor, "batch heads tokens head_dim"], offset: int) -> Tensor:
        end = offset + heads.shape[2]
        dims, head_dim = 2 * len(self.frequencies), heads.shape[3]
        if dims > head_dim:
            raise InvalidArgument(
                f"heads: expected head_dim of at least {dims}, twice the number of frequencies, got {head_dim}"
            )
        if end > self.table.shape[1]:
            with torch.inference_mode(False):  # a table made in inference mode could not be used in training later
                self.table = self._angles(2 * end).to(self.table)
        cos, sin = self.table[:, offset:end].to(torch.promote_types(heads.dtype, torch.float32))
        return rotate(heads, cos, sin)

    def _angles(self, length: int) -> Tensor:
        """Cosine and sine, (2, length, pairs)."""
        positions = torch.arange(length, dtype=torch.float64)
        angles = positions[:, None] * torch.tensor(self.frequencies, dtype=torch.float64)
        return torch.stack([angles.cos(), angles.sin()]).float()


class AlibiPositions(AttentionPositions):
    """A score falls with the distance, −slope · |i − j|, by a slope of each head's own; see `regard.Alibi`.

    Args:
        num_heads: Number of query heads.

    Raises:
        InvalidType: If num_heads is not an int.
        InvalidArgument: If num_heads is below 1.

    Reference: Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.

    Example:
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
        """Compute the slopes anew; whoever built the module on the ``meta`` device must call it."""
        self.slopes = Alibi.for_heads(self.num_heads).slopes

    def score_bias(self) -> Alibi:
        return Alibi(self.slopes)


class T5Positions(AttentionPositions):
    """A learned number per head and bucket of distances, added to the scores, as in T5; see `regard.T5RelativeBias`.

    In T5 all layers of a stack share one such module, and scores are not divided by √head_dim; here they are.

    Args:
        num_heads: Number of query heads.
        bidirectional: Half of the buckets are for keys after the query: for an encoder.
        num_buckets: How many.
        max_distance: Where the last bucket begins.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is too small.

    Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.

    Example:
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
        self.score_bias()  # which checks how the sizes fit together

    def reset_parameters(self) -> None:
        """All distances begin alike, at 0."""
        nn.init.zeros_(self.weight)

    def score_bias(self) -> T5RelativeBias:
        return T5RelativeBias(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance)


def rotary_frequencies(dims: int, base: float = 10000.0) -> list[float]:
    """The angles between neighbours in radians, base^(−2m / dims) for each pair m.

    Args:
        dims: How many entries of a head are turned, an even number.
        base: The period of the slowest pair is nearly 2π · base.

    Raises:
        InvalidType: If dims is not an int or base is not a number.
        InvalidArgument: If dims is odd or below 2, or base is not above 0.

    Example:
        >>> rotary_frequencies(4)
        [1.0, 0.01]
    """
    with Checks() as checks:
        if checks.integer("dims", dims, low=2) and dims % 2:
            checks.fail(f"dims: expected an even int, got {dims}")
        checks.number("base", base, above=0)
    return [base ** (-pair / dims) for pair in range(0, dims, 2)]
