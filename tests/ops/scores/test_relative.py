"""Relative positions, compared with the papers' equations, which have a vector per cell."""

from __future__ import annotations

import pytest
import torch

from regard.native.library import LEVELS, library
from regard.ops import attend, weights
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, Neighbors, Window
from regard.ops.measures import DistanceHistogram
from regard.ops.scores import RelativeKey, RelativeQuery, ScaledDotProduct, SoftCap

CASES = [(300, 4), (5, 16), (7, 0)]
NATIVE = [Native(level=level) for level in LEVELS if not isinstance(library(level), str)]
native = pytest.mark.skipif(not NATIVE, reason=f"native: {library()}")


def random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def by_cell(table, shape, offset=None):
    """The vector of each cell, (..., queries, keys, head_dim)."""
    queries, keys = shape
    reach, offset = table.shape[-2] // 2, keys - queries if offset is None else offset
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - offset
    return table[..., distance.clamp(-reach, reach) + reach, :]


def equation(query, key, on_keys, on_queries, scale, offset=None):
    """Equation 4 of DeBERTa, with a vector for each cell."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    on_keys, on_queries = (by_cell(table, (query.shape[2], key.shape[2]), offset) for table in (on_keys, on_queries))
    to_keys = (query[:, :, :, None] * on_keys).sum(-1)
    return scale * (query @ key.mT + to_keys + (key[:, :, None] * on_queries).sum(-1))


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
@pytest.mark.parametrize(("n", "k"), CASES)
def test_keys_and_values_follow_the_equations(n, k, kernel, mask):
    leaves = random((2, 4, n, 8), (2, 4, n, 8), (2, 4, n, 6), (2 * k + 1, 8), (2 * k + 1, 6))
    query, key, value, on_keys, on_values = leaves

    att = attend(
        query,
        key,
        value,
        mask=mask,
        score=ScaledDotProduct() + RelativeKey(on_keys),
        measure=DistanceHistogram(k),
        kernel=kernel,
    )
    actual = att.output + att.measured["distance_histogram"] @ on_values

    e = torch.einsum("bhid,bhijd->bhij", query, key[:, :, None] + by_cell(on_keys, (n, n))) / 8**0.5  # equation 4
    if mask is not None:
        e = e.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    z = torch.einsum("bhij,bhijd->bhid", e.softmax(-1), value[:, :, None] + by_cell(on_values, (n, n)))  # equation 3
    torch.testing.assert_close(actual, z, rtol=0, atol=1e-11)
    gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (actual, z))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


TABLES = {"shared": (), "of heads": (4,), "of sequences": (2, 4)}


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
@pytest.mark.parametrize(("n", "k"), CASES)
def test_contents_and_positions_are_compared_both_ways(n, k, kernel, mask, subtests):
    for name, axes in TABLES.items():
        with subtests.test(tables=name):
            leaves = random((2, 4, n, 8), (2, 2, n, 8), (2, 2, n, 6), (*axes, 2 * k + 1, 8), (*axes, 2 * k + 1, 8))
            query, key, value, on_keys, on_queries = leaves
            score = ScaledDotProduct() + RelativeKey(on_keys) + RelativeQuery(on_queries)
            actual = attend(query, key, value, mask=mask, score=score, scale=0.2, kernel=kernel).output
            scores = equation(query, key, on_keys, on_queries, 0.2)
            if mask is not None:
                scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
            expected = scores.softmax(-1) @ value.repeat_interleave(2, 1)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
            gradients = (torch.autograd.grad(each.square().sum(), leaves) for each in (actual, expected))
            torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


SHAPES = [  # queries, keys, reach, head_dim, offset
    *((67, 67, 66, 16, None), (67, 67, 300, 16, None), (150, 210, 9, 8, None), (7, 7, 0, 5, None)),
    *((5, 130, 40, 19, 0), (130, 5, 3, 64, 60), (1, 1, 2, 1, None), (49, 65, 20, 7, -70), (3, 2, 1, 4, 10**12)),
]


@native
@pytest.mark.parametrize("kernel", NATIVE, ids=lambda kernel: kernel.level)
@pytest.mark.parametrize("tables", TABLES)
def test_the_native_kernel_computes_them(kernel, tables, subtests):
    axes = TABLES[tables]
    for queries, keys, reach, dim, offset in SHAPES:
        with subtests.test(queries=queries, keys=keys, reach=reach, head_dim=dim, offset=offset):
            table = *axes, 2 * reach + 1, dim
            leaves = random((2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, 6), table, table)

            def results(dtype, leaves=leaves, offset=offset):
                query, key, value, on_keys, on_queries = (leaf.to(dtype) for leaf in leaves)
                if dtype == torch.float64:
                    W = equation(query, key, on_keys, on_queries, 0.3, offset).softmax(-1)
                    return W @ value.repeat_interleave(2, 1), -torch.special.xlogy(W, W).sum(-1), W.sum(2)
                score = ScaledDotProduct() + RelativeKey(on_keys) + RelativeQuery(on_queries)
                options = {"score": score, "scale": 0.3, "offset": offset, "measure": ["entropy", "received"]}
                att = attend(query, key, value, kernel=kernel, **options)
                return att.output, *att.measured.values()

            exact, actual = results(torch.float64), results(torch.float32)
            exact += torch.autograd.grad(sum(each.sin().sum() for each in exact), leaves)
            actual += torch.autograd.grad(sum(each.sin().sum() for each in actual), leaves)
            for own, expected in zip(actual, exact, strict=True):
                error = (own - expected).abs().max() / expected.abs().max().clamp(min=1)
                assert error <= 1e-5


@native
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    query, key, on_keys, on_queries = (
        each.detach().to(dtype) for each in random((2, 4, 90, 16), (2, 2, 130, 16), (4, 61, 16), (4, 259, 16))
    )
    value = torch.eye(130, dtype=dtype).expand(2, 2, -1, -1)
    score = ScaledDotProduct() + RelativeKey(on_keys) + RelativeQuery(on_queries)
    exact = equation(*(each.double() for each in (query, key, on_keys, on_queries)), 0.25).softmax(-1)
    for kernel in NATIVE:
        actual = attend(query, key, value, score=score, kernel=kernel).output.double()
        assert ((actual - exact).abs() <= torch.finfo(dtype).eps * exact + 1e-3).all(), kernel.level


@native
def test_relative_positions_may_occur_several_times_and_be_capped():
    leaves = random((1, 4, 90, 16), (1, 2, 70, 16), (1, 2, 70, 8), (7, 16), (4, 301, 16), (61, 16), (3, 16))

    def gradients(dtype, kernel):
        query, key, value, *tables = (leaf.to(dtype) for leaf in leaves)
        inner = ScaledDotProduct() + RelativeKey(tables[0]) + RelativeQuery(tables[1]) + RelativeQuery(tables[2])
        score = SoftCap(inner, 2.0) + RelativeKey(tables[3])
        att = attend(query, key, value, score=score, mask=Window(40, 9), offset=0, measure="entropy", kernel=kernel)
        loss = att.output.square().sum() + att.measured["entropy"].sum()
        return torch.autograd.grad(loss, leaves)

    for actual, exact in zip(gradients(torch.float32, "native"), gradients(torch.float64, "reference"), strict=True):
        assert (actual - exact).abs().max() <= 1e-5 * exact.abs().max()


@native
def test_parts_of_a_matrix_have_their_own_positions():
    query, key, on_keys, on_queries = random((3, 4, 60, 16), (3, 2, 80, 16), (3, 4, 21, 16), (3, 4, 151, 16))
    exact = equation(query, key, on_keys, on_queries, 0.3, 5).softmax(-1)
    score = ScaledDotProduct() + RelativeKey(on_keys.float()) + RelativeQuery(on_queries.float())
    W = weights(query.float(), key.float(), score=score, scale=0.3, offset=5, kernel="native")
    rows = [*range(7, 30), 3, 3, 59, 58, 0]
    part = W.at(batch=[2, 0], heads=[3, 1], queries=rows)
    torch.testing.assert_close(part.dense().double(), exact[[2, 0]][:, [3, 1]][:, :, rows], rtol=0, atol=2e-6)
    torch.testing.assert_close(W[1, 2, 11].double(), exact[1, 2, 11], rtol=0, atol=2e-6)


@native
def test_tables_may_have_any_strides():
    query, key, table = (each.detach().float() for each in random((1, 2, 30, 16), (1, 2, 50, 16), (9, 2, 32)))
    for strided in (table[..., :16].transpose(0, 1), table[..., ::2].transpose(0, 1), table[:1, 0, :16]):
        for cls in (RelativeKey, RelativeQuery):
            results = [
                attend(query, key, key, score=ScaledDotProduct() + cls(each), kernel="native").output
                for each in (strided, strided.contiguous())
            ]
            assert torch.equal(*results)


@native
def test_dropout_drops_the_same_weights_as_the_definition():
    leaves = random((1, 2, 70, 16), (1, 1, 90, 16), (1, 1, 90, 8), (2, 9, 16), (2, 201, 16))

    def results(dtype, kernel):
        torch.manual_seed(5)
        query, key, value, on_keys, on_queries = (leaf.to(dtype) for leaf in leaves)
        score = ScaledDotProduct() + RelativeKey(on_keys) + RelativeQuery(on_queries)
        output = attend(query, key, value, score=score, dropout=0.3, kernel=kernel).output
        return output, *torch.autograd.grad(output.sin().sum(), leaves)

    for actual, exact in zip(results(torch.float32, "native"), results(torch.float64, "reference"), strict=True):
        assert (actual - exact).abs().max() <= 5e-6 * exact.abs().max().clamp(min=1)


def test_positions_of_a_query_count_from_the_offset_on_graphs_too(subtests):
    edges = [torch.randint(size, (60,), generator=torch.Generator().manual_seed(1)) for size in (40, 64)]
    allowed = torch.zeros(40, 64, dtype=torch.bool).index_put(tuple(edges), torch.tensor(True))
    for name, axes in {"shared": (), "of heads": (2,), "of sequences": (3, 2)}.items():
        with subtests.test(tables=name):
            tensors = random((3, 2, 40, 8), (3, 2, 64, 8), (*axes, 9, 8), dtype=torch.float32)
            query, key, table = (each.detach() for each in tensors)
            on_graph = weights(query, key, mask=Neighbors(*edges), score=ScaledDotProduct() + RelativeQuery(table))
            scores = equation(query, key, torch.zeros(1, 8), table, 8**-0.5)
            expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
            torch.testing.assert_close(on_graph.dense(), expected)
            received = on_graph.measure("received")["received"]
            torch.testing.assert_close(received, expected.sum(2))
            torch.testing.assert_close(on_graph[0, 1, [7, 3]], expected[0, 1, [7, 3]])
