"""The attention of segments, against sums over dense float64 weights."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import Tensor

import regard
from regard.analysis import segment_attention
from regard.errors import InvalidArgument, InvalidType
from regard.pipelines import Translator
from regard.recordings import Layer, Recording

CHAT = [
    *("<s>", "<|im_start|>", "system", "Ċ", "Be", "Ġnice", "<|im_end|>", "Ċ"),
    *("<|im_start|>", "user", "Ċ", "Who", "Ġare", "Ġyou", "?", "<|im_end|>", "Ċ"),
    *("<|im_start|>", "assistant", "Ċ", "A", "Ġcat", "."),
]


def layer_of(
    kind="decoder", queries=23, keys=23, heads=4, tokens=None, name="layer.0", valid=None, offset=None, **options
) -> Layer:
    torch.manual_seed(0)
    query, key = torch.randn(1, heads, queries, 8), torch.randn(1, 2, keys, 8)
    if kind == "decoder":
        options.setdefault("mask", regard.Causal())
    weights = regard.weights(query, key, offset=offset, scale=0.7, **options)
    if valid is not None:
        weights = regard.WeightMatrix(weights.request, valid[None])
    key_tokens = [f"▁t{number}" for number in range(keys)] if tokens is None else tokens
    query_tokens = [f"▁q{number}" for number in range(queries)] if kind == "cross" else key_tokens[keys - queries :]
    return Layer(name, kind, weights, query_tokens, key_tokens)


def dense(layer: Layer) -> Tensor:
    """(heads, queries, keys) in float64, by the definition of attention."""
    request = layer.weights.request
    precise = regard.WeightMatrix(
        type(request)(**{**vars(request), "query": request.query.double(), "key": request.key.double()})
    )
    return precise.dense()[0]


def shares_of(table) -> dict[str, list[float]]:
    """The share of each segment, by head; the table has one layer."""
    shares = defaultdict(list)
    for segment, share in zip(table["segment"], table["share"], strict=True):
        shares[segment].append(share)
    return shares


def assert_shares(table, expected: dict[str, Tensor]) -> None:
    shares = shares_of(table)
    assert list(shares) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(torch.tensor(shares[name]).double(), values, rtol=0, atol=2e-6)


def by_position(layer: Layer, rows: list[int], first: int = 0) -> dict[str, Tensor]:
    """The four default segments, key by key."""
    P = dense(layer)
    keys = P.shape[2]
    edge = min(64, -(-(keys - first) // 10))
    is_decoder, offset = layer.kind == "decoder", layer.weights.request.offset
    last = "recent" if is_decoder else "end"
    sums = {name: torch.zeros(len(P)).double() for name in ("first", "beginning", "middle", last)}
    for i in rows:
        for j in range(keys):
            near = i + offset - edge < j <= i + offset if is_decoder else j >= keys - edge
            name = "first" if j == first else last if near else "beginning" if first < j <= first + edge else "middle"
            sums[name] += P[:, i, j] / len(rows)
    return sums


@pytest.mark.parametrize("kind", ["decoder", "encoder", "cross"])
@pytest.mark.parametrize("keys", [1, 2, 3, 4, 11, 23, 40])
def test_parts_of_a_text_by_position(kind, keys):
    layer = layer_of(kind, queries=5 if kind == "cross" else keys, keys=keys)
    table = segment_attention(Recording("", "", [layer]))
    assert_shares(table, by_position(layer, list(range(layer.weights.shape[2]))))
    assert (set(table["layer"]), set(table["kind"])) == ({"layer.0"}, {kind})
    assert table["head"][:: len(table["head"]) // 4] == [0, 1, 2, 3]
    if kind != "decoder" or keys > 4:
        assert sum(table["num_tokens"]) == 4 * keys


def test_recent_tokens_of_a_long_text_are_64():
    layer = layer_of(queries=700, keys=700, heads=2)
    table = segment_attention([layer])
    assert table["num_tokens"][:4] == [1, 64, 700 - 129, 64]
    assert_shares(table, by_position(layer, list(range(700))))


@pytest.mark.parametrize(
    "options",
    [
        {"score": regard.Sinks(regard.ScaledDotProduct(), torch.tensor([0.5, -1.0, 2.0, 9.0]))},
        {"score": regard.ScaledDotProduct() + regard.Alibi.for_heads(4)},
        {"mask": regard.Window(9, 0)},
        {"mask": None},
        {"mask": regard.Causal() & (torch.rand(30, 30, generator=torch.Generator().manual_seed(0)) > 0.5)},
    ],
)
def test_every_mask_and_score(options):
    layer = layer_of(queries=30, keys=30, **options)
    table = segment_attention([layer])
    expected = by_position(layer, list(range(30)))
    assert_shares(table, expected)
    total = sum(expected.values())
    torch.testing.assert_close(total, dense(layer).sum(2).mean(1))  # 1, or less with sinks or rows without keys
    named = segment_attention([layer], {"a": range(3, 9), "b": [20, 22]})
    P = dense(layer).mean(1)
    assert_shares(
        named,
        {
            "first": P[:, 0],
            "a": P[:, 3:9].sum(1),
            "b": P[:, 20] + P[:, 22],
            "rest": total - P[:, [0, *range(3, 9), 20, 22]].sum(1),
        },
    )


def test_large_scores_lose_no_digits():
    torch.manual_seed(0)
    weights = regard.weights(*(30 * torch.randn(2, 1, 2, 50, 8)), mask=regard.Causal())
    layer = Layer("d", "decoder", weights)
    assert weights.scores.dense().abs().max() > 3000
    shares = shares_of(segment_attention([layer]))
    P, edge = weights.dense()[0].double(), 5
    i, j = torch.arange(50)[:, None], torch.arange(50)
    recent = P.where((j > i - edge) & (j <= i) & (j > 0), 0.0).sum(2).mean(1)
    torch.testing.assert_close(torch.tensor(shares["recent"]).double(), recent, rtol=0, atol=1e-3)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_padding_does_not_count(kind, before):
    valid = torch.tensor([False] * before + [True] * (20 - before) + [False] * (3 - before))
    mask = regard.Padding(valid[None])
    layer = layer_of(
        kind, len(valid), len(valid), valid=valid, mask=mask & regard.Causal() if kind == "decoder" else mask
    )
    rows = valid.nonzero().flatten().tolist()
    P = dense(layer)[:, rows].mean(1)
    assert_shares(
        segment_attention([layer], {"a": [before + 4, before + 9]}),
        {
            "first": P[:, before],
            "a": P[:, before + 4] + P[:, before + 9],
            "rest": 1 - P[:, [before, before + 4, before + 9]].sum(1),
        },
    )
    table = segment_attention([layer])
    assert shares_of(table)["first"] == pytest.approx(P[:, before].tolist(), abs=2e-6)
    assert segment_attention([layer], queries=slice(None)) == table
    if before:  # nothing after the text
        assert_shares(table, by_position(layer, rows, before))


def test_one_sequence_of_a_batch():
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 2, 30, 8)
    mask = regard.Causal() & regard.Padding(torch.tensor([10, 30, 20]))
    tokens = [f"▁t{number}" for number in range(30)]
    batch = Recording("", "", [Layer("d", "decoder", regard.weights(query, key, mask=mask))])
    layer = batch.select(1, tokens=tokens).layers[0]
    alone = Layer("d", "decoder", regard.weights(query[1:2], key[1:2], mask=regard.Causal()), tokens, tokens)
    assert segment_attention([layer])["share"] == pytest.approx(segment_attention([alone])["share"], abs=1e-6)
    with pytest.raises(InvalidArgument, match="expected one sequence, got a batch of 3"):
        segment_attention(batch)


TOKENS = [
    "▁You",
    "▁are",
    "▁a",
    "▁help",
    "ful",
    "▁assist",
    "ant",
    ".",
    "▁A",
    "▁cat",
    "▁sat",
    ".",
    "▁A",
    "▁dog",
    "▁sat",
    ",",
    "▁Why",
    "?",
    "▁You",
    "▁said",
    "▁so",
    "▁yes",
    "!",
]


@pytest.mark.parametrize(
    ("value", "positions"),
    [
        ("You are a helpful assistant.", range(8)),
        ("A cat sat. A dog sat", range(8, 15)),
        ("sat", [10, 14]),
        (range(3, 6), range(3, 6)),
        (slice(-4, None), range(19, 23)),
        (slice(4), range(4)),
        (slice(20, 99), range(20, 23)),
        ([-1, 5], [5, 22]),
        ((7, 7), [7]),
    ],
)
def test_a_segment_is_a_text_a_range_a_slice_or_a_list(value, positions):
    layer = layer_of(tokens=TOKENS)
    P, keys = dense(layer).mean(1), list(positions)
    rest = [key for key in range(23) if key not in keys and key != 0]
    first = {} if 0 in keys else {"first": P[:, 0]}
    table = segment_attention([layer], {"s": value})
    assert_shares(table, first | {"s": P[:, keys].sum(1), "rest": P[:, rest].sum(1)})
    assert sum(table["num_tokens"][: len(first) + 2]) == 23


def test_segments_of_all_tokens_leave_no_rest():
    table = segment_attention([layer_of("encoder")], {"a": slice(10), "b": slice(10, None)})
    assert set(table["segment"]) == {"a", "b"}
    assert table["share"][0] + table["share"][1] == pytest.approx(1, abs=1e-6)
    assert segment_attention([layer_of()], {"first": range(5, 7)})["segment"][:2] == ["first", "rest"]


@pytest.mark.parametrize(
    ("queries", "rows"),
    [
        ("A dog sat", range(12, 15)),
        (range(20, 23), range(20, 23)),
        (slice(-2, None), [21, 22]),
        ([3], [3]),
        ("s", range(8)),
    ],
)
@pytest.mark.parametrize("segments", [{"s": "You are a helpful assistant."}, {"s": slice(8)}, None])
def test_only_some_queries_count(queries, rows, segments):
    if segments is None and queries == "s":
        return
    layer = layer_of(tokens=TOKENS)
    table = segment_attention([layer], segments, queries)
    if segments is None:
        assert_shares(table, by_position(layer, list(rows)))
    else:
        P = dense(layer)[:, list(rows)].mean(1)
        assert_shares(table, {"s": P[:, :8].sum(1), "rest": P[:, 8:].sum(1)})


def test_positions_of_a_continued_text_are_those_of_its_tokens():
    layer = layer_of(queries=5, keys=23, tokens=TOKENS)
    assert layer.weights.request.offset == 18
    assert_shares(segment_attention([layer]), by_position(layer, list(range(5))))
    P = dense(layer)
    for queries, rows in ((range(20, 22), [2, 3]), ("said so yes", [1, 2, 3]), (slice(-3, None), [2, 3, 4])):
        table = segment_attention([layer], {"cat": "cat"}, queries)
        assert shares_of(table)["cat"] == pytest.approx(P[:, rows, 9].mean(1).tolist(), abs=2e-6)


def test_a_chat_is_split_into_turns():
    layer = layer_of(tokens=CHAT)
    P = dense(layer)
    spans = {"first": (0, 1), "system": (1, 8), "user": (8, 17), "assistant": (17, 23)}
    expected = {name: P[:, :, start:stop].sum(2).mean(1) for name, (start, stop) in spans.items()}
    table = segment_attention([layer])
    assert_shares(table, expected)
    assert table["num_tokens"][:4] == [1, 7, 9, 6]
    assert segment_attention([layer], "turns") == table
    shares = segment_attention([layer], queries="assistant")
    assert_shares(shares, {name: P[:, 17:, start:stop].sum(2).mean(1) for name, (start, stop) in spans.items()})
    assert_shares(segment_attention([layer], "positions"), by_position(layer, list(range(23))))
    without_bos = layer_of(tokens=CHAT[1:], queries=22, keys=22)
    assert segment_attention([without_bos])["num_tokens"][:4] == [1, 6, 9, 6]


def test_layers_without_the_tokens_of_a_segment_are_left_out():
    recording = Translator.load().record("The small cat sleeps.")
    table = segment_attention(recording, {"subject": "The small cat"})
    assert set(table["kind"]) == {"encoder", "cross"}
    cross = recording.layers.cross[1]
    (target,) = [row for row, token in enumerate(cross.query_tokens) if token == "▁kleine"]
    shares = shares_of(segment_attention([cross], {"small": "small"}, "kleine"))
    key = cross.key_tokens.index("▁small")
    assert shares["small"] == pytest.approx(cross.weights.dense()[0, :, target, key].tolist(), abs=1e-6)
    assert list(shares) == ["small", "rest"]
    assert set(segment_attention(recording)["kind"]) == {"encoder", "decoder", "cross"}
    only_cross = segment_attention(recording, {"small": "small"}, "kleine")
    assert set(only_cross["kind"]) == {"cross"}


def test_heads_are_named_by_their_index_in_the_model():
    layer = layer_of().replace(head_indices=(1, 3, 8, 9))
    assert segment_attention([layer], {"a": [1]})["head"] == [1, 1, 1, 3, 3, 3, 8, 8, 8, 9, 9, 9]


def test_16384_tokens():
    torch.manual_seed(0)
    count = 16_384
    weights = regard.weights(*torch.randn(2, 1, 1, count, 8), mask=regard.Causal())
    table = segment_attention([Layer("d", "decoder", weights)])
    assert table["num_tokens"] == [1, 64, count - 129, 64]
    assert sum(table["share"]) == pytest.approx(1, abs=1e-5)
    P = weights.at(queries=slice(-5, None)).dense()[0, 0]
    last = segment_attention([Layer("d", "decoder", weights)], {"end": slice(-100, None)}, slice(-5, None))
    assert shares_of(last)["end"] == pytest.approx([P[:, -100:].sum(1).mean().item()], abs=1e-6)


A, A_TEXT = r"segments\['a'\]: expected ", "a text, a range, a slice or a list of positions"
BELOW = "positions below 23, the number of tokens, got"


@pytest.mark.parametrize(
    ("segments", "queries", "message"),
    [
        ({}, None, "segments: expected at least one segment, got an empty dict"),
        ({"a": "zebra"}, None, A + "a text that occurs in the recording, got 'zebra'"),
        ({"a": [23]}, None, A + BELOW + r" \[23\]"),
        ({"a": slice(50, 60)}, None, A + "a range with at least one of the 23 tokens, got 50:60"),
        ({"a": []}, None, A + BELOW + r" \[\]"),
        ({"a": " "}, None, A + "a text, got ' '"),
        ({"rest": [1]}, None, "segments: expected another name than 'rest'"),
        ({"a": range(5), "b": [9, 4]}, None, "'a' and 'b', which both have token 4, 'ful', of layer.0"),
        ("turns", None, r"segments: expected tokens of a chat template, such as <\|im_start\|>"),
        (None, "zebra", "queries: expected a text that occurs in the recording, got 'zebra'"),
        (None, [99], "queries: expected " + BELOW + r" \[99\]"),
    ],
)
def test_values_that_cannot_be_summed_are_refused(segments, queries, message):
    with pytest.raises(InvalidArgument, match=message):
        segment_attention([layer_of(tokens=TOKENS)], segments, queries)


@pytest.mark.parametrize(
    ("segments", "queries", "message"),
    [
        ({"a": 1.5}, None, A + f"{A_TEXT}, got 1.5"),
        ({"a": [1.5]}, None, A + A_TEXT),
        ({"a": slice("x")}, None, A + A_TEXT),
        ({1: [1]}, None, "segments: expected names as keys, got 1"),
        ("parts", None, "segments: expected a dict of texts or ranges, 'positions' or 'turns', got 'parts'"),
        (None, 3, f"queries: expected {A_TEXT}, got 3"),
    ],
)
def test_types_that_cannot_be_summed_are_refused(segments, queries, message):
    with pytest.raises(InvalidType, match=message):
        segment_attention([layer_of(tokens=TOKENS)], segments, queries)


def test_what_is_not_a_recording_is_refused():
    with pytest.raises(InvalidType, match="recording: expected a Recording or layers, got Tensor"):
        segment_attention(torch.ones(2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgument, match="recording: expected at least one layer of attention, got none"):
        segment_attention([])


@pytest.mark.parametrize("kind", ["decoder", "encoder", "cross"])
def test_shares_of_each_query(kind):
    layer = layer_of(kind, queries=9, keys=23).replace(head_indices=(5, 0, 2, 7))
    documents = {"one": range(2, 8), "other": [10, 9, 15]}
    table = segment_attention([layer], documents, queries=slice(4, None), by_query=True)
    cells, keys = dense(layer), {"one": [*range(2, 8)], "other": [9, 10, 15]}
    if kind != "cross":
        keys = {"first": [0], **keys}
    used = {key for each in keys.values() for key in each}
    keys["rest"] = [key for key in range(23) if key not in used]
    offset = layer.weights.request.offset if kind != "cross" else 0
    rows = [row for row in range(9) if row + offset >= 4]
    names = ("head", "query", "token", "segment", "num_tokens", "share")
    actual = zip(*(table[name] for name in names), strict=True)
    expected = (
        (head, row, layer.query_tokens[row], name, len(of_name), float(cells[number, row, of_name].sum()))
        for number, head in enumerate(layer.head_indices)
        for row in rows
        for name, of_name in keys.items()
    )
    for one, other in zip(actual, expected, strict=True):
        assert one[:-1] == other[:-1]
        assert one[-1] == pytest.approx(other[-1], abs=2e-6)
    assert set(table["layer"]) == {"layer.0"}
    assert set(table["kind"]) == {kind}


def test_shares_of_each_query_are_those_of_named_segments():
    layer = layer_of(tokens=CHAT)
    table = segment_attention([layer], by_query=True)  # of the turns
    mean = segment_attention([layer])
    of_first_head = [share for share, head in zip(table["share"], table["head"], strict=True) if head == 0]
    means = torch.tensor(of_first_head).view(23, -1).mean(0)
    torch.testing.assert_close(means, torch.tensor(mean["share"][: len(means)]), rtol=0, atol=2e-6)
    with pytest.raises(InvalidArgument, match=r"^by_query: expected named segments, because those by position differ"):
        segment_attention([layer_of()], by_query=True)
    with pytest.raises(InvalidType, match=r"^by_query: expected True or False, got 1$"):
        segment_attention([layer], by_query=1)
