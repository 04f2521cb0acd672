"""Absolute positions, added to embeddings: sinusoidal or learned."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument


class SinusoidalPositions(nn.Module):
    """Add fixed waves whose lengths form a geometric progression from 2π to 10000 · 2π.

    PE(t, 2i) = sin(t / 10000^(2i / d_model)), PE(t, 2i + 1) = cos(t / 10000^(2i / d_model))

    Args:
        d_model: Width of the hidden states, even.
        interleaved: False puts all sines before all cosines, as tensor2tensor and Marian have them.

    Raises:
        InvalidType: If d_model is not an int, or in a call if x is not a tensor or offset is not integer.
        InvalidArgument: If d_model is odd or below 2, or in a call if x has another width or offset is below 0.

    Memory:
        O(longest sequence seen × d_model): the table grows as it is needed.

    Reference:
        Vaswani et al. 2017, section 3.5.

    Example:
        >>> import torch
        >>> SinusoidalPositions(4)(torch.zeros(1, 2, 4))
        tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
                 [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    table: Tensor

    def __init__(self, d_model: int, *, interleaved: bool = True) -> None:
        super().__init__()
        with Checks() as checks:
            if checks.integer("d_model", d_model, low=2) and d_model % 2:
                checks.fail(f"d_model: expected an even int for sinusoidal positions, got {d_model}")
        self.d_model, self.interleaved = d_model, interleaved
        self.register_buffer("table", None, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the first positions anew; whoever built the module on the ``meta`` device must call it."""
        self.table = sinusoids(512, self.d_model, interleaved=self.interleaved)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Add the positions offset, offset + 1, ... to x (batch, tokens, d_model).

        An offset may be one for each sequence, (batch,); what lies before position 0 counts as position 0.
        """
        _check_call(x, self.d_model, offset)
        end = last_offset(offset) + x.shape[-2]
        if end > self.table.shape[0]:
            with torch.inference_mode(False):  # a table made in inference mode could not be used in training later
                self.table = sinusoids(2 * end, self.d_model, interleaved=self.interleaved).to(self.table)
        return x + rows_from(self.table, offset, x.shape[-2]).to(x.dtype)


class LearnedPositions(nn.Module):
    """Add one learned vector a position.

    Args:
        d_model: Width of the hidden states.
        max_length: Number of positions.

    Raises:
        InvalidType: If a size is not an int, or in a call if x is not a tensor or offset is not integer.
        InvalidArgument: If a size is below 1, or in a call if x has another width, offset is below 0, or a token lies
            past the last position.

    Reference:
        Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1.

    Example:
        >>> import torch
        >>> LearnedPositions(8, 16)(torch.zeros(2, 5, 8), offset=3).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("d_model", d_model, low=1)
            checks.integer("max_length", max_length, low=1)
        self.d_model = d_model
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Add the positions offset, offset + 1, ... to x (batch, tokens, d_model).

        An offset may be one for each sequence, (batch,); what lies before position 0 counts as position 0.
        """
        _check_call(x, self.d_model, offset)
        end = last_offset(offset) + x.shape[-2]
        if end > self.weight.shape[0]:
            raise InvalidArgument(
                f"x: expected positions below {self.weight.shape[0]}, got {end - 1}; shorten the sequence or build the "
                "model with a larger max_length"
            )
        return x + rows_from(self.weight, offset, x.shape[-2]).to(x.dtype)


class NoPositions(nn.Module):
    """Add nothing: a decoder can tell positions by its mask, and attention may be told distances in other ways.

    Example:
        >>> import torch
        >>> NoPositions()(torch.ones(1, 1, 2))
        tensor([[[1., 1.]]])
    """

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Give x (batch, tokens, d_model)."""
        return x


def last_offset(offset: int | Tensor) -> int:
    """The greatest offset, to know how many positions are needed."""
    return int(offset.max()) if isinstance(offset, Tensor) else offset


def rows_from(table: Tensor, offset: int | Tensor, count: int) -> Tensor:
    """The rows of the positions from an offset on, (count, d_model), or (batch, count, d_model) of several offsets."""
    if not isinstance(offset, Tensor):
        return table[offset : offset + count]
    return table[(offset[:, None] + torch.arange(count, device=offset.device)).clamp(min=0)]


def _check_call(x: Tensor, d_model: int, offset: int | Tensor) -> None:
    with Checks() as checks:
        if not checks.tensor("x", x):
            return
        if x.ndim < 2 or x.shape[-1] != d_model:
            checks.fail(f"x: expected shape (batch, tokens, d_model={d_model}), got {tuple(x.shape)}")
        if isinstance(offset, Tensor):
            checks.tensor("offset", offset, "integer", shapes={"(batch,)": x.shape[:1]})
        else:
            checks.integer("offset", offset, low=0)


def sinusoids(length: int, d_model: int, *, interleaved: bool = True) -> Float[Tensor, "length d_model"]:
    """The table of sinusoidal positions (length, d_model), computed in float64 and given in float32."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    angle = position * frequency  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1 if interleaved else 1).flatten(1).float()
