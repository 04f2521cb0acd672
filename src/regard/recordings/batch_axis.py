"""BatchAxis: what the entries of a layer's batch are, where they are not the sequences that the model read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """How the tokens of an image are cut into windows, row by row.

    The grid of tokens is padded below and on the right to whole windows, then shifted up and to the left by `shift`
    places, cyclically, and cut.

    Args:
        height: Rows of tokens in the image.
        width: Columns of tokens in the image.
        size: Rows and columns of a window.
        shift: By how many places the grid is shifted.

    Reference:
        Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", section 3.2.

    Examples:
        >>> from regard.recordings import Windows
        >>> Windows(3, 4, 2).tokens.tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, -1, -1], [10, 11, -1, -1]]
    """

    height: int
    width: int
    size: int
    shift: int = 0

    @property
    def rows(self) -> int:
        """Rows of windows."""
        return -(-self.height // self.size)

    @property
    def columns(self) -> int:
        """Columns of windows."""
        return -(-self.width // self.size)

    @property
    def count(self) -> int:
        """The number of windows of an image."""
        return self.rows * self.columns

    @cached_property
    def tokens(self) -> Int[Tensor, "windows tokens"]:
        """(windows, tokens) The index of each token in the image, row by row; −1 for padding."""
        rows, columns, size = self.rows, self.columns, self.size
        grid = torch.full((rows * size, columns * size), -1, device="cpu")
        grid[: self.height, : self.width] = torch.arange(self.height * self.width, device="cpu").view(
            self.height, self.width
        )
        grid = grid.roll((-self.shift, -self.shift), (0, 1))
        return grid.view(rows, size, columns, size).transpose(1, 2).reshape(rows * columns, size * size)

    def token_names(self, window: int) -> tuple[str, ...]:
        """``row,column`` of each token of a window in the image, and ``[PAD]``."""
        tokens: list[int] = self.tokens[window].tolist()
        return tuple("[PAD]" if token < 0 else f"{token // self.width},{token % self.width}" for token in tokens)


@dataclass(frozen=True)
class BatchAxis:
    """What the entries of a layer's batch are, where they are not the sequences that the model read.

    Args:
        unit: What an entry is: ``"window"``, ``"image"``, ``"tile"``, ``"frame"``, ``"patch"`` (the same in all
            frames), ``"document"`` or ``"text"``; or ``"unknown"``.
        sequences: The index of the model's sequence that each entry belongs to; none if it is unknown.
        num_sequences: The number of sequences that the model read; 0 if it is unknown.
        places: Where each entry is in its sequence: ``"window 0,2"``, ``"image 2, tile 1"``; empty if it is the whole.
        windows: How each image was cut, if entries are all windows of images.
        spans: The first token of each entry, and one past its last, if the entries follow one another as the tokens of
            one sequence, which attend to those of their own entry. The batch then is 1.
    """

    unit: str
    sequences: tuple[int, ...] = ()
    num_sequences: int = 0
    places: tuple[str, ...] = ()
    windows: Windows | None = None
    spans: tuple[tuple[int, int], ...] | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known which sequence each entry belongs to."""
        return self.unit != "unknown"

    def entries_of(self, sequence: int) -> list[int]:
        """The entries that belong to a sequence, in order."""
        return [entry for entry, owner in enumerate(self.sequences) if owner == sequence]

    def only(self, entries: Sequence[int]) -> BatchAxis:
        """Some entries of one sequence."""
        spans = None
        if self.spans is not None:
            first = self.spans[entries[0]][0]
            spans = tuple((start - first, stop - first) for start, stop in (self.spans[entry] for entry in entries))
        places = tuple(self.places[entry] for entry in entries)
        is_whole = self.windows is not None and len(entries) % self.windows.count == 0
        windows = self.windows if is_whole else None
        return replace(
            self, sequences=(0,) * len(entries), num_sequences=1, places=places, windows=windows, spans=spans
        )

    def token_names(self, entry: int) -> tuple[str, ...] | None:
        """``row,column`` of each token of an entry in its image; None if that is unknown."""
        return None if self.windows is None else self.windows.token_names(entry % self.windows.count)


UNKNOWN_AXIS = BatchAxis("unknown")
"""The axis of a layer with a batch of something else than the model's sequences."""
