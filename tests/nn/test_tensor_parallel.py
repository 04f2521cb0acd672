"""Heads and hidden features that processes divide."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from helpers.divided_modules import compare_dropout, compare_with_whole
from helpers.training_ranks import start_ranks
from regard.errors import InvalidArgument
from regard.nn import AttentionPositions, FeedForward, MultiHeadAttention
from regard.nn.tensor_parallel import shard_heads


def test_divided_modules_compute_what_whole_ones_do(tmp_path: Path) -> None:
    start_ranks(compare_with_whole, count=2, folder=tmp_path / "ranks")


def test_processes_drop_different_heads_and_features_and_the_same_hidden_states(tmp_path: Path) -> None:
    start_ranks(compare_dropout, count=2, folder=tmp_path / "ranks")


class _Unknown(AttentionPositions):
    """Positions of a user who did not think of heads."""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (MultiHeadAttention(16, 4), "num_heads: expected a multiple of 3, the number of processes, got 4"),
        (MultiHeadAttention(24, 6, num_kv_heads=2), "num_kv_heads: expected a multiple of 3"),
        (FeedForward(16, 32), "d_ff: expected a multiple of 3, the number of processes, got 32"),
        (_Unknown(), "_Unknown: expected head_axes, which says which of its tensors have an axis of heads, got None"),
    ],
)
def test_what_cannot_be_divided_is_named(module: nn.Module, message: str) -> None:
    mesh: Any = SimpleNamespace(size=lambda: 3)
    with pytest.raises(InvalidArgument, match=message):
        shard_heads(module, mesh)
