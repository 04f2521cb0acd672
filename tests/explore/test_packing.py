"""Packing: every weight within its stated error, what a sketch leaves out is told, every objection comes at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from explore.packed import Bytes, read
from regard.analysis.head_scores import head_scores
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.errors import InvalidArgument
from regard.explore.packing import pack
from regard.explore.page import page
from regard.explore.sketches import FINEST, NUMBERS, SIDE, THUMBNAIL, Sketch, plan_of
from regard.ops.weight_matrix import WeightMatrix

TOKENS = 600
"""So many tokens are too many for a page to hold every weight."""


def one(weights: WeightMatrix, **fields: Any) -> Recording:
    """A recording of one layer, whose tokens have no names to speak of."""
    _, _, queries, keys = weights.shape
    return Recording("", "", (Layer("a", "encoder", weights, ("q",) * queries, ("k",) * keys, **fields),))


def random_weights(queries: int, keys: int, heads: int = 2, **options: Any) -> WeightMatrix:
    """Rows that are decided in one head and spread in the next."""
    generator = torch.Generator().manual_seed(queries)
    query = (
        torch.randn(1, heads, queries, 8, generator=generator)
        * torch.tensor([3.0, 0.5]).repeat(heads)[:heads, None, None]
    )
    return regard.weights(query, torch.randn(1, heads, keys, 8, generator=generator), **options)


def long_weights(**options: Any) -> WeightMatrix:
    return random_weights(TOKENS, TOKENS, **options)


def near(read: np.ndarray, exact: np.ndarray, slack: float = 1e-6) -> bool:
    """Whether what was read lies within the error that a page states."""
    return bool((np.abs(read - exact) <= np.maximum(0.01 * exact, 1e-4) + slack).all())


def pooled(dense: Tensor, size: int) -> np.ndarray:
    """How much the queries of a square give to its keys, on their mean: (heads, rows, columns)."""
    rows = torch.stack([part.mean(1) for part in dense.split(size, 1)], 1)
    return torch.stack([part.sum(2) for part in rows.split(size, 2)], 2).numpy()


# Whole matrices.


def test_every_weight_of_a_small_layer_is_read_back_within_the_error_that_is_stated(recording):
    header, blocks = pack(recording)
    assert header["error"] == [0.01, 1e-4]
    for number, layer in enumerate(recording.layers):
        exact = layer.weights.dense()[0].double().numpy()
        squares = read(header, blocks, number).squares
        later = np.triu(np.ones(exact.shape, dtype=bool), 1) & (layer.kind == "decoder")
        assert (np.isnan(squares) == later).all()
        assert (exact[later] == 0).all()
        assert near(np.nan_to_num(squares), exact)


def test_the_stated_error_is_not_larger_than_it_has_to_be(make_weights):
    shares = torch.rand(4, 50, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 8
    weights = make_weights(shares / shares.sum(-1, keepdim=True))
    exact = weights.dense()[0].numpy()
    difference = np.abs(read(*pack(one(weights))).squares - exact)
    assert difference[exact < 0.01].max() > 0.95e-4
    assert (difference / exact)[exact > 0.01].max() > 0.0095


def test_the_metadata_says_how_codes_are_read(recording):
    header = pack(recording)[0]
    told = {"fine": 2e-4, "coarse": 0.01, "growth": 1.02, "linear": 50, "last": 283, "masked": 511}
    assert (header["format"], header["codes"]) == (4, told)


def test_nothing_and_everything_are_exact():
    keys = torch.eye(2)[None, None]
    weights = regard.weights(1000 * keys, keys, scale=1.0)
    assert read(*pack(one(weights))).squares.tolist() == [[[1.0, 0.0], [0.0, 1.0]]]


def test_what_is_masked_is_no_weight_and_a_row_may_be_masked_whole():
    mask = torch.tensor([[True, False], [False, False]])
    weights = regard.weights(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), mask=mask)
    np.testing.assert_equal(read(*pack(one(weights))).squares, [[[1, np.nan], [np.nan, np.nan]]])


def test_small_recordings_have_their_vectors_and_large_ones_do_not():
    weights, value = random_weights(5, 7), torch.randn(1, 2, 7, 8)
    query, key, of_value = read(*pack(one(weights, value=value))).vectors
    np.testing.assert_array_equal(query, weights.request.query[0])
    np.testing.assert_array_equal(key, weights.request.key[0])
    np.testing.assert_array_equal(of_value, value[0])
    wide = regard.weights(torch.ones(1, 1, 4, 2**17), torch.ones(1, 1, 4, 2**17))
    assert read(*pack(one(wide))).vectors == ()


# Sketches.


@pytest.mark.parametrize("columns", [TOKENS, 433])
def test_the_map_of_a_long_layer_is_its_weights_pooled(columns):
    weights = random_weights(TOKENS, columns)
    found = read(*pack(one(weights)))
    size = found.told["size"]
    assert found.told["form"] == "sketch"
    assert size == 3
    exact = pooled(weights.dense()[0].double(), size)
    assert found.squares.shape == exact.shape
    assert near(found.squares, exact)


@pytest.mark.parametrize(("tokens", "heads", "sizes"), [(600, 2, [3, 2]), (1100, 2, [5, 3, 2]), (1100, 24, [5, 3])])
def test_the_map_has_finer_levels_where_there_is_room(tokens, heads, sizes):
    weights = random_weights(tokens, tokens, heads=heads, mask=regard.Causal())
    found = read(*pack(one(weights)))
    assert [found.told["size"], *(each["size"] for each in found.told["finer"])] == sizes
    exact = weights.dense()[0].double()
    later = torch.ones(tokens, tokens).triu(1)
    for size, squares in zip(sizes, [found.squares, *found.finer], strict=True):
        masked = pooled(1 - later[None], size) == 0
        assert (np.isnan(squares) == masked).all()
        assert near(np.nan_to_num(squares), pooled(exact, size))


def test_the_strongest_keys_of_each_row_are_named_and_the_mass_of_the_others_is_told():
    weights = long_weights()
    dense = weights.dense()[0].double()
    found = read(*pack(one(weights)))
    top = dense.topk(found.told["strongest"]).values
    named = dense.gather(-1, torch.from_numpy(found.named))
    assert found.told["strongest"] == 16
    assert all(len(set(row)) == 16 for head in found.named.tolist() for row in head)
    torch.testing.assert_close(named, top, rtol=1e-4, atol=1e-6)  # the same keys, but where two weigh the same
    assert near(found.strongest, top.numpy())
    left = (dense.sum(-1) - top.sum(-1)).numpy()
    assert left.max() > 0.5
    assert near(found.left, left, slack=1e-5)


def test_what_each_key_receives_is_told():
    weights = long_weights(mask=regard.Causal())
    found = read(*pack(one(weights)))
    np.testing.assert_allclose(found.received, weights.dense()[0].sum(1), rtol=1e-3, atol=1e-5)


def test_a_sink_takes_of_a_row_what_no_key_is_said_to_have():
    sinks = regard.Sinks(regard.ScaledDotProduct(), torch.tensor([2.0, 9.0]))
    weights = long_weights(score=sinks)
    dense = weights.dense()[0].double()
    found = read(*pack(one(weights)))
    assert dense[1].sum(-1).max() < 0.2  # else this would test nothing
    left = dense.sum(-1) - dense.topk(16).values.sum(-1)
    assert near(found.left, left.numpy(), slack=1e-5)
    assert found.told["rule"] == "Sinks of ScaledDotProduct"


def blocks_of(keys: int) -> Tensor:
    """A mask of few runs in each row, others in each, and of one row that sees nothing."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(TOKENS, keys // 60, generator=generator) < 0.5
    coarse[7] = False
    return coarse.repeat_interleave(60, 1)


