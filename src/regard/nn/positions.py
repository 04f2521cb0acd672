"""Absolute positions, added to embeddings: sinusoidal or learned."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InvalidArgument, count_problems, raise_problems


class SinusoidalPositions(nn.Module):
    """Add fixed waves whose lengths form a geometric progression from 2π to 10000 · 2π.

    PE(t, 2i) = sin(t / 10000^(2i / d_model)), PE(t, 2i + 1) = cos(t / 10000^(2i / d_model))

    Args:
        d_model: Width of the hidden states, even.
        interleaved: False puts all sines before all cosines, as tensor2tensor and Marian have them.

    Raises:
        InvalidArgument: If d_model is odd or not positive, or at a call with another width or an offset below 0.

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
        if d_model < 1 or d_model % 2:
            raise InvalidArgument(f"d_model must be even and positive for sinusoidal positions, but is {d_model}")
        self.d_model, self.interleaved = d_model, interleaved
        self.register_buffer("table", None, persistent=False)
        self.reset_table()

    def reset_table(self) -> None:
        """Compute the first positions anew; whoever built the module on the ``meta`` device must call it."""
        self.table = sinusoids(512, self.d_model, interleaved=self.interleaved)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Add the positions offset, offset + 1, ... to x (batch, tokens, d_model).

        An offset may be one for each sequence, (batch,); what lies before position 0 counts as position 0.
        """
        raise_problems(call_objections(x, self.d_model, offset))
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
        InvalidArgument: If a size is not positive, or at a call with another width, with an offset below 0 or past the
            last position.

    Reference:
        Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1.

    Example:
        >>> import torch
        >>> LearnedPositions(8, 16)(torch.zeros(2, 5, 8), offset=3).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        raise_problems(count_problems(d_model=d_model, max_length=max_length))
        self.d_model = d_model
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"], offset: int | Int[Tensor, " batch"] = 0
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Add the positions offset, offset + 1, ... to x (batch, tokens, d_model).

        An offset may be one for each sequence, (batch,); what lies before position 0 counts as position 0.
        """
        raise_problems(call_objections(x, self.d_model, offset))
        end = last_offset(offset) + x.shape[-2]
        if end > self.table.shape[0]:
            raise InvalidArgument(
                f"a sequence reaches position {end}, but there are {self.table.shape[0]} learned positions: "
                "shorten it, or build the model with a larger max_length"
            )
        return x + rows_from(self.table, offset, x.shape[-2]).to(x.dtype)


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


def call_objections(x: Tensor, d_model: int, offset: int | Tensor) -> list[str]:
    """Say why no positions can be added to x from an offset on."""
    objections = []
    if x.ndim < 2 or x.shape[-1] != d_model:
        objections.append(f"x must have the shape (batch, tokens, d_model={d_model}), but has {tuple(x.shape)}")
    if isinstance(offset, Tensor):
        if offset.shape != x.shape[:1] or offset.is_floating_point():
            objections.append(f"offset must be {x.shape[0]} integers (batch,), but has {tuple(offset.shape)}")
    elif offset < 0:
        objections.append(f"offset must be at least 0, but is {offset}")
    return objections


def sinusoids(length: int, d_model: int, *, interleaved: bool = True) -> Float[Tensor, "length d_model"]:
    """The table of sinusoidal positions (length, d_model), computed in float64 and given in float32."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # (length, 1)
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000) / d_model))
    angle = position * frequency  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1 if interleaved else 1).flatten(1).float()
