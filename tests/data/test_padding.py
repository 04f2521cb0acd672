"""Padding against torch's own."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.data.batching import pad_sequences
from regard.data.pairs import encoder_batch

ROWS = [[5, 6, 7], [], [8]]


def test_padding_is_torchs() -> None:
    expected = pad_sequence([torch.tensor(row, dtype=torch.long) for row in ROWS], batch_first=True, padding_value=9)
    assert torch.equal(pad_sequences(ROWS, pad_id=9), expected)
    assert pad_sequences([]).shape == (0, 0)


def test_sources_end_and_are_counted_so() -> None:
    src, lengths = encoder_batch(ROWS)
    assert src.tolist() == [[5, 6, 7, 2], [2, 0, 0, 0], [8, 2, 0, 0]]
    assert lengths.tolist() == [4, 1, 2]
