"""Every part of the lazy matrix equals that of the dense one."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.ops.cases import MASKS, SCORES, allowed, masks
from helpers.pairwise import everything
from regard import nn
from regard.errors import InvalidArgument, InvalidType, KernelNotSupported, StaleView
from regard.ops import WeightMatrix, attend, weights
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal
from regard.ops.measures import Received, TopK
from regard.ops.scores import Additive
from regard.ops.tile import KeyRange

B, H, Q, K = 2, 4, 9, 7


def matrix(mask=None, dtype=torch.float64, **rules):
    random = torch.Generator().manual_seed(0)
    query = torch.randn(B, H, Q, 5, generator=random, dtype=dtype)
    key = torch.randn(B, 2, K, 5, generator=random, dtype=dtype)
    return weights(query, key, mask=mask, **rules)


def dense_of(W):
    """The whole matrix by the reference kernel: with value = identity, the output is the weights."""
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
    (1, slice(2, 4), slice(3, 5)),  # the heads of one key head
    (slice(None), slice(1, 3), slice(3, 5)),  # heads of two
]


@pytest.mark.parametrize("mask", ["none", "and", "empty rows", "own"])
def test_indices_select_what_they_select_of_the_dense_matrix(mask, subtests):
    W = matrix(masks(B, H, Q, K)[mask])
    dense, scores = dense_of(W), W.scores.dense()
    for index in INDICES:
        with subtests.test(index=index):
            assert W[index].shape == dense[index].shape
            torch.testing.assert_close(W[index], dense[index], rtol=0, atol=1e-14)
            torch.testing.assert_close(W.scores[index], scores[index], rtol=0, atol=1e-14)


plain = st.one_of(st.integers(-7, 6), st.slices(7).filter(lambda s: s.step is None or s.step > 0), st.none())
fancy = st.lists(st.integers(-2, 1), min_size=2, max_size=2)


@given(st.sampled_from((Causal(), None)), st.lists(st.one_of(plain, fancy, st.just(...)), max_size=5))
def test_random_indices(mask, index):
    W = matrix(mask)
    dense = dense_of(W)
    try:
        expected = dense[tuple(index)]
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            W[tuple(index)]
    else:
        actual = W[tuple(index)]
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_only_the_rows_of_an_index_are_computed():
    rows = []

    class Counting(Blockwise):
        def forward(self, inputs, options):
            rows.append(math.prod(inputs.request.shape[:3]))
            return super().forward(inputs, options)

    W = matrix()
    W = weights(W.request.query, W.request.key, kernel=Counting())
    for index, count in [((0, 3, 5), 1), ((..., 2, slice(None)), B * H), ((torch.arange(2), [0, 3], [3, 8]), 2)]:
        rows.clear()
        W[index]
        assert sum(rows) == count


def test_every_read_goes_to_the_kernel_of_the_matrix():
    calls = []

    class Counting(Blockwise):
        def run(self, inputs):
            calls.append(inputs)
            return super().run(inputs)

    query, key = matrix().request.query, matrix().request.key
    W = weights(query, key, kernel=Counting())
    reads = {
        "measure": lambda W: W.entropy(),
        "dense": lambda W: W.dense(),
        "scores": lambda W: W.scores.dense(),
        "rectangle": lambda W: W[0, 3],
        "rows": lambda W: W[[0, 1], [3, 2], [4, 8]],
        "cells": lambda W: W[[0, 1], [3, 2], [4, 8], [0, 1]],
        "columns": lambda W: W.columns([2, 5]),
        "product": lambda W: W @ torch.ones(K, dtype=W.dtype),
        "product with the transpose": lambda W: W.mT @ torch.ones(Q, dtype=W.dtype),
        "top of the transpose": lambda W: W.mT.topk(2),
    }
    for name, read in reads.items():
        for part in (W, W.at(batch=[0, 1]), W.to("cpu"), W.detach(), W.in_dtype_of_sums()):
            calls.clear()
            read(part)
            assert calls, name


def test_a_kernel_may_be_named_and_must_be_able_to_compute_what_is_read():
    query, key = matrix().request.query.detach().requires_grad_(), matrix().request.key
    entropy = weights(query, key, kernel="reference").entropy()
    (first,) = torch.autograd.grad(entropy.sum(), query, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), query)  # which no other kernel has
    assert second.abs().max() > 0
    with pytest.raises(InvalidArgument, match="kernel: unknown name 'blokwise', did you mean 'blockwise'"):
        weights(query, key, kernel="blokwise")
    W = weights(query, key, kernel="sdpa")
    with pytest.raises(KernelNotSupported, match=r"cannot compute this call: .* measure Entropy"):
        W.entropy()


def test_scores_are_minus_infinity_where_masked():
    W = matrix(Causal())
    below = torch.arange(K) <= torch.arange(Q)[:, None] + K - Q
    dense = W.scores.dense()
    assert torch.equal(torch.isinf(dense[0, 0]), ~below)
    torch.testing.assert_close(dense.softmax(-1)[:, :, 2:], W.dense()[:, :, 2:])


SELECTIONS = [
    {"batch": 1},
    {"heads": [3, 1]},
    {"queries": slice(2, 8, 3)},
    {"batch": -1, "heads": 0, "queries": [8]},
    {"heads": torch.tensor([True, False, False, True])},
    {"heads": slice(None, None, 2), "queries": torch.tensor([5, 1])},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_at_selects_a_part_of_the_matrix(selection, subtests):
    for name, mask in masks(B, H, Q, K).items():
        with subtests.test(mask=name):
            W = matrix(mask)
            expected = dense_of(W)
            for axis, axis_name in enumerate(("batch", "heads", "queries")):
                index = selection.get(axis_name, slice(None))
                index = [index] if isinstance(index, int) else index
                expected = expected[(slice(None),) * axis + (index,)]
            part = W.at(**selection)
            assert part.shape == expected.shape
            torch.testing.assert_close(part.dense(), expected, rtol=0, atol=1e-14)
            torch.testing.assert_close(part.at(queries=0)[0, 0, 0], expected[0, 0, 0], rtol=0, atol=1e-14)


def test_at_selects_heads_whose_scores_differ(subtests):
    for score in SCORES:
        with subtests.test(score=score):
            check_heads(score)


def check_heads(score):
    case = SCORES[score]
    tensors = case.tensors(H, Q, K, 5)
    W = matrix(Causal(), score=case.rule(tensors))
    full, measured = W.dense(), W.measure("entropy", "lse")
    for heads in ([3, 1], [2]):
        part = W.at(batch=1, heads=heads, queries=[8, 0, 4])
        expected = full[1:, heads][:, :, [8, 0, 4]]
        torch.testing.assert_close(part.dense(), expected, rtol=0, atol=1e-14)
        for name, result in part.measure("entropy", "lse").items():
            torch.testing.assert_close(result, measured[name][1:, heads][:, :, [8, 0, 4]])


COLUMNS = [3, -1, [0], [6, 2, 2], [3, 4, 5], slice(None), slice(1, 6, 2), torch.tensor([0, 6]), torch.arange(7) < 3]


@pytest.mark.parametrize("mask", ["none", "and", "empty rows", "own", "neighbors"])
def test_columns_are_those_of_the_dense_matrix(mask, subtests):
    W = matrix(masks(B, H, Q, K)[mask])
    part, dense = W.at(heads=[3, 0], queries=[7, 2]), dense_of(W)
    for keys in COLUMNS:
        with subtests.test(keys=keys):
            expected = dense[..., [keys] if isinstance(keys, int) else keys]
            columns = W.columns(keys)
            assert columns.shape == expected.shape
            torch.testing.assert_close(columns, expected, rtol=0, atol=1e-14)
            torch.testing.assert_close(part.columns(keys), expected[:, [3, 0]][:, :, [7, 2]], rtol=0, atol=1e-14)


def test_columns_take_every_score(subtests):
    for score, case in SCORES.items():
        with subtests.test(score=score):
            W = matrix(Causal(), score=case.rule(case.tensors(H, Q, K, 5)))
            torch.testing.assert_close(W.columns([5, 1]), W.dense()[..., [5, 1]], rtol=0, atol=1e-14)


@pytest.mark.parametrize("rows", [slice(0, Q), slice(2, 3), slice(5, Q)], ids=str)
def test_scores_and_weights_of_a_range_of_keys(rows, subtests):
    for mask in MASKS:
        with subtests.test(mask=mask):
            check_ranges_of_keys(mask, rows)


def check_ranges_of_keys(mask, rows):
    W = matrix(masks(B, H, Q, K)[mask], offset=0)
    scores = torch.einsum("bhqd,bhkd->bhqk", W.request.query, W.request.key.repeat_interleave(H // 2, 1)) / 5**0.5
    scores = scores.masked_fill(~allowed(mask, B, H, Q, K, 0), -torch.inf)[:, :, rows]
    part = W.at(queries=rows)
    strongest = part.measure("max")["max"]
    for start, stop in ((0, K), (0, 1), (2, 5), (K - 1, K)):
        actual = part.request.scores_of_keys(KeyRange(start, stop))
        torch.testing.assert_close(actual, scores[..., start:stop], rtol=0, atol=1e-14)
        exact = scores.softmax(-1).nan_to_num(0.0)[..., start:stop]
        torch.testing.assert_close(strongest.weights_of(actual), exact, rtol=0, atol=1e-14)


def test_columns_of_large_scores_lose_no_digits():
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 50, 30, dtype=torch.float64) + 1000
    W = weights(scores.float(), torch.eye(30).expand(1, 1, 30, 30), scale=1.0)
    exact = scores.float().double().softmax(-1)
    torch.testing.assert_close(W.columns([3, 17]).double(), exact[..., [3, 17]], rtol=2e-6, atol=0)


def test_keys_that_do_not_exist_are_rejected():
    with pytest.raises(InvalidArgument, match="keys: expected indices from -7 to 6, got 7"):
        matrix().columns(7)
    with pytest.raises(InvalidArgument, match=r"keys: expected at least one of 7, got \[\], which selects none"):
        matrix().columns([])
    with pytest.raises(InvalidType, match=r"keys: expected an int, several or a slice .*, got 'all'"):
        matrix().columns("all")


@pytest.mark.parametrize("shape", [(K,), (K, 3), (H, K, 3), (1, K, 2), (B, H, K, 3), (1, H, K, 1), (B, 1, K, 2)])
def test_products_are_those_of_the_dense_matrix(shape):
    W, x = matrix(Causal()), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(W @ x, W.dense() @ x, rtol=0, atol=1e-13)


def test_the_operand_may_have_as_many_heads_as_the_key():
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    W = weights(query, key)
    torch.testing.assert_close(W @ value, W.dense() @ value.repeat_interleave(2, 1))
    with pytest.raises(InvalidArgument, match="heads = 4 or 2, keys = 7"):
        W @ torch.randn(2, 3, 7, 6)


def test_products_of_bfloat16_queries_may_be_in_float32():
    W, x = matrix(dtype=torch.bfloat16), torch.randn(K)
    assert (W @ x).dtype == torch.float32
    torch.testing.assert_close(W @ x, W.dense() @ x)


def test_everything_is_differentiable():
    query = torch.randn(B, H, Q, 2, dtype=torch.float64, requires_grad=True)
    key = torch.randn(B, 2, K, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(K, dtype=torch.float64)

    def parts(query, key):
        W = weights(query, key, mask=Causal(), offset=0)
        parts = W[0, 3, 5], W[:, :, 3, 1], W.scores[1, 2, 6, :3], W @ x, W.entropy(), W.columns([4, 2])
        return *parts, W.at(heads=[1, 3]).topk(2).values, W.mT.topk(3).values

    assert torch.autograd.gradcheck(parts, (query, key), fast_mode=not everything())
    assert not weights(query, key).detach()[0].requires_grad


def test_several_measures_take_one_pass():
    W = matrix()
    both = W.measure("entropy", TopK(2))
    assert list(both) == ["entropy", "topk"]
    torch.testing.assert_close(both["entropy"], W.entropy())
    assert torch.equal(both["topk"].indices, W.topk(2).indices)
    assert list(W.measure({"a": TopK(1), "b": TopK(2)})) == ["a", "b"]
    assert torch.equal(W.measure(["lse"])["lse"], W.lse())


def test_attend_and_weights_return_the_same_matrix():
    query, key, value = torch.randn(3, 1, 2, 20, 4).unbind(0)
    att = attend(query, key, value, mask=Causal(), measure="received")
    torch.testing.assert_close(att.weights @ value, att.output)
    torch.testing.assert_close(att.weights.received(), att.measured["received"])
    torch.testing.assert_close(weights(query, key, mask=Causal()).dense(), att.weights.dense())


def test_a_matrix_of_changed_tensors_raises():
    query, key = torch.randn(2, 1, 2, 20, 4).unbind(0)
    query, key, mask = query.clone(), key.clone(), torch.ones(20, 20, dtype=torch.bool)
    for changed in (query, key, mask):
        W = weights(query, key, mask=mask)
        W.entropy()
        changed[..., 0] = 0
        for use in (
            W.entropy,
            W.dense,
            lambda W=W: W.scores,
            lambda W=W: W[0],
            lambda W=W: W @ torch.ones(20),
            lambda W=W: W.mT @ torch.ones(20),
            lambda W=W: W.mT.topk(2),
            lambda W=W: W.columns(3),
            lambda W=W: W.measure("received"),
            W.at,
            W.detach,
            lambda W=W: W.to("cpu"),
        ):
            with pytest.raises(StaleView, match="was changed in place; compute"):
                use()


def test_matrices_of_inference_tensors_work():
    with torch.inference_mode():
        query = torch.randn(1, 1, 3, 4)
        W = weights(query, query)
    assert W.entropy().shape == (1, 1, 3)


def test_too_large_a_dense_matrix_is_rejected():
    x = torch.zeros(1, 8, 1, 1).expand(1, 8, 65536, 1)
    with pytest.raises(
        InvalidArgument, match=r"34,359,738,368 cells, 137.4 GB; the limit is 268,435,456. Select a part"
    ):
        weights(x, x).dense()
    with pytest.raises(InvalidArgument, match=r"4,294,967,296 cells, 17.2 GB"):
        weights(x, x)[0, 0]
    with pytest.raises(InvalidArgument, match="the limit is 5"):
        matrix().dense(limit=5)
    with pytest.raises(InvalidArgument, match=r"5,242,880,000 cells, 21.0 GB"):
        weights(x, x).columns(slice(10000))


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"heads": 4}, "heads: expected indices from -4 to 3, got 4"),
        ({"heads": [0, -5]}, r"heads: expected indices from -4 to 3, got \[0, -5\]"),
        ({"heads": []}, r"heads: expected at least one of 4, got \[\], which selects none"),
        ({"batch": slice(5, 9)}, "batch: expected at least one of 2, got slice.*, which selects none"),
        ({"queries": torch.tensor([0.5])}, "queries: expected integers or 9 bools"),
        ({"heads": 4, "batch": 2}, "2 problems:\n  - batch: .*, got 2\n  - heads: .*, got 4"),
    ],
)
def test_selections_that_do_not_exist_are_rejected(selection, message):
    with pytest.raises(InvalidArgument, match=message):
        matrix().at(**selection)


def test_invalid_operands_and_indices_are_rejected():
    with pytest.raises(InvalidArgument, match=r"W @ x: expected .* keys = 7 on cpu, got \(9,\) on cpu"):
        matrix() @ torch.ones(9)
    with pytest.raises(IndexError, match="index 7 is out of bounds for the axis of keys, which has size 7"):
        matrix()[0, 0, 0, 7]
    with pytest.raises(InvalidType, match=r"Received\.row_weights: expected a tensor, got list"):
        matrix().received([1.0])
    with pytest.raises(InvalidType, match=r"W @ x: expected a floating-point tensor, got int64 \(7,\)"):
        matrix() @ torch.ones(7, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match=r"TopK\.k: expected an int of at least 1, got 0"):
        matrix().topk(0)
    with pytest.raises(
        InvalidArgument, match=r"Received\.row_weights: .* broadcastable to .* = \(2, 4, 9\), got \(4,\)"
    ):
        matrix().received(torch.ones(4))
    with pytest.raises(InvalidType, match="heads: expected an int, several or a slice with a positive step, got 'all'"):
        matrix().at(heads="all")


def test_the_matrix_prints_its_shape_and_size():
    W = matrix(Causal())
    assert repr(W) == (
        "WeightMatrix(batch=2, heads=4, queries=9, keys=7, mask=Causal(), float64, cpu, holds 4.0 kB instead of 4.0 kB)"
    )
    assert (W.shape, W.ndim, len(W), W.dtype, W.device.type) == ((B, H, Q, K), 4, B, torch.float64, "cpu")
    assert matrix(dtype=torch.bfloat16).dtype == torch.float32


def test_the_mask_moves_with_the_matrix():
    W = matrix(Causal() & masks(B, H, Q, K)["padding"]).at(heads=[1, 2]).to("cpu")
    assert W.shape == (B, 2, Q, K)
    assert W.to("meta").device.type == "meta"


def test_to_names_a_device_that_there_is_not():
    for each in (matrix(Causal()), masks(B, H, Q, K)["padding"]):
        with pytest.raises(InvalidArgument, match="device: expected a device such as 'cpu' or 'cuda:0', got"):
            each.to("gpu")


def test_copies_work_and_watch_their_own_tensors(tmp_path):
    query = torch.randn(1, 2, 5, 4)
    query += 1  # so that its version differs from that of a new tensor
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
def test_matrices_of_inference_mode_can_be_copied(protocol):
    with torch.inference_mode():
        W = weights(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        copied = pickle.loads(pickle.dumps(W, protocol))
        assert torch.equal(copied.entropy(), W.entropy())


def test_too_large_a_result_is_rejected_before_it_takes_memory():
    W = weights(torch.zeros(1, 1, 60_000, 2), torch.zeros(1, 1, 60_000, 2))
    for index in ((..., torch.arange(60_000)), (0, 0, torch.arange(60_000)[:, None], torch.arange(60_000))):
        with pytest.raises(InvalidArgument, match="the result would hold 3,600,000,000 cells"):
            W[index]


def largest_tensor(run):
    """The number of elements of the largest allocation during `run()`."""

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            for tensor in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                    self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize)
            return result

    with Largest() as largest:
        run()
    return largest.elements


def test_a_long_row_among_many_short_ones_takes_memory_of_the_cells():
    tokens = 4000
    x = torch.randn(1, 1, tokens, 4, generator=torch.Generator().manual_seed(0))
    W, everything = weights(x, x), torch.arange(tokens)
    rows, keys = torch.cat((torch.zeros_like(everything), everything)), torch.cat((everything, everything.flip(0)))
    expected = W.dense()[0, 0, rows, keys]
    torch.testing.assert_close(W[0, 0, rows, keys], expected)
    assert largest_tensor(lambda: W[0, 0, rows, keys]) < tokens * tokens / 4  # the largest is a block


def test_columns_of_a_score_with_a_large_workspace_take_several_steps():
    x = torch.randn(1, 2, 400, 64, generator=torch.Generator().manual_seed(0))
    W = weights(x, x, score=Additive(torch.ones(64)))
    expected = W.dense()[..., 5:395]
    torch.testing.assert_close(W.columns(slice(5, 395)), expected)
    assert largest_tensor(lambda: W.columns(slice(5, 395))) < 2 * 400 * 390 * 64 / 4


def test_the_strongest_queries_of_many_keys_take_several_steps():
    query, key = (torch.randn(1, 1, tokens, 4, generator=torch.Generator().manual_seed(0)) for tokens in (1500, 6000))
    W = weights(query, key, mask=Causal())
    assert largest_tensor(lambda: W.mT.topk(2)) < 1500 * 6000 / 2
    values, indices = W.mT.topk(2)
    expected = W.dense().mT.topk(2)
    torch.testing.assert_close(values, expected.values)
    assert (indices == expected.indices)[values > 0].float().mean() > 0.999  # of two nearly equal ones, either


def test_strongest_queries_are_looked_up_again_only_for_gradients(monkeypatch):
    W = matrix()
    monkeypatch.setattr(type(W), "_cells", lambda *_: pytest.fail("this needs no gradient"))
    assert W.mT.topk(2).values.shape == (B, H, K, 2)


def test_strongest_queries_have_gradients_under_torch_func():
    W = matrix()
    query, key = W.request.query, W.request.key

    def total(query):
        return weights(query, key).mT.topk(2).values.sum()

    leaf = query.clone().requires_grad_()
    weights(leaf, key).dense().mT.topk(2).values.sum().backward()
    torch.testing.assert_close(torch.func.grad(total)(query), leaf.grad)


def test_strongest_queries_have_the_limit_of_dense():
    x = torch.zeros(1, 1, 20_000, 1)
    with pytest.raises(InvalidArgument, match="the result would hold 400,000,000 cells"):
        weights(x, x).mT.topk(20_000)


def test_padding_queries_give_nothing_to_received():
    W, valid = matrix(), torch.rand(B, Q, generator=torch.Generator().manual_seed(0)) < 0.6
    known = WeightMatrix(W.request, valid)
    rows = valid[:, None].double()
    weights = torch.rand(B, H, Q, dtype=torch.float64)
    for expected, actual in (
        (W.received(rows), known.received()),
        (W.received(rows * weights), known.received(weights)),
        (W.received(rows), known.measure({"r": Received(), "e": "entropy"})["r"]),
        (
            W.at(batch=1, heads=[0, 2], queries=[5, 1]).received(rows[1:, :, [5, 1]]),
            known.at(1, [0, 2], [5, 1]).received(),
        ),
        (W.received(rows), known.detach().to("cpu").received()),
        (W.received(rows), pickle.loads(pickle.dumps(known)).received()),
    ):
        torch.testing.assert_close(actual, expected)
    assert torch.equal(known.dense(), W.dense())
    assert torch.equal(known.entropy(), W.entropy())


def test_padding_queries_do_not_count_in_losses():
    W, valid = matrix(), torch.rand(B, Q, generator=torch.Generator().manual_seed(0)) < 0.6
    known, rows, keys = WeightMatrix(W.request, valid), valid[:, None].double(), torch.randint(K, (B, Q))
    other = weights(*(torch.randn_like(part) for part in (W.request.query, W.request.key)))
    half = torch.full((B, 1, Q), 0.5, dtype=torch.float64)
    for loss in (
        lambda W, w: nn.entropy_loss(W, ceiling=0.5, row_weights=w),
        lambda W, w: nn.alignment_loss(W, keys, row_weights=w),
        lambda W, w: nn.coverage_loss(W, row_weights=w),
        lambda W, w: nn.kl_divergence_loss(W, other, row_weights=w),
    ):
        torch.testing.assert_close(loss(known, None), loss(W, rows))
        torch.testing.assert_close(loss(known, half), loss(W, half * rows))
        assert not torch.isclose(loss(known, None), loss(W, None))


def test_other_missing_attributes_raise_attribute_error():
    W = weights(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    with pytest.raises(AttributeError, match=r"^'WeightMatrix' object has no attribute 'entropie'$"):
        W.entropie  # noqa: B018
    assert copy.deepcopy(W).shape == W.shape


@pytest.mark.parametrize(
    "index",
    [(0, 1, 3), (-1, -2, -3), (0, slice(1, 3), 2), (slice(None), 1, slice(2, 5), slice(1, 4)), (1, 0, 2, -1),
     (slice(5, 9), 0), (0, slice(0, 4, 2)), (0, 1, 2, slice(None, None, 2)), (slice(None), slice(1, 1))],
)  # fmt: skip
def test_ints_and_slices_select_what_they_select_of_the_dense_matrix(index):
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 7, 8)
    W = weights(query, key, mask=Causal())
    torch.testing.assert_close(W[index], W.dense()[index])
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 1 with size 4"):
        W[0, 4]
