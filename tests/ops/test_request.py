"""Every bad input gets a sentence that names the argument, what came and what would be right."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.ops import Causal, Padding, Window, attend, weights


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
        ({"mask": "causal"}, r"mask: expected a bool tensor or a rule such as regard.Causal\(\) .*, got str"),
        ({"offset": 1.5}, r"offset: expected an int \(query i stands at position i \+ offset\), got 1.5"),
        ({"score": "dot"}, "score: expected a rule .*, got str"),
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
        ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
        ({"dropout": 1.0}, "dropout: expected a probability from 0 to below 1, got 1.0"),
        ({"measure": "entropi"}, r"'entropi', did you mean 'entropy'\? \(known: entropy, lse, received, topk\)"),
        ({"measure": "topk"}, r"'topk' needs to know how many: give regard.TopK\(8\)"),
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
    with pytest.raises(InvalidType, match="Window: left is a number of keys"):
        Window(left, 0)


def test_padding_is_lengths_or_bool():
    with pytest.raises(InvalidType, match=r"Padding: expected lengths .* got torch.float32 \(3,\)"):
        Padding(torch.ones(3))
    with pytest.raises(InvalidType, match=r"got torch.int64 \(3, 4\)"):
        Padding(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(InvalidType, match="got list"):
        Padding([3])
