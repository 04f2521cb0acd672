"""What a mask says of a span must hold for its cells; the cells themselves are checked with the kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ops.rules import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import Causal, Documents, Neighbours, Padding, Window, attend, weights
from regard.ops.masks import Spans, as_mask, to_dense
from regard.ops.tile import Tile

RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]


@given(
    name=st.sampled_from(RULES),
    rows=st.tuples(st.integers(0, 11), st.integers(1, 12)),
    keys=st.tuples(st.integers(0, 8), st.integers(1, 9)),
    offset=st.integers(-20, 20),
    sequence=st.integers(0, 2),
)
def test_extent_and_certain_hold(name, rows, keys, offset, sequence):
    rows = slice(rows[0], min(12, rows[0] + rows[1]))
    keys = keys[0], min(9, keys[0] + keys[1])
    rule = as_mask(masks(3, 2, 12, 9)[name])
    cells = Tile(slice(sequence, 3), slice(0, 2), rows, keys, offset, torch.device("cpu"))
    truth = allowed(name, 3, 2, 12, 9, offset)[sequence:3, :, rows, slice(*keys)]
    assert torch.equal(rule.allowed(cells).expand(truth.shape), truth)
    (start, stop), (first, last) = rule.extent(cells), rule.certain(cells)
    assert keys[0] <= start <= stop <= keys[1]
    assert keys[0] <= first <= last <= keys[1]
    outside = torch.ones(keys[1] - keys[0], dtype=torch.bool)
    outside[start - keys[0] : stop - keys[0]] = False
    assert not truth[..., outside].any()
    assert truth[..., first - keys[0] : last - keys[0]].all()


def test_a_rule_knows_whether_queries_differ():
    lengths = Padding(torch.tensor([2]))
    assert Causal().per_query
    assert not lengths.per_query
    assert not (~lengths & lengths).per_query
    assert (lengths | Window(1, 1)).per_query
    assert not as_mask(torch.ones(2, 1, 1, 5, dtype=torch.bool)).per_query


def test_a_tensor_joins_a_rule_from_either_side():
    dense = torch.tensor([[True, False]])
    cells = Tile(slice(0, 1), slice(0, 1), slice(0, 2), (0, 2), 0, torch.device("cpu"))
    for rule in (Causal() & dense, dense & Causal()):
        assert rule.allowed(cells)[0, 0].tolist() == [[True, False], [True, False]]
    for rule in (Causal() | dense, dense | Causal()):
        assert rule.allowed(cells)[0, 0].tolist() == [[True, False], [True, True]]


def test_rules_print_as_they_are_written():
    assert repr(~Causal() | Window(2, None) & Causal()) == "(~Causal() | Window(left=2, right=None) & Causal())"
    assert repr(~(Causal() & Window(2, None))) == "~(Causal() & Window(left=2, right=None))"


def test_what_a_negation_forbids_for_sure_is_left_out():
    cells = Tile(slice(0, 1), slice(0, 1), slice(3, 5), (0, 9), 0, torch.device("cpu"))
    assert (~Causal()).extent(cells) == (4, 9)
    assert (~Causal()).certain(cells) == (5, 9)
    assert (~Window(1, 1)).extent(cells) == (0, 9)


def test_a_mask_that_does_not_fit_is_not_written_out():
    with pytest.raises(InvalidArgument, match="lengths"):
        to_dense(Padding(torch.tensor([1, 3])), (1, 1, 2, 3))
    with pytest.raises(InvalidType, match=r"shape: expected \(batch, heads, queries, keys\), got \(5, 5\)"):
        to_dense(Causal(), (5, 5))
    with pytest.raises(InvalidType, match="offset: expected a number of keys"):
        to_dense(Causal(), (1, 1, 2, 3), offset=1.5)
    with pytest.raises(InvalidType, match=r"mask: got the class Causal; make one of it: Causal\(...\)"):
        to_dense(Causal, (1, 1, 2, 3))


def test_what_fills_up_the_lists_of_a_graph_is_nobody_s_key():
    graph = Neighbours(torch.tensor([[1, 1, 2], [1, 2, 2]]))
    query = torch.randn(1, 1, 32, 4)
    value = query.clone()
    value[0, 0, 0] = torch.nan  # no edge leads there
    output = attend(query, query, value, mask=graph, kernel="sparse").output
    assert output[:, :, 1:3].isfinite().all()


def test_documents_may_be_numbered_in_bytes_and_those_of_queries_be_the_same_for_all():
    query, key = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    beyond = weights(query, key, mask=Documents(torch.full((4,), 255, dtype=torch.uint8)), offset=2).dense()
    assert not beyond[:, :, 2:].any()
    ids, asked = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 7])
    found = attend(query, key, key, mask=Documents(ids, asked), kernel="blockwise").output
    expected = attend(query, key, key, mask=asked[:, None] == ids, kernel="reference").output
    torch.testing.assert_close(found, expected)


def test_ranges_are_at_least_one():
    none = torch.zeros(1, 1, 4, 0, dtype=torch.int64)
    with pytest.raises(InvalidType, match="of at least one span"):
        Spans(none, none)
