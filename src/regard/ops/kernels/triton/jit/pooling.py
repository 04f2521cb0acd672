"""Sums over groups of queries and keys, from the log-sum-exp of each row.

A program has a tile of the result. Tokens are in the order of their groups, so those of a range of groups are adjacent;
it goes through the queries of its groups, or one of SPLITS parts of them, and through all keys of its groups. It
evaluates the mask everywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels.triton.jit.sweeps import SIZES, load_lse, log_weights
from regard.ops.kernels.triton.jit.tiles import head_base, in_rules, load_rows


@triton.jit
def members(groups, b, first, position, stop):
    """Tokens at some positions of the order of groups, and their groups, counted from the first; negative for none."""
    inside = position < stop
    token = tl.load(groups[0] + b.to(tl.int64) * groups[3] + position, mask=inside, other=0)
    group = tl.load(groups[1] + b.to(tl.int64) * groups[3] + token, mask=inside, other=0)
    return token, tl.where(inside, group.to(tl.int32) - first, -1)


@triton.jit
def limits(groups, b, count, first, size):
    """Where the tokens of the groups from the first one on start and stop in the order."""
    starts = groups[2] + b.to(tl.int64) * groups[4]
    return tl.load(starts + first), tl.load(starts + tl.minimum(first + size, count))


@triton.jit
def shares(groups, b, count, group):
    """1 / the number of tokens in each group."""
    starts = groups[2] + b.to(tl.int64) * groups[4]
    inside = group < count
    stop = tl.load(starts + group + 1, mask=inside, other=1)
    return 1.0 / tl.maximum(stop - tl.load(starts + group, mask=inside, other=0), 1).to(tl.float32)


@triton.jit(do_not_specialize=(*SIZES, "height", "width"))
def pool(
    query, key, lse, result, height, width, row_groups, key_groups, queries, keys, heads, key_group, q_strides,
    k_strides, log_scale, selection, mask_args, score_args,
    SELECTED: tl.constexpr, MASK: tl.constexpr, SCORE: tl.constexpr, IS_MEAN: tl.constexpr, SPLITS: tl.constexpr,
    GROUPS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the result: means over the queries of a group, sums or means over its keys.

    Groups are (tokens in order, groups of tokens, starts of groups in the order, and the strides of a batch entry).
    """
    column_tiles = tl.cdiv(width, GROUPS)
    tiles = tl.cdiv(height, GROUPS) * column_tiles
    split = tl.program_id(0) % SPLITS
    matrix = tl.program_id(0) // SPLITS // tiles
    tile = tl.program_id(0) // SPLITS % tiles
    b, h = matrix // heads, matrix % heads
    first_row, first_column = tile // column_tiles * GROUPS, tile % column_tiles * GROUPS
    lane = tl.arange(0, GROUPS)
    start, stop = limits(row_groups, b, height, first_row, GROUPS)
    part = tl.cdiv(stop - start, SPLITS)
    start = start + split * part
    stop = tl.minimum(start + part, stop)
    key_start, key_stop = limits(key_groups, b, width, first_column, GROUPS)
    query, key = head_base(query, q_strides, b, h), head_base(key, k_strides, b, h // key_group)
    lse += matrix.to(tl.int64) * queries
    total = tl.zeros([GROUPS, GROUPS], tl.float32)
    for first in range(start, stop, QUERIES):
        row, row_group = members(row_groups, b, first_row, first + tl.arange(0, QUERIES), stop)
        rule_b, rule_h, place = in_rules(selection, SELECTED, b, h, row)
        query_tile = load_rows(query, row, queries, q_strides[2], D, D_PAD, True)
        row_lse = load_lse(lse, row, queries)
        by_column = tl.zeros([QUERIES, GROUPS], tl.float32)
        for first_key in range(key_start, key_stop, KEYS):
            k, column = members(key_groups, b, first_column, first_key + tl.arange(0, KEYS), key_stop)
            key_tile = load_rows(key, k, keys, k_strides[2], D, D_PAD, True)
            x = tl.dot(query_tile, key_tile.T, input_precision=PRECISION)
            inside = (row_group[:, None] >= 0) & (column[None, :] >= 0)
            at = rule_b, rule_h, place[:, None], place[:, None], k[None, :], inside
            own = b, h, row[:, None], place[:, None], k[None, :], inside
            log_p, _ = log_weights(x, log_scale, row_lse[:, None], at, own, mask_args, score_args, MASK, SCORE, True)
            is_in = (column[:, None] == lane[None, :]).to(tl.float32)
            by_column = tl.dot(tl.exp2(log_p), is_in, by_column, input_precision="ieee")
        is_in = (lane[:, None] == row_group[None, :]).to(tl.float32)
        total = tl.dot(is_in, by_column, total, input_precision="ieee")
    rows, columns = first_row + lane, first_column + lane
    total = total * shares(row_groups, b, height, rows)[:, None]
    if IS_MEAN:
        total = total * shares(key_groups, b, width, columns)[None, :]
    place = ((split * tl.num_programs(0) // SPLITS // tiles + matrix).to(tl.int64) * height + rows[:, None]) * width
    tl.store(result + place + columns[None, :], total, mask=(rows < height)[:, None] & (columns < width)[None, :])
