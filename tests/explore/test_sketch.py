"""What a page stores of a layer: all weights with their exact order, or a sketch, whose every number is checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from helpers.explore.page_cases import (
    LONG,
    NOT_COMPUTED,
    PRECISION,
    assert_stored,
    block_means,
    claim_weights,
    decimals,
    long_weights,
    one_layer,
    random_weights,
    twelve_layers,
)
from helpers.explore.page_reader import StoredLayer, ranked, read_layer, read_thumbnails
from regard.explore.html_page import to_html
from regard.explore.pack import pack
from regard.explore.sketch import MAX_LEVEL_SIZE, MAX_MAP_SIZE, MAX_VALUES, THUMBNAIL, SketchPlan, plan_sketches
from regard.ops.weight_matrix import WeightMatrix


def stored(weights: WeightMatrix, **fields) -> StoredLayer:
    """The layer of a page of these weights."""
    return read_layer(*pack(one_layer(weights, **fields)))


# All weights.


def test_every_weight_of_a_small_layer_is_stored_with_its_three_decimals(recording):
    header, blocks = pack(recording)
    assert header["precision"] == PRECISION
    for number, layer in enumerate(recording.layers):
        exact = layer.weights.dense()[0].numpy()
        weights = read_layer(header, blocks, number).weights
        future = np.triu(np.ones(exact.shape, dtype=bool), 1) & (layer.kind == "decoder")
        assert (np.isnan(weights) == future).all()
        assert (exact[future] == 0).all()
        assert_stored(np.nan_to_num(weights), exact.astype(np.float64), rounding=0)
        assert decimals(weights[~future]) == decimals(exact[~future])


def test_the_precision_is_not_larger_than_it_has_to_be(make_weights):
    shares = torch.rand(4, 50, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 8
    weights = make_weights(shares / shares.sum(-1, keepdim=True))
    difference = np.abs(stored(weights).weights - weights.dense()[0].numpy())
    assert 0.99 * PRECISION < difference.max() <= PRECISION


def test_zero_and_one_are_exact():
    keys = torch.eye(2)[None, None]
    weights = regard.weights(1000 * keys, keys, scale=1.0)
    assert stored(weights).weights.tolist() == [[[1.0, 0.0], [0.0, 1.0]]]


def test_masked_cells_are_marked_and_a_row_may_be_masked_as_a_whole():
    mask = torch.tensor([[True, False], [False, False]])
    weights = regard.weights(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), mask=mask)
    np.testing.assert_equal(stored(weights).weights, [[[1, np.nan], [np.nan, np.nan]]])


def test_weights_above_one_are_stored_as_they_are():
    assert stored(claim_weights(1.0005, 0.5)).weights.tolist() == [[[3001 / 3000, 0.5]]]


TIES = {
    "sharp": random_weights(40, 30),
    "nearly uniform": regard.weights(random_weights(60, 250).request.query / 50, random_weights(60, 250).request.key),
    "uniform": regard.weights(torch.zeros(1, 1, 20, 4), torch.zeros(1, 1, 20, 4)),
    "causal": random_weights(40, 40, mask=regard.Causal()),
    "three keys": random_weights(300, 3),
    "zeros": regard.weights(200 * torch.eye(12)[None, None], torch.eye(12)[None, None], scale=1.0),
}


@pytest.mark.parametrize("name", TIES)
def test_the_order_of_the_strongest_is_exact_where_stored_weights_are_equal(name):
    """With a score from which the page cannot compute the weights."""
    request = TIES[name].request
    sinks = regard.Sinks(regard.ScaledDotProduct(), torch.full((request.query.shape[1],), -30.0))
    weights = regard.weights(request.query, request.key, mask=request.mask, scale=request.scale, score=sinks)
    exact = weights.dense()[0].numpy()
    allowed = (weights.scores.dense()[0] > -torch.inf).expand(exact.shape).numpy()
    layer = stored(weights)
    assert layer.query_order.any() == (name not in ("uniform", "zeros"))
    for axis, order in (("queries", layer.key_order), ("keys", layer.query_order)):
        for head, index in np.ndindex(order.shape[:2]):
            line = (head, index) if axis == "queries" else (head, slice(None), index)
            expected = strongest(exact[line], allowed[line])
            assert ranked(layer.weights[line], order[head, index]).tolist() == expected


def strongest(weights: np.ndarray, allowed: np.ndarray) -> list[int]:
    """The indices of the eight largest weights, equal ones in the order of the text."""
    return sorted(np.flatnonzero(allowed).tolist(), key=lambda index: -weights[index])[:8]


# Sketches.


@pytest.mark.parametrize("columns", [LONG, 433])
def test_the_map_of_a_long_layer_holds_block_means(columns):
    weights = random_weights(LONG, columns, score=NOT_COMPUTED)
    layer = stored(weights)
    assert (layer.header["storage"], layer.header["levels"][0]) == ("sketch", 3)
    exact = block_means(weights.dense()[0].double(), 3)
    assert layer.blocks[3].shape == exact.shape
    assert_stored(layer.blocks[3], exact)


@pytest.mark.parametrize(("tokens", "heads", "levels"), [(600, 2, [3, 2]), (1100, 2, [5, 3, 2]), (1100, 24, [5, 3])])
def test_maps_have_finer_levels_if_there_is_room(tokens, heads, levels):
    weights = random_weights(tokens, tokens, heads=heads, mask=regard.Causal(), score=NOT_COMPUTED)
    layer = stored(weights)
    assert layer.header["levels"] == levels
    exact = weights.dense()[0].double()
    future = torch.ones(tokens, tokens).triu(1)
    for size, blocks in layer.blocks.items():
        masked = block_means(1 - future[None], size) == 0
        assert (np.isnan(blocks) == masked).all()
        assert_stored(np.nan_to_num(blocks), block_means(exact, size))


def test_the_strongest_keys_of_each_row_are_stored_in_their_order_with_the_mass_of_the_others():
    weights = long_weights()
    dense = weights.dense()[0].double()
    layer = stored(weights)
    top = dense.topk(16)
    assert layer.top_keys.shape == (2, LONG, 16)
    assert all(len(set(row)) == 16 for head in layer.top_keys.tolist() for row in head)
    exact = dense.gather(-1, torch.from_numpy(layer.top_keys))
    torch.testing.assert_close(
        exact, top.values, rtol=1e-5, atol=1e-7
    )  # the same keys, except where two weigh the same
    assert_stored(layer.top_weights, exact.numpy())
    is_boundary = np.abs(1000 * exact.numpy() % 1 - 0.5).ravel() < 1e-3  # two kernels computed the weights
    assert ((np.array(decimals(layer.top_weights)) == decimals(exact.float())) | is_boundary).all()
    rest = (dense.sum(-1) - top.values.sum(-1)).numpy()
    assert rest.max() > 0.5
    assert_stored(layer.rest, rest)


def test_received_is_the_sum_of_each_column():
    weights = long_weights(mask=regard.Causal())
    np.testing.assert_allclose(stored(weights).received, weights.dense()[0].sum(1), rtol=1e-5, atol=1e-6)


def test_rest_leaves_out_what_a_sink_takes():
    sinks = regard.Sinks(regard.ScaledDotProduct(), torch.tensor([2.0, 9.0]))
    weights = long_weights(score=sinks)
    dense = weights.dense()[0].double()
    layer = stored(weights)
    assert dense[1].sum(-1).max() < 0.2  # else this would test nothing
    rest = dense.sum(-1) - dense.topk(16).values.sum(-1)
    assert_stored(layer.rest, rest.numpy())
    assert (layer.header["score"], layer.header["has_sinks"]) == ("Sinks of ScaledDotProduct", True)


def random_blocks(keys: int) -> Tensor:
    """A mask with few runs in each row, others in each, and one row without any key."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(LONG, keys // 60, generator=generator) < 0.5
    coarse[7] = False
    return coarse.repeat_interleave(60, 1)


