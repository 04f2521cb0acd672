"""Every invalid argument gets a message that names the argument, what was expected and what was passed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.nn import Dropout, FeedForward, MultiHeadAttention
from regard.ops import attend, rotary, weights
from regard.ops.masks import Causal, Documents, Neighbors, Padding, Prefix, Window
from regard.ops.measures import BlockMean, Diagonal, DistanceHistogram, GroupPool, TopK
from regard.ops.scores import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    RelativeKey,
    RelativeQuery,
    ScaledDotProduct,
    Sinks,
    SoftCap,
    T5RelativeBias,
)
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording


def x(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (x(2, 5, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), r"query: expected shape \(batch, .*head_dim\), got \(2, 5, 4\)"),
        (x(1, 2, 5, 4), x(1, 2, 5, 3), x(1, 2, 5, 4), r"key: expected the query's head_dim 4, got 3"),
        (x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 2, 6, 4), r"value: expected as many keys as in key, 5, got 6"),
        (x(1, 6, 5, 4), x(1, 4, 5, 4), x(1, 6, 5, 4), r"key: expected .* heads that divides the query's 6, got 4"),
        (x(3, 2, 5, 4), x(1, 2, 5, 4), x(3, 2, 5, 4), r"key: expected the query's batch 3, got 1"),
        (
            x(1, 2, 5, 4),
            x(1, 2, 5, 4).double(),
            x(1, 2, 5, 4),
            r"key: expected the query's dtype torch.float32, got torch.float64; convert it with .to\(\)",
        ),
        (x(1, 2, 5, 4).long(), x(1, 2, 5, 4), x(1, 2, 5, 4), r"query: expected one of float64, .*, got int64"),
        (
            x(1, 2, 0, 4),
            x(1, 2, 5, 4),
            x(1, 2, 5, 4),
            r"query: expected no empty axis in \(batch, .*\), got \(1, 2, 0, 4\)",
        ),
        (
            x(1, 2, 5, 4),
            x(1, 2, 5, 4).to("meta"),
            x(1, 2, 5, 4),
            r"key: expected a tensor on cpu like the query, got one on meta; move it with .to\(\)",
        ),
    ],
)
def test_incompatible_tensors_are_rejected(query, key, value, message):
    with pytest.raises(InvalidArgument, match=message):
        attend(query, key, value)


def test_all_problems_are_listed_at_once():
    with pytest.raises(InvalidArgument) as error:
        attend(x(2, 6, 5, 4), x(1, 4, 5, 3), x(2, 6, 7, 4))
    assert str(error.value).splitlines() == [
        "4 problems:",
        "  - key: expected the query's batch 2, got 1",
        "  - key: expected a number of heads that divides the query's 6, got 4",
        "  - key: expected the query's head_dim 4, got 3",
        "  - value: expected as many keys as in key, 5, got 7",
    ]


def test_problems_of_all_arguments_are_listed_at_once():
    query = x(1, 2, 5, 4)
    with pytest.raises(InvalidType) as error:
        attend(
            query,
            query,
            x(1, 2, 6, 4),
            mask="causal",
            score="aditive",
            scale="big",
            offset=2.5,
            dropout=1.0,
            measure=["entropi", 3],
        )
    lines = str(error.value).splitlines()
    assert lines[0] == "8 problems:"
    arguments = [line.removeprefix("  - ").partition(":")[0] for line in lines[1:]]
    assert arguments == ["mask", "score", "scale", "offset", "value", "dropout", "measure", "measure"]


WRONG_TYPES = [
    (
        {"mask": x(5, 5)},
        r"mask: expected a bool tensor, .* got float32 \(5, 5\); pass mask == 0 if .* call regard\.attend with .*B",
    ),
    ({"mask": x(5, 5).long()}, r"mask: expected a bool tensor, .*, got int64 \(5, 5\); pass mask\.bool\(\)"),
    ({"mask": "causal"}, r"mask: expected a bool tensor, a mask such as regard.Causal\(\) .*, got str"),
    ({"offset": 1.5}, "offset: expected an int .*, got 1.5"),
    ({"score": 3}, "score: expected a name or a Score, got int 3"),
    ({"score": Alibi}, r"score: expected an instance, got the class Alibi; use Alibi\(...\)"),
    ({"measure": None}, "measure: expected a name, a Measure, several of them or a dict, got NoneType None"),
    ({"scale": "big"}, "scale: expected a finite number, got 'big'"),
    ({"dropout": "0.1"}, "dropout: expected a finite number of at least 0 and below 1, got '0.1'"),
    ({"measure": [3]}, "measure: expected a name or a Measure, got int 3"),
    ({"measure": {3: "entropy"}}, "measure: expected str keys in the dict, got 3"),
]


def test_arguments_of_a_wrong_type_are_rejected(subtests):
    for arguments, message in WRONG_TYPES:
        with subtests.test(message), pytest.raises(InvalidType, match=message):
            attend(x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), **arguments)


WRONG_VALUES = [
    ({"mask": x(4, 6).bool()}, r"mask: expected a shape broadcastable to .* = \(1, 2, 5, 6\), got \(4, 6\)"),
    ({"mask": Padding(torch.tensor([1, 2]))}, r"Padding.lengths_or_mask: .* \(batch,\) = \(1,\), got \(2,\)"),
    ({"mask": Causal() & Padding(x(1, 5).bool())}, r"Padding.* \(batch, keys\) = \(1, 6\), got \(1, 5\)"),
    ({"offset": -(2**63)}, "offset: expected an int .*, got -9223372036854775808"),
    ({"offset": 2**62}, r"offset: expected an int .* below 2\*\*62, got 4611686018427387904"),
    ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
    ({"dropout": 1.0}, "dropout: expected a finite number of at least 0 and below 1, got 1.0"),
    ({"measure": "entropi"}, r"measure: unknown name 'entropi', did you mean 'entropy'\?; known: .*block_mean, .*"),
    ({"score": "aditive"}, r"score: unknown name 'aditive', did you mean 'additive'\?; known: additive, .*"),
    ({"score": "alibi"}, r"score: 'alibi' needs arguments; pass regard.*\.Alibi"),
    ({"measure": "topk"}, r"measure: 'topk' needs arguments; pass regard.TopK\(k\)"),
    ({"measure": ["entropy", "entropy"]}, "measure: expected different names, got 'entropy' twice; pass a dict"),
]


def test_arguments_with_a_wrong_value_are_rejected(subtests):
    for arguments, message in WRONG_VALUES:
        with subtests.test(message), pytest.raises(InvalidArgument, match=message):
            attend(x(1, 2, 5, 4), x(1, 2, 6, 4), x(1, 2, 6, 4), **arguments)


@pytest.mark.parametrize(
    ("mask", "hint"),
    [
        (x(3, 7).bool(), r"; add head and query axes: mask\[:, None, None, :\]"),
        (x(3, 5, 7).bool(), r"; add a head axis: mask\[:, None\]"),
    ],
)
def test_a_mask_that_lacks_axes_is_rejected_with_a_hint(mask, hint):
    with pytest.raises(InvalidArgument, match=hint):
        weights(x(3, 2, 5, 4), x(3, 2, 7, 4), mask=mask)


def test_lists_are_not_tensors():
    with pytest.raises(InvalidType, match="query: expected a tensor, got list"):
        weights([[1.0]], x(1, 1, 1, 1))


@pytest.mark.parametrize("left", [1.5, True, "3"])
def test_window_limits_are_integers(left):
    with pytest.raises(InvalidArgument, match=r"Window\.right: expected an int .*, or None, got 4611686018427387904"):
        Window(0, 2**62)
    with pytest.raises(InvalidType, match=rf"Window\.left: expected an int .*, or None, got {left!r}"):
        Window(left, 0)


def test_padding_takes_lengths_or_a_bool_tensor():
    with pytest.raises(InvalidType, match=r"Padding: expected lengths .* got float32 \(3,\)"):
        Padding(torch.ones(3))
    with pytest.raises(InvalidType, match=r"got int64 \(3, 4\)"):
        Padding(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(InvalidType, match="got list"):
        Padding([3])


IDS = torch.zeros(5, dtype=torch.int64)
RULES = [  # for a matrix of 1 sequence, 2 heads, 5 queries, 5 keys, with a head_dim of 4
    (lambda: {"mask": Prefix(2.5)}, r"Prefix.lengths: expected an int or integers \(batch,\), got 2.5"),
    (lambda: {"mask": Prefix(torch.ones(2).int())}, r"Prefix.lengths: expected shape \(batch,\) = \(1,\), got \(2,\)"),
    (lambda: {"mask": Documents([0, 1])}, "Documents.document_ids: expected an integer tensor, got list"),
    (
        lambda: {"mask": Documents(IDS[:4])},
        r"Documents.document_ids: expected shape \(keys,\) = \(5,\) or .*, got \(4,\)",
    ),
    (
        lambda: {"mask": Documents(IDS, IDS[:3])},
        r"Documents.query_document_ids: .* \(queries,\) = \(5,\) or .*, got \(3,\)",
    ),
    (lambda: {"mask": Neighbors(IDS[None], IDS)}, r"Neighbors.query_idx: expected shape \(edges,\), got \(1, 5\)"),
    (lambda: {"mask": Neighbors(IDS, IDS[:3])}, "Neighbors: expected as many queries as keys, got 5 and 3"),
    (lambda: {"mask": Neighbors(IDS, [0])}, "Neighbors.key_idx: expected an integer tensor, got list"),
    (lambda: {"mask": Neighbors.from_edge_index(IDS)}, r"edge_index: expected shape \(2, edges\), got \(5,\)"),
    (
        lambda: {"mask": Neighbors(*torch.tensor([[0], [-3]]))},
        r"Neighbors.key_idx: expected indices from 0 .*, got -3",
    ),
    (
        lambda: {"mask": Neighbors(*torch.tensor([[7], [9]]))},
        r"indices below the number of queries, 5, got 7\n.*indices below the number of keys, 5, got 9",
    ),
    (
        lambda: {"score": Bilinear(torch.ones(4, 3))},
        r"Bilinear.weight: expected shape \(head_dim, head_.*, got \(4, 3\)",
    ),
    (lambda: {"score": Bilinear("w")}, "Bilinear.weight: expected a floating-point tensor, got str"),
    (
        lambda: {"score": Additive(torch.ones(3))},
        r"Additive.vector: expected shape \(head_dim,\) = \(4,\) or .*, got \(3,\)",
    ),
    (lambda: {"score": Additive(torch.ones(4), "tanhh")}, "Additive.activation: .*, got 'tanhh', did you mean 'tanh'"),
    (lambda: {"score": SoftCap(ScaledDotProduct(), 0)}, "SoftCap.cap: expected a finite number above 0, got 0"),
    (lambda: {"score": SoftCap("dot", 1.0)}, "SoftCap.score: expected a score .*, got str"),
    (
        lambda: {"score": Bias(torch.ones(3, 5, 5))},
        r"Bias.tensor: .* broadcastable to .* = \(1, 2, 5, 5\), got \(3, 5, 5\)",
    ),
    (lambda: {"score": Bias(IDS)}, "Bias.tensor: expected a floating-point tensor, got int64"),
    (lambda: {"score": Alibi(torch.ones(3))}, r"Alibi.slopes: expected shape \(heads,\) = \(2,\), got \(3,\)"),
    (lambda: {"score": Alibi.for_heads(0)}, "num_heads: expected an int of at least 1, got 0"),
    (lambda: {"score": T5RelativeBias(torch.ones(32, 3))}, r"T5RelativeBias.table: .* = \(32, 2\), got \(32, 3\)"),
    (lambda: {"score": T5RelativeBias(torch.ones(3, 2))}, "T5RelativeBias.table: expected at least 4 buckets, got 3"),
    (
        lambda: {"score": T5RelativeBias(torch.ones(8, 2), max_distance=2)},
        "T5RelativeBias.max_distance: .* at least 3 .*, got 2",
    ),
    (
        lambda: {"score": T5RelativeBias(torch.ones(8, 2), max_distance=10**9)},
        "max_distance: .* below 1048577, got 1000000000",
    ),
    (
        lambda: {"score": RelativeKey(torch.ones(4, 4))},
        "RelativeKey.table: expected an odd number of distances, .*, got 4",
    ),
    (
        lambda: {"score": RelativeKey(torch.ones(5, 3))},
        r"RelativeKey.table: expected .* = \(5, 4\) or .*, got \(5, 3\)",
    ),
    (
        lambda: {"score": RelativeQuery(torch.ones(4, 4))},
        "RelativeQuery.table: expected an odd number of distances, .*, got 4",
    ),
    (lambda: {"score": Additive(torch.ones(4), negative_slope="a")}, "Additive.negative_slope: .* got 'a'"),
    (
        lambda: {"score": Sinks(ScaledDotProduct(), torch.ones(3))},
        r"Sinks.logits: expected shape \(heads,\) = \(2,\), got \(3,\)",
    ),
    (
        lambda: {"score": Sinks(ScaledDotProduct(), torch.ones(2)) + Sinks(Bias(torch.ones(5)), torch.ones(2))},
        "score: expected Sinks at most once, got them on both sides of a sum",
    ),
    (
        lambda: {"score": Sinks(Sinks(ScaledDotProduct(), torch.ones(2)), torch.ones(2))},
        "Sinks.score: expected a score without sinks, got one that has them",
    ),
    (lambda: {"measure": TopK(0)}, "TopK.k: expected an int of at least 1, got 0"),
    (lambda: {"measure": TopK(2.5)}, "TopK.k: expected an int of at least 1, got 2.5"),
    (lambda: {"measure": Diagonal(0.5)}, "Diagonal.offset: expected an int .*, got 0.5"),
    (
        lambda: {"measure": DistanceHistogram(-1)},
        "DistanceHistogram.max_distance: expected an int of at least 0, got -1",
    ),
    (lambda: {"measure": BlockMean(0)}, "BlockMean.block_size: expected an int of at least 1, got 0"),
    (
        lambda: {"measure": GroupPool(IDS[:4], IDS)},
        r"GroupPool.query_groups: .* \(queries,\) = \(5,\) or .*, got \(4,\)",
    ),
    (
        lambda: {"measure": GroupPool(IDS, IDS - 2)},
        "GroupPool.key_groups: expected groups from 0, at least one, and −1 for tokens to drop, got -2",
    ),
    (lambda: {"measure": GroupPool(IDS, IDS.float())}, "GroupPool.key_groups: expected an integer tensor, got float32"),
    (lambda: {"measure": "diagnal"}, "measure: unknown name 'diagnal', did you mean 'diagonal'"),
    (
        lambda: {"measure": "group_pool"},
        r"'group_pool' needs arguments; pass regard.GroupPool\(query_groups, key_groups\)",
    ),
]


def test_incompatible_rules_are_rejected(subtests):
    query = x(1, 2, 5, 4)
    for make, message in RULES:
        with subtests.test(message), pytest.raises((InvalidArgument, InvalidType), match=message):
            attend(query, query, query, **make())


def test_all_problems_with_rules_are_listed_at_once():
    query = x(1, 2, 5, 4)
    with pytest.raises(InvalidArgument) as error:
        weights(
            query,
            query,
            mask=Prefix(torch.ones(3).int()) & Documents(IDS[:2]),
            score=ScaledDotProduct() + Alibi(torch.ones(9)),
        )
    lines = str(error.value).splitlines()
    assert lines[0] == "3 problems:"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "  - Prefix.lengths",
        "  - Documents.document_ids",
        "  - Alibi.slopes",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotary_dim": 3}, "rotary_dim: expected an even number, got 3"),
        ({"rotary_dim": 6}, "rotary_dim: expected an int of at least 2 and below 5, or None, got 6"),
        ({"base": 0}, "base: expected a finite number above 0, got 0"),
        ({"positions": IDS[:3]}, r"positions: expected shape \(tokens,\) = \(5,\) or .*, got \(3,\)"),
        ({"positions": x(5)}, r"positions: expected an integer tensor, got float32 \(5,\)"),
    ],
)
def test_invalid_arguments_of_rotary_are_rejected(arguments, message):
    with pytest.raises((InvalidArgument, InvalidType), match=message):
        rotary(x(1, 2, 5, 4), **arguments)


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16])
def test_numbers_of_numpy_are_numbers(number, tmp_path):
    query = torch.randn(1, 2, 40, 8)
    half, two = number(0.5), np.int64(2)

    def rules(half, two):
        score = SoftCap(ScaledDotProduct(), half) + Alibi.for_heads(two)
        measures = {"top": TopK(two), "distance": DistanceHistogram(two), "diagonal": Diagonal(two)}
        return {"score": score, "mask": Window(two, two), "measure": measures}

    def call(half, two):
        torch.manual_seed(0)
        return attend(query, query, query, **rules(half, two), scale=half, offset=two, dropout=half)

    expected = call(0.5, 2)
    torch.testing.assert_close(call(half, two).output, expected.output)
    torch.testing.assert_close(call(half, two).measured, expected.measured)
    score = SoftCap(ScaledDotProduct(), half)
    meta = attend(*(query.to("meta"),) * 3, **rules(half, two) | {"score": score}, scale=half, offset=two, dropout=half)
    assert meta.measured["top"].indices.shape == (1, 2, 40, 2)
    assert torch.equal(
        attend(query, query, query, scale=half, kernel="sdpa").output, attend(query, query, query, scale=0.5).output
    )
    Recording("numbers", "none", [Layer("layer", "decoder", call(half, two).weights)]).save(tmp_path / "numbers.regard")
    assert torch.equal(regard.load(tmp_path / "numbers.regard").layers[0].weights.dense(), expected.weights.dense())
    for layer in (Dropout(half), MultiHeadAttention(8, two, dropout=half), FeedForward(8, two, dropout=half)):
        torch.manual_seed(0)
        assert torch.isfinite(getattr(layer(query[0]), "output", layer(query[0]))).all()
    assert torch.equal(rotary(query, base=number(100)), rotary(query, base=100.0))
    with pytest.raises(InvalidType, match=r"dropout: expected a finite number .*, got np\.True_"):
        attend(query, query, query, dropout=np.bool_(True))
