"""The key ranges that masks declare hold for their cells; the cells themselves are checked with the kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.ops.cases import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import attend, weights
from regard.ops.masks import Causal, Documents, Neighbors, Padding, Spans, Window, as_mask, to_dense
from regard.ops.tile import KeyRange, Tile

RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]
CPU = torch.device("cpu")


@given(
    name=st.sampled_from(RULES),
    rows=st.tuples(st.integers(0, 11), st.integers(1, 12)),
    keys=st.tuples(st.integers(0, 8), st.integers(1, 9)),
    offset=st.integers(-20, 20),
    batch=st.integers(0, 2),
)
def test_key_range_and_full_key_range_hold(name, rows, keys, offset, batch):
    rows = slice(rows[0], min(12, rows[0] + rows[1]))
    keys = KeyRange(keys[0], min(9, keys[0] + keys[1]))
    mask = as_mask(masks(3, 2, 12, 9)[name])
    tile = Tile(slice(batch, 3), slice(0, 2), rows, keys, offset, CPU)
    expected = allowed(name, 3, 2, 12, 9, offset)[batch:3, :, rows, slice(*keys)]
    assert torch.equal(mask.allowed(tile).expand(expected.shape), expected)
    (start, stop), (first, last) = mask.key_range(tile), mask.full_key_range(tile)
    assert keys.start <= start <= stop <= keys.stop
    assert keys.start <= first <= last <= keys.stop
    outside = torch.ones(keys.width, dtype=torch.bool)
    outside[start - keys.start : stop - keys.start] = False
    assert not expected[..., outside].any()
    assert expected[..., first - keys.start : last - keys.start].all()


def test_masks_know_whether_queries_see_different_keys():
    lengths = Padding(torch.tensor([2]))
    assert Causal().depends_on_query
    assert not lengths.depends_on_query
    assert not (~lengths & lengths).depends_on_query
    assert (lengths | Window(1, 1)).depends_on_query
    assert not as_mask(torch.ones(2, 1, 1, 5, dtype=torch.bool)).depends_on_query


def test_a_summary_is_read_once_per_call():
    lengths, calls = torch.tensor([2, 5]), []

    class Counted(Padding):
        def summarize(self):
            calls.append(self)
            return super().summarize()

    mask = Counted(lengths)
    tile = Tile(slice(0, 2), slice(0, 1), slice(0, 3), KeyRange(0, 6), 0, CPU)
    assert mask.key_range(tile) == (0, 5)
    assert mask.full_key_range(tile.with_keys(KeyRange(1, 6))) == (1, 2)
    assert len(calls) == 1
    lengths[1] = 4
    later = Tile(slice(0, 2), slice(0, 1), slice(0, 3), KeyRange(0, 6), 0, CPU)
    assert mask.key_range(later) == (0, 4)
    assert len(calls) == 2


def test_a_tensor_combines_with_a_mask_on_either_side():
    dense = torch.tensor([[True, False]])
    tile = Tile(slice(0, 1), slice(0, 1), slice(0, 2), KeyRange(0, 2), 0, CPU)
    for mask in (Causal() & dense, dense & Causal()):
        assert mask.allowed(tile)[0, 0].tolist() == [[True, False], [True, False]]
    for mask in (Causal() | dense, dense | Causal()):
        assert mask.allowed(tile)[0, 0].tolist() == [[True, False], [True, True]]


def test_masks_print_as_they_are_written():
    assert repr(~Causal() | Window(2, None) & Causal()) == "(~Causal() | Window(left=2, right=None) & Causal())"
    assert repr(~(Causal() & Window(2, None))) == "~(Causal() & Window(left=2, right=None))"


def test_a_negation_skips_what_it_forbids_for_certain():
    tile = Tile(slice(0, 1), slice(0, 1), slice(3, 5), KeyRange(0, 9), 0, CPU)
    assert (~Causal()).key_range(tile) == (4, 9)
    assert (~Causal()).full_key_range(tile) == (5, 9)
    assert (~Window(1, 1)).key_range(tile) == (0, 9)


def test_an_incompatible_mask_is_not_converted():
    with pytest.raises(InvalidArgument, match="lengths"):
        to_dense(Padding(torch.tensor([1, 3])), (1, 1, 2, 3))
    with pytest.raises(InvalidType, match=r"shape: expected \(batch, heads, queries, keys\), got \(5, 5\)"):
        to_dense(Causal(), (5, 5))
    with pytest.raises(InvalidType, match=r"offset: expected an int.* got 1\.5"):
        to_dense(Causal(), (1, 1, 2, 3), offset=1.5)
    with pytest.raises(InvalidType, match=r"mask: expected an instance, got the class Causal; use Causal\(...\)"):
        to_dense(Causal, (1, 1, 2, 3))


def test_the_padding_of_a_graph_s_rows_is_never_read():
    graph = Neighbors(*torch.tensor([[1, 1, 2], [1, 2, 2]]))
    query = torch.randn(1, 1, 32, 4)
    value = query.clone()
    value[0, 0, 0] = torch.nan  # no edge leads there
    output = attend(query, query, value, mask=graph, kernel="sparse").output
    assert output[:, :, 1:3].isfinite().all()


def test_an_edge_index_leads_from_source_to_target():
    edge_index = torch.tensor([[0, 1, 3], [2, 2, 0]])
    graph = Neighbors.from_edge_index(edge_index)
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[edge_index[1], edge_index[0]] = True
    assert torch.equal(to_dense(graph, (1, 1, 4, 4))[0, 0], expected)


def test_document_ids_may_be_bytes_and_those_of_queries_may_be_shared_by_the_batch():
    query, key = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    beyond = weights(query, key, mask=Documents(torch.full((4,), 255, dtype=torch.uint8)), offset=2).dense()
    assert not beyond[:, :, 2:].any()
    key_ids, query_ids = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 7])
    actual = attend(query, key, key, mask=Documents(key_ids, query_ids), kernel="blockwise").output
    expected = attend(query, key, key, mask=query_ids[:, None] == key_ids, kernel="reference").output
    torch.testing.assert_close(actual, expected)


def test_spans_have_at_least_one_range():
    none = torch.zeros(1, 1, 4, 0, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match="with at least one span"):
        Spans(none, none)
