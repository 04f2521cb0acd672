"""Edge cases of arguments: more keys than exist, no measure, too large numbers, unexpected types."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.nn import kl_divergence_loss
from regard.ops import attend, weights
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal, Neighbors, Padding, Window
from regard.ops.measures import Mass, Received, TopK
from regard.ops.scores import Additive, Alibi, ScaledDotProduct, Sinks

RUNNING = ["blockwise", "reference"]


def tensors(queries=9, keys=12, batch=2, heads=2, dtype=torch.float64, count=3):
    random = torch.Generator().manual_seed(0)
    sizes = [queries, *[keys] * (count - 1)]
    draws = (torch.randn(batch, heads, size, 8, generator=random, dtype=torch.float64) for size in sizes)
    return [tensor.to(dtype).requires_grad_() for tensor in draws]


def dense(query, key, cells):
    return (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~cells, -inf).softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize("kernel", [*RUNNING, "sparse"])
@pytest.mark.parametrize(("keys", "k"), [(3, 4), (3, 10**4), (1, 2), (12, 13)])
def test_topk_of_more_keys_than_exist_is_padded(kernel, keys, k):
    query, key, value = tensors(keys=keys)
    cells = torch.arange(keys) <= torch.arange(9)[:, None] - 1
    mask = Neighbors(*cells.nonzero().T)
    actual = attend(query, key, value, mask=mask, measure=TopK(k), kernel=kernel).measured["topk"]
    P = dense(query, key, cells)
    values, indices = P.sort(-1, descending=True)
    torch.testing.assert_close(actual.values[..., :keys], values)
    assert torch.equal(
        actual.indices[..., :keys], torch.where(cells.sum(-1, keepdim=True) > torch.arange(keys), indices, -1)
    )
    assert actual.values.shape == actual.indices.shape == (2, 2, 9, k)
    assert (actual.values[..., keys:] == 0).all()
    assert (actual.indices[..., keys:] == -1).all()
    rows = torch.linspace(0.5, 1.5, k, dtype=torch.float64)
    result = torch.autograd.grad((actual.values * rows).sum(), (query, key))
    expected = torch.autograd.grad((values * rows[:keys]).sum(), (query, key))
    torch.testing.assert_close(result, expected)


def test_topk_of_a_view_takes_more_keys_than_exist():
    query, key, _ = tensors()
    actual = weights(query, key).topk(15)
    assert actual.values.shape == (2, 2, 9, 15)
    assert (actual.indices[..., 12:] == -1).all()
    torch.testing.assert_close(actual.values.sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3", None])
def test_topk_needs_a_positive_k(k):
    query, key, value = tensors()
    with pytest.raises((InvalidArgument, InvalidType), match=r"TopK\.k: expected an int of at least 1"):
        attend(query, key, value, measure=TopK(k))


@pytest.mark.parametrize("requested", [(), ([],), ({},)], ids=["nothing", "empty list", "empty dict"])
def test_a_call_without_results_computes_nothing(requested):
    class Failing(Blockwise):
        def run(self, inputs):
            raise AssertionError("a kernel ran")

    W = weights(*tensors(count=2), kernel=Failing())
    assert W.measure(*requested) == {}


def test_attend_reports_all_problems_at_once():
    query, key, value = tensors()
    with pytest.raises(InvalidArgument) as error:
        attend(
            query,
            key[:, :, :, :5],
            value[:, :, :7],
            dropout=2,
            measure=["entrpy"],
            mask=Padding(torch.tensor([3])),
        )
    for problem in (
        "head_dim 8, got 5",
        "as many keys as in key, 12, got 7",
        "dropout",
        "did you mean 'entropy'",
    ):
        assert problem in str(error.value)


def test_problems_of_mask_score_dropout_and_measure_are_in_one_error():
    query, key, value = tensors()
    with pytest.raises(InvalidArgument) as error:
        attend(
            query,
            key,
            value,
            mask=Padding(torch.tensor([3])),
            score=Sinks(ScaledDotProduct(), torch.zeros(5)),
            dropout=-0.5,
            measure=["entrpy", "lsee", Received(torch.zeros(5))],
        )
    for problem in ("Padding", "Sinks", "dropout", "'entrpy'", "'lsee'", "Received.row_weights"):
        assert problem in str(error.value)


def _alternate(batch, head, query, key):
    return (batch + head + query + key) % 2 == 0


QUERIES, KEYS = torch.arange(9)[:, None], torch.arange(12)
CELLS = {
    "mask": (Window(2, 0), (KEYS <= QUERIES + 3) & (KEYS >= QUERIES + 1)),
    "bool tensor": (KEYS % 3 == QUERIES % 3, KEYS % 3 == QUERIES % 3),
    "bool tensor of keys": (KEYS > 4, KEYS > 4),
    "function": (_alternate, sum(torch.meshgrid(*map(torch.arange, (2, 2, 9, 12)), indexing="ij")) % 2 == 0),
    "block mask": (create_block_mask(lambda b, h, q, k: q >= k, None, None, 9, 12, device="cpu"), KEYS <= QUERIES),
}


@pytest.mark.parametrize("kernel", [None, *RUNNING])
def test_mass_takes_any_mask_that_attend_takes(kernel):
    for mask, cells in CELLS.values():
        query, key, value = tensors()
        attended = attend(query, key, value, mask=Causal(), measure=Mass(mask), kernel=kernel)
        expected = torch.where(cells, dense(query, key, KEYS <= QUERIES + 3), 0.0).sum(-1)
        torch.testing.assert_close(attended.measured["mass"], expected)
        torch.testing.assert_close(attended.weights.measure(Mass(mask))["mass"], expected)
        pairs = (
            torch.autograd.grad(each.square().sum(), (query, key)) for each in (attended.measured["mass"], expected)
        )
        torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("mask", ["causal", 3, Causal, torch.ones(9, 12), torch.ones(5, 12, dtype=torch.bool)])
def test_mass_refuses_invalid_masks(mask):
    query, key, value = tensors()
    with pytest.raises((InvalidArgument, InvalidType)):
        attend(query, key, value, measure=Mass(mask))


@pytest.mark.parametrize("node", [2**40, 2**62, 2**63 - 1])
@pytest.mark.parametrize("side", [0, 1])
def test_a_node_number_that_is_too_large_is_named(node, side):
    edges = torch.tensor([[0, 1], [0, 1]])
    edges[side, 1] = node
    query, key, value = tensors()
    with pytest.raises(InvalidArgument, match=rf"expected indices from 0 to 2\*\*31 - 1, got {node}"):
        attend(query, key, value, mask=Neighbors(*edges))


@pytest.mark.parametrize("kernel", [*RUNNING, "sparse"])
def test_additive_scores_are_not_scaled_in_half_precision(kernel, subtests):
    for case in product([torch.bfloat16, torch.float16], [False, True], ["tanh", "leaky_relu"]):
        with subtests.test(case=case):
            check_additive(kernel, *case)


def check_additive(kernel, dtype, of_heads, activation):
    query, key, _ = (tensor.detach() for tensor in tensors(dtype=dtype))
    random = torch.Generator().manual_seed(1)
    vector = torch.randn(*((2, 8) if of_heads else (8,)), generator=random).to(dtype)
    mask, scale = Neighbors(*torch.ones(9, 12).nonzero().T), 0.3
    measured = attend(
        query, key, key, mask=mask, score=Additive(vector, activation), scale=scale, measure=TopK(12), kernel=kernel
    )
    values, indices = measured.measured["topk"]
    actual = torch.zeros(2, 2, 9, 12).scatter(-1, indices, values)
    f = torch.tanh if activation == "tanh" else lambda x: torch.where(x > 0, x, 0.2 * x)
    terms = f(query.double()[:, :, :, None] + key.double()[:, :, None]) * vector.double().view(-1, 1, 1, 8)
    assert (actual.double() - (terms.sum(-1) * scale).softmax(-1)).abs().max() <= 1e-6


@pytest.mark.parametrize("count", [None, 0, -1, 2.5, True, "8"])
def test_alibi_needs_a_positive_number_of_heads(count):
    with pytest.raises((InvalidArgument, InvalidType), match="num_heads: expected an int of at least 1"):
        Alibi.for_heads(count)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # of the compiler, about itself
@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 1) & Padding(torch.tensor([12, 7]))], ids=str)
def test_the_divergence_loss_compiles_as_one_graph(mask):
    def program(query, key, other_query, other_key):
        P, Q = weights(query, key, mask=mask), weights(other_query * 2, other_key, mask=mask)
        return kl_divergence_loss(P, Q) + kl_divergence_loss(Q, P.detach())

    torch._dynamo.reset()
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 12, 8, generator=random).requires_grad_() for _ in range(4)]
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)(*inputs)
    eager = program(*inputs)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(*(torch.autograd.grad(loss, inputs) for loss in (compiled, eager)))


def test_the_names_of_the_package_are_public_ones():
    names = dir(regard)
    assert {*regard.__all__, "load", "training"} <= {*names}
    assert [name for name in names if name.startswith("_") and not name.startswith("__")] == []