MASKS = {
    "none": None,
    "causal": regard.Causal(),
    "window": regard.Window(40, 3),
    "padding": regard.Padding(torch.tensor([451])),
    "random": random_blocks(LONG),
    "causal or random": torch.ones(LONG, LONG, dtype=torch.bool).tril() | random_blocks(LONG),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_stored_as_runs(name):
    weights = long_weights(mask=MASKS[name])
    layer = stored(weights)
    exact = (weights.scores.dense()[0, 0] > -torch.inf).numpy()
    assert layer.header["mask"] == ("none" if name == "none" else "runs")
    assert name == "none" or not exact.all()
    np.testing.assert_array_equal(layer.allowed, exact)
    for size, maps in layer.blocks.items():
        visible = block_means(torch.from_numpy(exact)[None].double(), size)[0] > 0
        for blocks in maps:
            np.testing.assert_array_equal(~np.isnan(blocks), visible)
        assert_stored(np.nan_to_num(maps), block_means(weights.dense()[0].double(), size))
    assert layer.rest[:, ~exact.any(1)].sum() == 0
    assert layer.top_weights[:, ~exact.any(1)].sum() == 0


@pytest.mark.parametrize("kind", ["differs between heads", "too many runs"])
def test_a_mask_that_is_not_stored_is_marked_unknown(kind):
    generator = torch.Generator().manual_seed(1)
    heads = 2 if kind == "differs between heads" else 1
    mask = torch.rand(1, heads, LONG, LONG, generator=generator) < 0.5
    if kind == "differs between heads":
        mask[:, 0] = True
        mask[:, 1] = torch.ones(LONG, LONG, dtype=torch.bool).tril()
    layer = stored(long_weights(mask=mask))
    assert (layer.header["mask"], layer.allowed) == ("unknown", None)
    exact = mask[0].expand(2, -1, -1).double()
    np.testing.assert_array_equal(np.isnan(layer.blocks[3]), block_means(exact, 3) == 0)


@pytest.mark.parametrize("tokens", [20, 50, LONG])
def test_thumbnails_are_small_and_within_a_step_of_their_scale(tokens):
    weights = random_weights(tokens, tokens, mask=regard.Causal())
    header, blocks = pack(one_layer(weights))
    rows, columns = header["layers"][0]["thumbnail"]
    assert max(rows, columns) <= THUMBNAIL
    size = -(-tokens // rows)
    thumbnails = read_thumbnails(blocks)
    assert thumbnails.shape == (2, rows, columns)
    if tokens == LONG:  # pooled twice: by 3, then by 7
        assert (rows, columns) == (29, 29)
        size = 21
    exact = block_means(weights.dense()[0].double(), size)
    assert np.abs(np.sqrt(np.nan_to_num(thumbnails)) - np.sqrt(exact)).max() <= 0.5 / 254 + 1e-6
    assert (np.isnan(thumbnails) == (np.triu(np.ones((rows, columns)), 1) > 0)).all()


# Sizes.


def test_twelve_layers_of_twelve_heads_at_128_tokens_take_less_than_four_megabytes():
    recording = twelve_layers(128)
    assert plan_sketches([layer.weights.shape for layer in recording.layers]) == [None] * 12  # every weight is there
    assert len(to_html(recording)) < 4_000_000


def test_the_order_of_ties_takes_little_room():
    """It is mostly zeros, so it compresses to a fraction of the weights."""
    header, blocks = pack(twelve_layers(64))
    assert header["layers"][0]["qkv"] == []
    layer = read_layer(header, blocks)
    assert np.mean(layer.key_order == 0) > 0.8
    assert np.mean(layer.query_order == 0) > 0.8


def test_at_512_tokens_it_is_a_sketch_within_25_megabytes_and_at_4096_within_60():
    for tokens, limit, size in ((512, 25_000_000, 2), (4096, 60_000_000, 16)):
        plans = plan_sketches([(1, 12, tokens, tokens)] * 12)
        assert plans == [SketchPlan(size, 16)] * 12
        cells, top_keys = 144 * (tokens // size) ** 2, 144 * 16 * tokens
        # Eight bits of a code and as many of a key as it has, in base64; and four bytes for each token and head.
        bits = cells * 8 + top_keys * (8 + np.log2(tokens)) + 144 * tokens * 32
        assert bits / 8 * 4 / 3 < limit


@pytest.mark.parametrize(
    ("layers", "heads", "tokens", "expected"),
    [
        (12, 12, 256, None),
        (12, 12, 257, SketchPlan(2, 16)),
        (12, 12, 16_384, SketchPlan(64, 4)),
        (32, 32, 4096, SketchPlan(64, 2)),
        (80, 64, 4096, SketchPlan(128, 1)),
    ],
)
def test_larger_models_have_coarser_sketches(layers, heads, tokens, expected):
    plans = plan_sketches([(1, heads, tokens, tokens)] * layers)
    assert plans == [expected] * layers
    if expected is not None:
        cells = layers * heads * (-(-tokens // expected.block_size)) ** 2
        top_keys = layers * heads * tokens * expected.top_k
        assert cells <= MAX_VALUES or tokens / expected.block_size == THUMBNAIL
        assert top_keys <= MAX_VALUES or expected.top_k == 1


def test_no_map_is_larger_than_a_page_shows_and_short_layers_stay_dense():
    assert plan_sketches([(1, 8, 30, 30), (1, 8, 30_000, 30_000)]) == [None, SketchPlan(118, 16, (59,))]
    for tokens in (300, 1000, 5000, 100_000):
        (plan,) = plan_sketches([(1, 1, tokens, tokens)])
        assert -(-tokens // plan.block_size) <= MAX_MAP_SIZE
        assert all(size > 1 and -(-tokens // size) <= MAX_LEVEL_SIZE for size in plan.finer_sizes)
        assert list(plan.levels) == sorted(plan.levels, reverse=True)
