"""The table of tiles: complete, and within what a GPU has."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from regard.ops.kernels.triton.configurations import (
    CANDIDATES,
    LOADS,
    PASSES,
    SHARED_MEMORY,
    TABLE,
    WIDTHS,
    Tiles,
    num_splits,
    tiles,
)

CPU = torch.device("cpu")


def test_each_architecture_has_tiles_for_each_dtype_width_load_and_pass():
    assert TABLE.keys() == SHARED_MEMORY.keys()
    assert CANDIDATES.keys() == set(PASSES)
    for kinds in TABLE.values():
        assert kinds.keys() == {"half", "float"}
        for widths in kinds.values():
            assert len(widths) == len(WIDTHS)
            for loads in widths:
                assert len(loads) == len(LOADS) + 1
                for row in loads:
                    assert len(row) == len(PASSES)
                    for name, number in zip(PASSES, row, strict=True):
                        assert int(number) < len(CANDIDATES[name])


@pytest.mark.parametrize("kinds", TABLE.values(), ids=TABLE)
def test_wider_or_heavier_calls_have_no_larger_tiles(kinds):
    for widths in kinds.values():
        for loads in widths:
            assert all(one <= other for row in pairwise(loads) for one, other in zip(*row, strict=True))
        for narrow, wide in pairwise(widths):
            assert all(one <= other for row in zip(narrow, wide, strict=True) for one, other in zip(*row, strict=True))


def test_a_short_call_has_few_rows_in_a_tile():
    query = torch.empty(1, 1, 1, 128, dtype=torch.bfloat16)
    assert tiles("forward", query, 128, 0)[::2] == (16, 4)


@pytest.mark.parametrize(
    ("matrices", "queries", "keys", "splits"),
    [(8, 1, 32768, 16), (1, 8, 32768, 64), (512, 1, 32768, 1), (8, 1, 256, 1), (1, 17, 32768, 1)],
)
def test_few_queries_split_their_keys_over_programs(matrices, queries, keys, splits):
    assert num_splits(matrices, queries, keys, Tiles(16, 64, 4, 2), CPU) == splits
