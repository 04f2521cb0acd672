"""Sequences of unequal length in one tensor, and what an encoder is given of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.text.tokenizer import EOS_ID, PAD_ID


def pad_sequences(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Put sequences into one tensor, padded on the right: (rows, longest), int64.

    Example:
        >>> pad_sequences([[5, 6, 7], [8]])
        tensor([[5, 6, 7],
                [8, 0, 0]])
    """
    padded = torch.full((len(sequences), max(map(len, sequences), default=0)), pad_id, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
    return padded


def source_batch(
    sequences: Sequence[Sequence[int]], *, eos_id: int = EOS_ID, pad_id: int = PAD_ID
) -> tuple[Tensor, Tensor]:
    """Make what an encoder reads of ids without special tokens: (src (batch, source), src_lengths (batch,)).

    Example:
        >>> source_batch([[5, 6], [8]])
        (tensor([[5, 6, 2],
                [8, 2, 0]]), tensor([3, 2]))
    """
    ended = [[*sequence, eos_id] for sequence in sequences]
    return pad_sequences(ended, pad_id), torch.tensor([len(sequence) for sequence in ended])
