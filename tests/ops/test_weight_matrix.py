"""The view answers as the dense matrix would."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ops.rules import masks
from regard.errors import InvalidArgument, InvalidType, StaleView
from regard.ops import Causal, TopK, attend, weights

B, H, Q, K = 2, 4, 9, 7


def matrix(mask=None, dtype=torch.float64, **rules):
    random = torch.Generator().manual_seed(0)
    query = torch.randn(B, H, Q, 5, generator=random, dtype=dtype)
    key = torch.randn(B, 2, K, 5, generator=random, dtype=dtype)
    return weights(query, key, mask=mask, **rules)


def dense_of(W):
    """The whole by the reference kernel: with value = identity, the output is the weights."""
    request = W.request
    value = torch.eye(K, dtype=request.query.dtype).expand(B, 1, K, K)
    return attend(
        request.query, request.key, value, mask=request.mask, offset=request.offset, kernel="reference"
    ).output


INDICES = [
    ...,
    0,
    -1,
    (1, 3),
    (0, 3, 5),
    (0, 3, 5, 2),
    (slice(None), 1),
    (slice(None), slice(1, 3), -1),
    (..., 2),
    (0, ..., slice(1, 4)),
    (..., slice(None, None, 2)),
    (slice(0, 0),),
    (None, 1, ..., None),
    (0, None, 1, slice(2, 5), None, slice(3)),
    [1, 0],
    ([1, 0], [3, 2]),
    ([1, 0], slice(None), [3, 2]),
    ([1, 0], slice(None), [3, 2], 4),
    (slice(None), [0, 1, 1], 3, slice(1, 3)),
    (0, 1, torch.arange(7), torch.arange(7)),
    (0, 1, slice(None), torch.tensor([3, 3, 0])),
    (torch.tensor([[0], [1]]), torch.tensor([0, 2]), 4),
    (torch.tensor([True, False]),),
    (slice(None), torch.tensor([True, False, True, False]), 3),
    (0, 1, 2, torch.tensor([True, False, True, False, False, True, True])),
    (torch.arange(B), 0, torch.tensor([3, 8])),
    torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) < 0.2,
    torch.zeros(B, H, Q, K, dtype=torch.bool),
    (torch.tensor(1), torch.tensor(2), torch.tensor(3), torch.tensor(4)),
    (0, 1, 2, -1),
    (0, 1, 2, slice(-3, None)),
]


@pytest.mark.parametrize("mask", ["none", "and", "empty rows", "own"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_gives_what_it_gives_of_the_dense_matrix(index, mask):
    W = matrix(masks(B, H, Q, K)[mask])
    expected = dense_of(W)[index]
    assert W[index].shape == expected.shape
    torch.testing.assert_close(W[index], expected, rtol=0, atol=1e-14)
    scores = W.scores.dense()
    torch.testing.assert_close(W.scores[index], scores[index], rtol=0, atol=1e-14)


plain = st.one_of(st.integers(-7, 6), st.slices(7).filter(lambda s: s.step is None or s.step > 0), st.none())
fancy = st.lists(st.integers(-2, 1), min_size=2, max_size=2)


@given(st.lists(st.one_of(plain, fancy, st.just(...)), max_size=5))
def test_any_index(index):
    W = matrix(Causal())
    dense = dense_of(W)
    try:
        expected = dense[tuple(index)]
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            W[tuple(index)]
    else:
        found = W[tuple(index)]
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_only_the_rows_of_an_index_are_computed(monkeypatch):
    from regard.ops.kernels import streamed

    rows = []
    block_of = streamed._block

    def counted(place, query, key):
        rows.append(query.shape[0] * query.shape[1] * query.shape[2])
        return block_of(place, query, key)

    monkeypatch.setattr(streamed, "_block", counted)
    for index, count in [((0, 3, 5), 1), ((..., 2, slice(None)), B * H), ((torch.arange(2), [0, 3], [3, 8]), 2)]:
        rows.clear()
        matrix()[index]
        assert sum(rows) == count


def test_scores_are_minus_infinity_where_masked():
    W = matrix(Causal())
    below = torch.arange(K) <= torch.arange(Q)[:, None] + K - Q
    dense = W.scores.dense()
    assert torch.equal(torch.isinf(dense[0, 0]), ~below)
    torch.testing.assert_close(dense.softmax(-1)[:, :, 2:], W.dense()[:, :, 2:])


SMALLER = [
    {"batch": 1},
    {"heads": [3, 1]},
    {"queries": slice(2, 8, 3)},
    {"batch": -1, "heads": 0, "queries": [8]},
    {"heads": torch.tensor([True, False, False, True])},
    {"heads": slice(None, None, 2), "queries": torch.tensor([5, 1])},
]


@pytest.mark.parametrize("chosen", SMALLER, ids=str)
@pytest.mark.parametrize("mask", list(masks(1, 1, 1, 1)))
def test_a_smaller_matrix_is_part_of_the_whole(chosen, mask):
    W = matrix(masks(B, H, Q, K)[mask])
    expected = dense_of(W)
    for axis, name in enumerate(("batch", "heads", "queries")):
        index = chosen.get(name, slice(None))
        index = [index] if isinstance(index, int) else index
        expected = expected[(slice(None),) * axis + (index,)]
    small = W.at(**chosen)
    assert small.shape == expected.shape
    torch.testing.assert_close(small.dense(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(small.at(queries=0)[0, 0, 0], expected[0, 0, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(K,), (K, 3), (H, K, 3), (1, K, 2), (B, H, K, 3), (1, H, K, 1), (B, 1, K, 2)])
def test_the_product_is_that_of_the_dense_matrix(shape):
    W, x = matrix(Causal()), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(W @ x, W.dense() @ x, rtol=0, atol=1e-13)


def test_a_product_may_have_the_heads_of_the_key():
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    W = weights(query, key)
    torch.testing.assert_close(W @ value, W.dense() @ value.repeat_interleave(2, 1))
    with pytest.raises(InvalidArgument, match="heads = 4 or 2, keys = 7"):
        W @ torch.randn(2, 3, 7, 6)


def test_a_product_may_be_in_float32_where_query_is_bfloat16():
    W, x = matrix(dtype=torch.bfloat16), torch.randn(K)
    assert (W @ x).dtype == torch.float32
    torch.testing.assert_close(W @ x, W.dense() @ x)


def test_everything_is_differentiable():
    query = torch.randn(B, H, Q, 5, dtype=torch.float64, requires_grad=True)
    key = torch.randn(B, 2, K, 5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(K, dtype=torch.float64)

    def parts(query, key):
        W = weights(query, key, mask=Causal(), offset=0)
        return W[0, 3, 5], W[:, :, 3, 1], W.scores[1, 2, 6, :3], W @ x, W.entropy(), W.at(heads=[1, 3]).topk(2).values

    assert torch.autograd.gradcheck(parts, (query, key))
    assert not weights(query, key).detach()[0].requires_grad


def test_several_answers_come_from_one_pass():
    W = matrix()
    both = W.measure("entropy", TopK(2))
    assert list(both) == ["entropy", "topk"]
    torch.testing.assert_close(both["entropy"], W.entropy())
    assert torch.equal(both["topk"].indices, W.topk(2).indices)
    assert list(W.measure({"a": TopK(1), "b": TopK(2)})) == ["a", "b"]
    assert torch.equal(W.measure(["lse"])["lse"], W.lse())


def test_attend_and_weights_give_one_matrix():
    query, key, value = torch.randn(3, 1, 2, 20, 4).unbind(0)
    att = attend(query, key, value, mask=Causal(), measure="received")
    torch.testing.assert_close(att.weights @ value, att.output)
    torch.testing.assert_close(att.weights.received(), att.measured["received"])
    torch.testing.assert_close(weights(query, key, mask=Causal()).dense(), att.weights.dense())


def test_a_view_of_changed_tensors_raises():
    query, key = torch.randn(2, 1, 2, 20, 4).unbind(0)
    query, key, mask = query.clone(), key.clone(), torch.ones(20, 20, dtype=torch.bool)
    for changed in (query, key, mask):
        W = weights(query, key, mask=mask)
        W.entropy()
        changed[..., 0] = 0
        for ask in (
            W.entropy,
            W.dense,
            lambda W=W: W.scores,
            lambda W=W: W[0],
            lambda W=W: W @ torch.ones(20),
            W.at,
            W.detach,
        ):
            with pytest.raises(StaleView, match="was changed in place since"):
                ask()


def test_inference_tensors_can_be_asked():
    with torch.inference_mode():
        query = torch.randn(1, 1, 3, 4)
        W = weights(query, query)
    assert W.entropy().shape == (1, 1, 3)


def test_too_large_a_dense_matrix_is_refused():
    x = torch.zeros(1, 8, 1, 1).expand(1, 8, 65536, 1)
    with pytest.raises(
        InvalidArgument, match=r"34,359,738,368 cells, 137.4 GB; the limit is 268,435,456. Ask for a part"
    ):
        weights(x, x).dense()
    with pytest.raises(InvalidArgument, match=r"4,294,967,296 cells, 17.2 GB"):
        weights(x, x)[0, 0]
    with pytest.raises(InvalidArgument, match="the limit is 5"):
        matrix().dense(limit=5)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"heads": 4}, "heads: 4 is out of range; there are 4, numbered 0 to 3"),
        ({"heads": [0, -5]}, r"heads: \[0, -5\] is out of range"),
        ({"batch": slice(5, 9)}, "batch: slice.* chooses none of 2"),
        ({"queries": torch.tensor([0.5])}, "queries: expected integers, or 9 bools"),
    ],
)
def test_what_is_not_there_is_said(chosen, said):
    with pytest.raises(InvalidArgument, match=said):
        matrix().at(**chosen)


def test_what_cannot_be_asked_is_said():
    with pytest.raises(InvalidArgument, match=r"W @ x: expected .* keys = 7 on cpu; got \(9,\) on cpu"):
        matrix() @ torch.ones(9)
    with pytest.raises(IndexError, match="index 7 is out of bounds for the axis of keys, which has size 7"):
        matrix()[0, 0, 0, 7]
    with pytest.raises(InvalidArgument, match="row_weights must be a tensor, but is list"):
        matrix().received([1.0])
    with pytest.raises(InvalidType, match=r"W @ x: expected a floating-point tensor, got torch.int64"):
        matrix() @ torch.ones(7, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match=r"topk: k must be from 1 .* \(7\), got 8"):
        matrix().topk(8)
    with pytest.raises(InvalidArgument, match=r"row_weights \(4,\) do not broadcast to .* = \(2, 4, 9\)"):
        matrix().received(torch.ones(4))
    with pytest.raises(
        InvalidType, match=r"heads: expected a number, several or a slice with a positive step, got 'all'"
    ):
        matrix().at(heads="all")


def test_it_says_what_it_is():
    W = matrix(Causal())
    assert repr(W) == (
        "WeightMatrix(batch=2, heads=4, queries=9, keys=7, mask=Causal(), float64, cpu, "
        "holds 4.0 kB in place of 4.0 kB)"
    )
    assert (W.shape, W.ndim, len(W), W.dtype, W.device.type) == ((B, H, Q, K), 4, B, torch.float64, "cpu")
    assert matrix(dtype=torch.bfloat16).dtype == torch.float32


def test_it_moves_with_its_mask():
    W = matrix(Causal() & masks(B, H, Q, K)["padding"]).at(heads=[1, 2]).to("cpu")
    assert W.shape == (B, 2, Q, K)
    assert W.to("meta").device.type == "meta"


def test_a_copy_can_be_asked_and_watches_its_own_tensors(tmp_path):
    query = torch.randn(1, 2, 5, 4)
    query += 1  # its version is not that of a new tensor
    att = attend(query, query, query, mask=torch.ones(5, 5, dtype=torch.bool).tril(), measure="entropy")
    torch.save(att.weights, tmp_path / "W.pt")
    copies = [copy.deepcopy(att).weights, pickle.loads(pickle.dumps(att.weights))]
    for W in [*copies, torch.load(tmp_path / "W.pt", weights_only=False)]:
        assert torch.equal(W.entropy(), att.measured["entropy"])
        W.request.query.zero_()
        with pytest.raises(StaleView):
            W.entropy()
    att.weights.entropy()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_view_of_inference_mode_can_be_copied(protocol):
    with torch.inference_mode():
        W = weights(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        copied = pickle.loads(pickle.dumps(W, protocol))
        assert torch.equal(copied.entropy(), W.entropy())


def test_nothing_chosen_is_said():
    W = weights(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    with pytest.raises(InvalidArgument, match=r"heads: \[\] chooses none of 2"):
        W.at(heads=[])


def test_an_answer_that_would_be_too_large_is_refused_before_it_takes_memory():
    matrix = weights(torch.zeros(1, 1, 60_000, 2), torch.zeros(1, 1, 60_000, 2))
    for index in ((..., torch.arange(60_000)), (0, 0, torch.arange(60_000)[:, None], torch.arange(60_000))):
        with pytest.raises(InvalidArgument, match="the answer would hold 3,600,000,000 cells"):
            matrix[index]
