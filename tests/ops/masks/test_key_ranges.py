"""The ranges of keys of all blocks of queries at once: right, as narrow as those of tiles, and read from no value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from helpers.ops.cases import MASKS, allowed, masks
from regard.ops.kernels.blocks import block_key_ranges
from regard.ops.masks import Causal, Documents, Padding, Prefix, Window
from regard.ops.request import make_request
from regard.ops.tree import map_tensors

SHAPE = 2, 3, 21, 34
ROWS = (1, 4, 21, 32)


def request_of(mask, offset=None, shape=SHAPE):
    batch, heads, queries, keys = shape
    return make_request(torch.zeros(batch, heads, queries, 4), torch.zeros(batch, 1, keys, 4), mask=mask, offset=offset)


def check(ranges, cells, rows, tight):
    """Every allowed cell is in the range of its block, and every cell of a full range is allowed."""
    keys = cells.shape[3]
    shape = *cells.shape[:2], -(-cells.shape[2] // rows)
    starts, stops, full_starts, full_stops = (part.expand(shape) for part in ranges)
    key = torch.arange(keys)
    for number, block in enumerate(cells.split(rows, 2)):
        inside = (key >= starts[..., number, None]) & (key < stops[..., number, None])
        full = (key >= full_starts[..., number, None]) & (key < full_stops[..., number, None])
        assert not (block.any(2) & ~inside).any()
        assert not (full & ~block.all(2)).any()
        assert not (full & ~inside).any()
        assert ((starts < stops) | (starts + stops == 0)).all()
        if tight:  # no key at either end that no query sees
            assert torch.equal(starts[..., number], torch.where(block.any(2), key, keys).amin(-1) % keys)
            assert torch.equal(stops[..., number], torch.where(block.any(2), key + 1, 0).amax(-1))


TIGHT = {"causal", "window", "lengths", "padding", "prefix", "documents"}


@pytest.mark.parametrize("offset", [None, 0, -6, 50, -50])
def test_no_allowed_cell_is_outside_and_every_cell_of_a_full_range_is_allowed(offset, subtests):
    for name in MASKS:
        for rows in ROWS:
            with subtests.test(mask=name, rows=rows):
                ranges = block_key_ranges(request_of(masks(*SHAPE)[name], offset), rows)
                assert all(part.dtype == torch.int32 for part in ranges)
                cells = allowed(name, *SHAPE, SHAPE[3] - SHAPE[2] if offset is None else offset)
                check(ranges, cells, rows, tight=name in TIGHT)


@pytest.mark.parametrize("rows", ROWS)
def test_a_selection_has_the_ranges_of_what_was_selected(rows, subtests):
    batch, heads, queries = torch.tensor([1]), torch.tensor([2, 0]), torch.tensor([20, 3, 4, 5, 0, 11])
    for name in MASKS:
        with subtests.test(mask=name):
            request = request_of(masks(*SHAPE)[name]).at(batch, heads, queries)
            cells = allowed(name, *SHAPE, SHAPE[3] - SHAPE[2])[batch][:, heads][:, :, queries]
            check(block_key_ranges(request, rows), cells, rows, tight=name in TIGHT)


def test_ranges_are_no_wider_than_those_of_tiles(subtests):
    everything = slice(0, SHAPE[0]), slice(0, SHAPE[1])
    for name, mask in masks(*SHAPE).items():
        request = request_of(mask)
        if request.mask is None or request.mask.steps(request.place) is None:
            continue
        with subtests.test(mask=name):
            starts, stops, *_ = block_key_ranges(request, 5)
            starts = starts.where(stops > 0, SHAPE[3])
            for number, first in enumerate(range(0, SHAPE[2], 5)):
                tile = request.tile(*everything, slice(first, min(first + 5, SHAPE[2])))
                start, stop = request.mask.key_range(tile)
                assert start <= starts[..., number].min()
                assert stop >= stops[..., number].max()


def test_without_a_mask_everything_is_full():
    starts, stops, full_starts, full_stops = block_key_ranges(request_of(None), 8)
    assert starts.shape == (1, 1, 3)
    assert (starts == 0).all()
    assert (full_starts == 0).all()
    assert (stops == SHAPE[3]).all()
    assert (full_stops == SHAPE[3]).all()


def test_no_value_is_read(subtests):
    """On the meta device there are none: to read one raises, as does a result whose size depends on them."""
    for name, mask in masks(*SHAPE).items():
        request = request_of(mask)
        if request.mask is not None and request.mask.steps(request.place) is None:
            continue
        with subtests.test(mask=name):
            expected = block_key_ranges(request, 4)
            actual = block_key_ranges(map_tensors(request, lambda tensor: tensor.to("meta")), 4)
            assert [(part.shape, part.dtype) for part in actual] == [(part.shape, part.dtype) for part in expected]
            assert all(part.is_meta for part in actual)


def test_examples():
    request = request_of(Causal() & Padding(torch.tensor([5, 2])), shape=(2, 1, 8, 8))
    assert [part.tolist() for part in block_key_ranges(request, 4)] == [
        [[[0, 0]], [[0, 0]]],
        [[[4, 5]], [[2, 2]]],
        [[[0, 0]], [[0, 0]]],
        [[[1, 5]], [[1, 2]]],
    ]
    documents = Documents(torch.tensor([7, 7, 7, 3, 3, 7, -1, 9]))
    assert [part[0, 0].tolist() for part in block_key_ranges(request_of(documents, shape=(1, 1, 8, 8)), 1)] == [
        [0, 0, 0, 3, 3, 0, 0, 7],
        [6, 6, 6, 5, 5, 6, 0, 8],
        [0, 0, 0, 3, 3, 0, 0, 7],
        [0, 0, 0, 5, 5, 0, 0, 8],
    ]
    request = request_of(~Prefix(2), shape=(1, 1, 6, 6))
    assert [part[0, 0].tolist() for part in block_key_ranges(request, 3)] == [[2, 4], [6, 6], [3, 0], [6, 0]]
    request = request_of(~Window(-2, None), shape=(1, 1, 6, 6))
    assert [part[0, 0].tolist() for part in block_key_ranges(request, 3)] == [[0, 0], [4, 6], [0, 0], [2, 5]]


def test_the_ranges_of_tiles_read_the_tensors_of_a_mask_once(subtests):
    """Each time, a GPU would have to be waited for."""
    reading = {Tensor.tolist, Tensor.cpu, Tensor.item, Tensor.__bool__, Tensor.__int__}

    class Reads(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.count += func in reading
            return func(*args, **kwargs or {})

    cases = masks(*SHAPE)
    for name in ("lengths", "padding", "prefixes", "documents", "documents of each", "spans", "spans of heads"):
        with subtests.test(mask=name):
            with Reads() as reads:
                cases[name].summarize()
            assert reads.count == 1