MASKS = {
    "none": None,
    "causal": regard.Causal(),
    "window": regard.Window(40, 3),
    "padding": regard.Padding(torch.tensor([451])),
    "random": blocks_of(TOKENS),
    "causal or some": torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() | blocks_of(TOKENS),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_told_as_runs(name):
    weights = long_weights(mask=MASKS[name])
    found = read(*pack(one(weights)))
    exact = (weights.scores.dense()[0, 0] > -torch.inf).numpy()
    assert (found.told["mask"] == 0) == exact.all()
    np.testing.assert_array_equal(found.allowed, exact)
    seen = pooled(torch.from_numpy(exact)[None].double(), found.told["size"])[0] > 0
    for squares in found.squares:
        np.testing.assert_array_equal(~np.isnan(squares), seen)
    assert near(np.nan_to_num(found.squares), pooled(weights.dense()[0].double(), 3))
    assert found.left[:, ~exact.any(1)].sum() == 0  # a row that sees nothing leaves nothing out


@pytest.mark.parametrize("kind", ["of each head", "of too many runs"])
def test_a_mask_that_is_not_told_is_said_not_to_be(kind):
    generator = torch.Generator().manual_seed(1)
    heads = 2 if kind == "of each head" else 1
    mask = torch.rand(1, heads, TOKENS, TOKENS, generator=generator) < 0.5
    if kind == "of each head":
        mask[:, 0] = True
        mask[:, 1] = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    found = read(*pack(one(long_weights(mask=mask))))
    assert found.told["mask"] is None
    assert found.allowed is None
    exact = mask[0].expand(2, -1, -1).double()
    np.testing.assert_array_equal(np.isnan(found.squares), pooled(exact, 3) == 0)


@pytest.mark.parametrize("tokens", [20, 50, TOKENS])
def test_thumbnails_come_first_and_are_small(tokens):
    weights = random_weights(tokens, tokens, mask=regard.Causal())
    header, blocks = pack(one(weights))
    rows, columns = header["layers"][0]["thumbnail"]
    assert max(rows, columns) <= THUMBNAIL
    size = -(-tokens // rows)
    read_back = Bytes(blocks[0]).weights((2, rows, columns))
    if tokens == TOKENS:  # pooled twice: by 3, then by 7
        assert (rows, columns) == (29, 29)
        size = 21
    assert near(np.nan_to_num(read_back), pooled(weights.dense()[0].double(), size))
    assert np.isnan(read_back[:, 0, -1]).all()


# Sizes.


def test_twelve_layers_of_twelve_heads_at_128_tokens_take_less_than_four_megabytes():
    generator = torch.Generator().manual_seed(0)
    tokens = tuple(f"▁word{index}" for index in range(128))
    spread = torch.linspace(0.3, 2.5, 12)[:, None, None]
    layers = [
        Layer(
            f"encoder.{layer}",
            "encoder",
            regard.weights(
                spread * torch.randn(1, 12, 128, 64, generator=generator),
                torch.randn(1, 12, 128, 64, generator=generator),
            ),
            tokens,
            tokens,
        )
        for layer in range(12)
    ]
    assert plan_of([layer.weights.shape for layer in layers]) == [None] * 12  # every weight is there
    assert len(page(Recording("", "", tuple(layers)))) < 4_000_000


def test_at_512_tokens_it_is_a_sketch_within_25_megabytes_and_at_4096_within_60():
    for tokens, most, size in ((512, 25_000_000, 2), (4096, 60_000_000, 16)):
        plan = plan_of([(1, 12, tokens, tokens)] * 12)
        assert plan == [Sketch(size, 16)] * 12
        squares, named = 144 * (tokens // size) ** 2, 144 * 16 * tokens
        # Nine bits of a code and as many of a key as it has, in base64; and two numbers for each token and head.
        bits = squares * 9 + named * (9 + np.log2(tokens)) + 144 * tokens * 25
        assert bits / 8 * 4 / 3 < most


@pytest.mark.parametrize(
    ("layers", "heads", "tokens", "expected"),
    [
        (12, 12, 256, None),
        (12, 12, 257, Sketch(2, 16)),
        (12, 12, 16_384, Sketch(64, 4)),
        (32, 32, 4096, Sketch(64, 2)),
        (80, 64, 4096, Sketch(128, 1)),
    ],
)
def test_larger_models_have_coarser_sketches(layers, heads, tokens, expected):
    plan = plan_of([(1, heads, tokens, tokens)] * layers)
    assert plan == [expected] * layers
    if expected is not None:
        squares = layers * heads * (-(-tokens // expected.size)) ** 2
        named = layers * heads * tokens * expected.strongest
        assert squares <= NUMBERS or tokens / expected.size == THUMBNAIL
        assert named <= NUMBERS or expected.strongest == 1


def test_no_map_is_larger_than_a_page_shows_and_short_layers_stay_whole():
    assert plan_of([(1, 8, 30, 30), (1, 8, 30_000, 30_000)]) == [None, Sketch(118, 16, (59,))]
    for tokens in (300, 1000, 5000, 100_000):
        (sketch,) = plan_of([(1, 1, tokens, tokens)])
        assert -(-tokens // sketch.size) <= SIDE
        assert all(size > 1 and -(-tokens // size) <= FINEST for size in sketch.finer)
        assert list(sketch.finer) == sorted(sketch.finer, reverse=True)


# What is told besides, and what is refused.


def test_tokens_and_texts_are_whole(recording):
    strange = ("</script>", '"', "\\", "\x00\x1b", "\u202e", "\U0001f469\u200d\U0001f467", "\ud800", "", "ß" * 10_000)
    weights = regard.weights(torch.zeros(1, 1, 9, 1), torch.zeros(1, 1, 9, 1))
    layer = Layer("a", "encoder", weights, strange, strange)
    header, _ = pack(Recording("t", "m", (layer,), {"source": "</script>"}))
    again = json.loads(json.dumps(header))
    assert tuple(again["sequences"][0]["tokens"]) == strange
    assert (again["title"], again["model"], again["texts"]) == ("t", "m", {"source": "</script>"})


def test_a_sequence_is_stored_once_and_roles_are_kept_apart(recording):
    header, _ = pack(recording)
    assert [sequence["role"] for sequence in header["sequences"]] == ["source", "written", "read"]
    ends = {(entry["kind"], entry["queries"], entry["keys"]) for entry in header["layers"]}
    assert ends == {("encoder", 0, 0), ("decoder", 1, 2), ("cross", 1, 0)}


def test_what_heads_do_is_told_for_each(recording):
    header, _ = pack(recording)
    scores = head_scores(recording)
    for entry in header["layers"]:
        rows = [row for row, name in enumerate(scores["layer"]) if name == entry["name"]]
        assert entry["scores"]["entropy"] == pytest.approx([scores["entropy"][row] for row in rows], abs=1e-5)
        assert all(len(values) == len(entry["heads"]) for values in entry["scores"].values())


def test_a_translation_that_equals_its_source_is_still_another_text(make_recording):
    header, _ = pack(make_recording(source=("▁Berlin", "</s>"), written=("▁Berlin", "</s>")))
    cross = next(entry for entry in header["layers"] if entry["kind"] == "cross")
    assert cross["queries"] != cross["keys"]


def test_all_objections_come_at_once(recording):
    first, second, *_ = recording.layers
    layers = (first.replace(query_tokens=("one",)), second.replace(name="encoder.0"))
    with pytest.raises(InvalidArgument) as caught:
        recording.replace(layers=layers)
    message = str(caught.value)
    assert "layer 'encoder.0': query_tokens: expected 8 tokens, as the weights have, got 1" in message
    assert "expected every layer to have a name of its own, got 'encoder.0' 2 times" in message


def test_a_recording_needs_a_layer(recording):
    with pytest.raises(InvalidArgument, match="recording: expected at least one layer, got none"):
        pack(recording.replace(layers=()))


class Claimed(WeightMatrix):
    """A view that claims its weights to be others."""

    claimed: Tensor

    def dense(self) -> Tensor:
        return self.claimed


def claimed(value: float) -> Recording:
    weights = Claimed(random_weights(1, 2, heads=1).request)
    weights.claimed = torch.tensor([[[[value, 0.5]]]])
    return one(weights)


@pytest.mark.parametrize(("value", "told"), [(float("nan"), "nan"), (-0.5, "-0.5"), (1.5, "1.5")])
def test_what_is_no_weight_is_refused(value, told):
    with pytest.raises(InvalidArgument, match=f"layer 'a': expected weights from 0 to 1, got values from .*{told}"):
        pack(claimed(value))


def test_half_precision_may_round_a_little_beyond_one():
    assert read(*pack(claimed(1.0005))).squares[0, 0, 0] == 1


def test_a_long_layer_without_a_number_is_refused_too():
    weights = regard.weights(torch.full((1, 1, TOKENS, 4), float("nan")), torch.ones(1, 1, TOKENS, 4))
    with pytest.raises(InvalidArgument, match="layer 'a': expected weights from 0 to 1, got values from nan"):
        pack(one(weights))
