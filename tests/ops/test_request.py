"""Every bad input gets a sentence that names the argument, what came and what would be right."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.ops import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    BlockMean,
    Causal,
    Diagonal,
    DistanceHistogram,
    Documents,
    GroupPool,
    Neighbours,
    Padding,
    Prefix,
    RelativeKey,
    ScaledDotProduct,
    Sinks,
    SoftCap,
    T5RelativeBias,
    TopK,
    Window,
    attend,
    rotary,
    weights,
)


def x(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("query", "key", "value", "said"),
    [
        (x(2, 5, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), r"query: expected four axes \(batch, .*head_dim\), got \(2, 5, 4\)"),
        (x(1, 2, 5, 4), x(1, 2, 5, 3), x(1, 2, 5, 4), r"key: has head_dim 3, the query 4"),
        (x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 2, 6, 4), r"value: has 6 keys, the key 5"),
        (x(1, 6, 5, 4), x(1, 4, 5, 4), x(1, 6, 5, 4), r"key: has 4 heads, which do not divide the query's 6"),
        (x(3, 2, 5, 4), x(1, 2, 5, 4), x(3, 2, 5, 4), r"key: has batch 1, the query 3"),
        (x(1, 2, 5, 4), x(1, 2, 5, 4).double(), x(1, 2, 5, 4), r"key: is torch.float64, the query torch.float32"),
        (x(1, 2, 5, 4).long(), x(1, 2, 5, 4), x(1, 2, 5, 4), r"query: expected one of float64, .*, got torch.int64"),
        (x(1, 2, 0, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), r"query: .* = \(1, 2, 0, 4\) has an empty axis"),
        (x(1, 2, 5, 4), x(1, 2, 5, 4).to("meta"), x(1, 2, 5, 4), r"key: lies on meta, the query on cpu"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(query, key, value, said):
    with pytest.raises(InvalidArgument, match=said):
        attend(query, key, value)


def test_all_objections_come_at_once():
    with pytest.raises(InvalidArgument) as error:
        attend(x(2, 6, 5, 4), x(1, 4, 5, 3), x(2, 6, 7, 4))
    assert str(error.value).splitlines() == [
        "several things do not fit:",
        "  - key: has batch 1, the query 2",
        "  - key: has 4 heads, which do not divide the query's 6",
        "  - key: has head_dim 3, the query 4",
        "  - value: has 7 keys, the key 5",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mask": x(5, 5)}, "mask: expected a bool tensor, True where a query may attend; got torch.float32"),
        ({"mask": "causal"}, r"mask: expected a bool tensor, a rule such as regard.Causal\(\) .*; got str"),
        ({"offset": 1.5}, r"offset: expected an int \(query i stands at position i \+ offset\), got 1.5"),
        ({"score": 3}, "score: expected a rule .*, got int"),
        ({"measure": None}, "measure: expected a name, a Measure, several or a dict, got NoneType None"),
        ({"scale": "big"}, "scale: expected a number, got 'big'"),
        ({"dropout": "0.1"}, "dropout: expected a probability, got '0.1'"),
        ({"measure": [3]}, "measure: expected a name or a Measure, got int 3"),
    ],
)
def test_what_is_of_the_wrong_type_is_said(given, said):
    with pytest.raises(InvalidType, match=said):
        attend(x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mask": x(4, 6).bool()}, r"mask: \(4, 6\) does not broadcast to .* = \(1, 2, 5, 6\)"),
        ({"mask": Padding(torch.tensor([1, 2]))}, r"mask: Padding holds lengths \(batch,\) = \(2,\), expected \(1,\)"),
        ({"mask": Causal() & Padding(x(1, 5).bool())}, r"holds bool \(batch, keys\) = \(1, 5\), expected \(1, 6\)"),
        ({"offset": -(2**63)}, r"offset: expected a position between −2⁶² and 2⁶², got -9223372036854775808"),
        ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
        ({"dropout": 1.0}, "dropout: expected a probability from 0 to below 1, got 1.0"),
        ({"measure": "entropi"}, r"'entropi', did you mean 'entropy'\? \(known: block_mean, .*\)"),
        ({"score": "aditive"}, r"unknown name 'aditive', did you mean 'additive'\? \(known: additive, .*\)"),
        ({"score": "alibi"}, r"'alibi' needs an argument: give regard.ScaledDotProduct\(\) \+ regard.Alibi.for_heads\(8\)"),
        ({"measure": "topk"}, r"'topk' needs an argument: give regard.TopK\(8\)"),
        ({"measure": ["entropy", "entropy"]}, "'entropy' is asked for twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said(given, said):
    with pytest.raises(InvalidArgument, match=said):
        attend(x(1, 2, 5, 4), x(1, 2, 6, 4), x(1, 2, 6, 4), **given)


def test_no_tensor_is_said():
    with pytest.raises(InvalidType, match="query: expected a tensor, got list"):
        weights([[1.0]], x(1, 1, 1, 1))


@pytest.mark.parametrize("left", [1.5, True, "3"])
def test_a_window_has_whole_bounds(left):
    with pytest.raises(
        InvalidArgument, match="Window: right = 4611686018427387904 is beyond any key; None is no bound"
    ):
        Window(0, 2**62)
    with pytest.raises(InvalidType, match="Window: left is a number of keys"):
        Window(left, 0)


def test_padding_is_lengths_or_bool():
    with pytest.raises(InvalidType, match=r"Padding: expected lengths .* got torch.float32 \(3,\)"):
        Padding(torch.ones(3))
    with pytest.raises(InvalidType, match=r"got torch.int64 \(3, 4\)"):
        Padding(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(InvalidType, match="got list"):
        Padding([3])


IDS = torch.zeros(5, dtype=torch.int64)
RULES = [  # of a matrix of 1 sequence, 2 heads, 5 queries, 5 keys, with a head_dim of 4
    (lambda: {"mask": Prefix(2.5)}, r"Prefix: lengths is a number of keys \(int\), or integers \(batch,\); got 2.5"),
    (lambda: {"mask": Prefix(torch.ones(2).int())}, r"Prefix holds lengths \(batch,\) = \(2,\), expected \(1,\)"),
    (lambda: {"mask": Documents([0, 1])}, "ids holds the number of each token's document as integers, not list"),
    (lambda: {"mask": Documents(IDS[:4])}, r"Documents holds ids \(4,\), expected \(keys,\) = \(5,\) or"),
    (lambda: {"mask": Documents(IDS, IDS[:3])}, r"Documents holds query_ids \(3,\), expected \(queries,\) = \(5,\) or"),
    (lambda: {"mask": Neighbours(IDS)}, r"edges is \(2, edges\) integers, .*; got torch.int64 \(5,\)"),
    (lambda: {"mask": Neighbours(torch.tensor([[0], [-3]]))}, "nodes are numbered from 0 on, but an edge has -3"),
    (
        lambda: {"mask": Neighbours(torch.tensor([[7], [9]]))},
        r"edge with number 7 of the queries; there are 5, .* 0 to 4\n.*edge with number 9 of the keys",
    ),
    (lambda: {"score": Bilinear(torch.ones(4, 3))}, r"weight of General is \(4, 3\), expected \(head_dim, head_"),
    (lambda: {"score": Bilinear("w")}, "the weight of General must be a floating-point tensor, but is str"),
    (lambda: {"score": Additive(torch.ones(3))}, r"vector of Additive is \(3,\), expected \(head_dim,\) = \(4,\) or"),
    (lambda: {"score": Additive(torch.ones(4), "tanhh")}, "unknown activation 'tanhh', did you mean 'tanh'"),
    (lambda: {"score": SoftCap(ScaledDotProduct(), 0)}, "SoftCap: cap must be a number above 0, but is 0"),
    (lambda: {"score": Bias(torch.ones(3, 5, 5))}, r"Bias \(3, 5, 5\) does not broadcast to .* = \(1, 2, 5, 5\)"),
    (lambda: {"score": Bias(IDS)}, "Bias holds a floating-point tensor, not torch.int64"),
    (lambda: {"score": Alibi(torch.ones(3))}, r"slopes of Alibi is \(3,\), expected \(heads,\) = \(2,\)"),
    (lambda: {"score": Alibi.for_heads(0)}, "count must be at least 1, but is 0"),
    (lambda: {"score": T5RelativeBias(torch.ones(32, 3))}, r"table of T5RelativeBias is \(32, 3\), expected .* = \(32, 2\)"),
    (lambda: {"score": T5RelativeBias(torch.ones(8, 2), max_distance=2)}, "with 8 buckets, max_distance must be above 2"),
    (lambda: {"score": T5RelativeBias(torch.ones(8, 2), max_distance=10**9)}, "max_distance must be above 2, at most 1048576"),
    (lambda: {"score": RelativeKey(torch.ones(4, 4))}, "must have an odd number of distances, from −k to k; it has 4"),
    (lambda: {"score": RelativeKey(torch.ones(5, 3))}, r"table of Relative is \(5, 3\), expected .* = \(5, 4\)"),
    (lambda: {"score": Sinks(ScaledDotProduct(), torch.ones(3))}, r"logits of Sinks is \(3,\), expected \(heads,\) = \(2,\)"),
    (
        lambda: {"score": Sinks(ScaledDotProduct(), torch.ones(2)) + Sinks(Bias(torch.ones(5)), torch.ones(2))},
        "has sinks on both sides of a sum; give them once",
    ),
    (lambda: {"measure": TopK(6)}, r"topk: k must be from 1 to the number of keys \(5\), got 6"),
    (lambda: {"measure": Diagonal(0.5)}, r"diagonal: d must be a number of keys \(int\), got 0.5"),
    (lambda: {"measure": DistanceHistogram(-1)}, "distance_histogram: k must be a number of keys, at least 0; got -1"),
    (lambda: {"measure": BlockMean(0)}, "block_mean: size must be a number of cells, at least 1; got 0"),
    (lambda: {"measure": GroupPool(IDS[:4], IDS)}, r"query_groups \(4,\) must cover all queries: \(5,\)"),
    (lambda: {"measure": GroupPool(IDS, IDS - 2)}, "grouped: key_groups are numbers from 0 on, −1 to drop .*; got -2"),
    (lambda: {"measure": GroupPool(IDS, IDS.float())}, "key_groups must be a tensor of integers, but is torch.float32"),
    (lambda: {"measure": "diagnal"}, "unknown name 'diagnal', did you mean 'diagonal'"),
    (lambda: {"measure": "group_pool"}, r"'group_pool' needs an argument: give regard.GroupPool\(query_groups, key_groups\)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), RULES, ids=[said[:40] for _, said in RULES])
def test_a_rule_that_does_not_fit_says_so(given, said):
    query = x(1, 2, 5, 4)
    with pytest.raises((InvalidArgument, InvalidType), match=said):
        attend(query, query, query, **given())


def test_all_objections_to_rules_come_at_once():
    query = x(1, 2, 5, 4)
    with pytest.raises(InvalidArgument) as error:
        weights(
            query,
            query,
            mask=Prefix(torch.ones(3).int()) & Documents(IDS[:2]),
            score=ScaledDotProduct() + Alibi(torch.ones(9)),
        )
    assert len(str(error.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dims": 3}, "dims: expected an even number from 2 to head_dim = 4, got 3"),
        ({"base": 0}, "base: expected a number above 0, got 0"),
        ({"positions": IDS[:3]}, r"positions: expected \(tokens,\) = \(5,\) or .* got \(3,\)"),
        ({"positions": x(5)}, "positions: expected a tensor of integers, got torch.float32"),
    ],
)  # fmt: skip
def test_a_rotation_that_does_not_fit_says_so(given, said):
    with pytest.raises((InvalidArgument, InvalidType), match=said):
        rotary(x(1, 2, 5, 4), **given)
