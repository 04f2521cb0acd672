"""Rotary position encodings (RoPE)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.nn.absolute_positions import GrowingTable
from regard.nn.relative_positions import AttentionPositions
from regard.ops.rotary import rotate


class RotaryPositions(GrowingTable, AttentionPositions, name="rotary"):
    """Rotate pairs of features of queries and keys by angles proportional to the position; see `regard.rotary`.

    With n frequencies, the pairs are (0, n), (1, n + 1), ..., as in Llama. Angles are computed in float64 and stored
    in float32; converting the model to another dtype converts them too.

    Args:
        frequencies: Angle between neighboring tokens for each pair, in radians, as from `rotary_frequencies`.
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

    head_axes = MappingProxyType({})

    def __init__(self, frequencies: Sequence[float]) -> None:
        super().__init__()
        if not frequencies:
            raise InvalidArgument("frequencies: expected at least one, got none")
        self.frequencies = tuple(frequencies)
        self.reset_buffers()

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        frequencies = rotary_frequencies(config.resolved_head_dim, config.rotary_base)
        return cls(scale_rope_frequencies(frequencies, config.rotary_scaling or {}))

    @classmethod
    def check_config(cls, config: Any, checks: Checks) -> None:
        super().check_config(config, checks)
        head_dim = config.resolved_head_dim
        if head_dim % 2:
            checks.fail(
                f"positions: expected an even head_dim for 'rotary', got {head_dim}; change d_model or num_heads"
            )

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


def rotary_frequencies(dims: int, base: float = 10000.0) -> list[float]:
    """Angles between neighboring tokens in radians, base^(−2m / dims) for each pair m.

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


def scale_rope_frequencies(frequencies: Sequence[float], scaling: Mapping[str, float]) -> list[float]:
    """Lower the frequencies of rotary positions, for sequences longer than those of pretraining.

    With ``factor`` alone, all are divided by it. With the other keys, frequencies with a period below
    original / high_freq_factor stay, those with a period above original / low_freq_factor are divided, and between
    them the two are interpolated.

    Reference: Grattafiori et al. 2024, "The Llama 3 herd of models"; the rule is that of its code.

    Examples:
        >>> scale_rope_frequencies([1.0, 0.01], {"factor": 4.0})
        [0.25, 0.0025]
    """
    factor = scaling.get("factor", 1.0)
    if "low_freq_factor" not in scaling:
        return [frequency / factor for frequency in frequencies]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    scaled = []
    for frequency in frequencies:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        unscaled = min(max((turns - low) / (high - low), 0.0), 1.0)  # share of the original frequency
        scaled.append((1 - unscaled) * frequency / factor + unscaled * frequency)
    return scaled
