"""Position encodings added to embeddings: sinusoidal, learned or none."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.nn.positions import Positions


class GrowingTable(nn.Module):
    """Base class of modules with a computed table of positions, which grows when needed and is not saved."""

    table: Tensor  # (..., positions, features)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def compute_table(self, length: int) -> Tensor:
        """The table for positions 0 to length − 1."""
        raise NotImplementedError

    def table_shape(self, length: int) -> tuple[int, ...]:
        """The shape of that table."""
        raise NotImplementedError

    def reset_buffers(self) -> None:
        """Compute the table of the first 512 positions; needed after building the module on the ``meta`` device."""
        if torch.get_default_device().type == "meta":  # whose arithmetic imports a compiler (a second)
            self.table = torch.empty(self.table_shape(512))
        else:
            self.table = self.compute_table(512)

    def table_for(self, length: int) -> Tensor:
        """The table, with at least this number of positions."""
        if length > self.table.shape[-2]:
            with torch.inference_mode(False):  # training cannot use a table computed in inference mode
                self.table = self.compute_table(2 * length).to(self.table)
        return self.table


class AbsolutePositions(Positions):
    """Base class of position encodings that add one vector per position."""

    d_model: int

    def table_for(self, length: int) -> Tensor:
        """The vectors (positions, d_model) of at least this number of positions."""
        raise NotImplementedError

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Add the vectors of positions offset, offset + 1, ... to x, in its dtype.

        Args:
            x: (batch, tokens, d_model).
            offset: Position of the first token, or (batch,) with one for each sequence, which may be negative: all
                positions below 0 get the vector of position 0. Default: 0.

        Returns:
            (batch, tokens, d_model).

        Raises:
            InvalidType: If x is not a tensor, or offset is not an int or an integer tensor.
            InvalidArgument: If a shape is wrong or an int offset is below 0.
        """
        with Checks() as checks:
            valid = checks.input("x", x, {"batch": None, "tokens": None, "d_model": self.d_model})
            if not isinstance(offset, Tensor):
                checks.integer("offset", offset, low=0)
            elif valid:
                checks.tensor("offset", offset, "integer", shapes={"(batch,)": x.shape[:1]})
        tokens = x.shape[1]
        if isinstance(offset, Tensor):
            positions = offset[:, None] + torch.arange(tokens, device=offset.device)
            added = self.table_for(int(offset.max()) + tokens)[positions.clamp(min=0)]
        else:
            added = self.table_for(offset + tokens)[offset : offset + tokens]
        return x + added.to(x.dtype)


class SinusoidalPositions(GrowingTable, AbsolutePositions, name="sinusoidal"):
    """Add sine and cosine waves with wavelengths from 2π to 10000 · 2π in geometric progression.

    PE(t, 2i) = sin(t / 10000^(2i / d_model)), PE(t, 2i + 1) = cos(t / 10000^(2i / d_model))

    Args:
        d_model: Size of the embeddings, even.
        interleaved: Whether sines and cosines alternate. False puts all sines first, as in tensor2tensor and Marian.

    Raises:
        InvalidType: If d_model is not an int.
        InvalidArgument: If d_model is odd or below 2.

    Memory: O(longest sequence × d_model): the table grows when needed.

    Reference: Vaswani et al. 2017, section 3.5.

    Examples:
        >>> import torch
        >>> SinusoidalPositions(4)(torch.zeros(1, 2, 4))
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(self, d_model: int, *, interleaved: bool = True) -> None:
        super().__init__()
        with Checks() as checks:
            if checks.integer("d_model", d_model, low=2) and d_model % 2:
                checks.fail(f"d_model: expected an even int for sinusoidal positions, got {d_model}")
        self.d_model, self.interleaved = d_model, interleaved
        self.reset_buffers()

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls(config.d_model, interleaved=getattr(config, "interleaved_sinusoids", True))

    @classmethod
    def check_config(cls, config: Any, checks: Checks) -> None:
        super().check_config(config, checks)
        if config.d_model % 2:
            checks.fail(f"d_model: expected an even number for sinusoidal positions, got {config.d_model}")

    def describe(self) -> tuple[str, str]:
        why = (
            f"Sines and cosines of the position, with {self.d_model // 2} wavelengths from 2π to about 10,000 · 2π "
            "tokens."
        )
        return f"sin and cos of position / 10000^(2i / {self.d_model})", why

    def compute_table(self, length: int) -> Tensor:
        return sinusoids(length, self.d_model, interleaved=self.interleaved)

    def table_shape(self, length: int) -> tuple[int, int]:
        return length, self.d_model


class LearnedPositions(AbsolutePositions, name="learned"):
    """Add a learned vector for each position.

    Args:
        d_model: Size of the embeddings.
        max_seq_len: Number of positions.

    Raises:
        InvalidType: If a size is not an int.
        InvalidArgument: If a size is below 1; in a call, if a token is behind the last position.

    Reference: Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1.

    Examples:
        >>> import torch
        >>> LearnedPositions(8, 16)(torch.zeros(2, 5, 8), offset=3).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("d_model", d_model, low=1)
            checks.integer("max_seq_len", max_seq_len, low=1)
        self.d_model = d_model
        self.weight = nn.Parameter(torch.empty(max_seq_len, d_model))
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls(config.d_model, config.max_seq_len)

    def describe(self) -> tuple[str, str]:
        return "row of the position in a learned table", "The model has learned a vector for each position."

    def reset_parameters(self) -> None:
        """Initialize from N(0, 1 / d_model)."""
        nn.init.normal_(self.weight, std=self.d_model**-0.5)

    def table_for(self, length: int) -> Tensor:
        if length > len(self.weight):
            raise InvalidArgument(
                f"x: expected positions below {len(self.weight)}, got {length - 1}; shorten the sequence or build the "
                "model with a larger max_seq_len"
            )
        return self.weight


class NoPositions(Positions, name="none"):
    """Return x unchanged: the mask of a decoder or positions inside attention encode the order of tokens.

    Examples:
        >>> import torch
        >>> NoPositions()(torch.ones(1, 1, 2))
        tensor([[[1., 1.]]])
    """

    @classmethod
    def from_config(cls, config: Any, *, causal: bool) -> Self:
        return cls()

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return x (batch, tokens, d_model)."""
        return x


def sinusoids(length: int, d_model: int, *, interleaved: bool = True) -> Float[Tensor, "length d_model"]:
    """The table of sinusoidal positions, (length, d_model), computed in float64 and returned in float32."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    angle = position * frequency  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1 if interleaved else 1).flatten(1).float()
