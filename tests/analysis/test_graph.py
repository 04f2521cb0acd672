"""The weights as a graph: networkx and dense algebra are the oracles."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch

from regard.analysis import pagerank, to_csr, to_networkx
from regard.errors import InvalidArgument, InvalidType
from regard.ops import WeightMatrix, weights
from regard.ops.masks import Causal
from regard.ops.scores import ScaledDotProduct, Sinks


def matrix(mask=None, score=None, batch=1, heads=1, tokens=9):
    random = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, batch, heads, tokens, 5, generator=random, dtype=torch.float64).unbind()
    return weights(2 * query, key, mask=mask, score=score)


EMPTY = torch.arange(9)[:, None] != 4


@pytest.mark.parametrize("mask", [None, Causal(), EMPTY], ids=str)
def test_pagerank_is_that_of_networkx(mask):
    W = matrix(mask, batch=2, heads=3)
    actual = pagerank(W, tol=1e-10)
    torch.testing.assert_close(actual.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    for batch, head in ((0, 0), (1, 2)):
        graph = networkx.from_numpy_array(W.dense()[batch, head].numpy(), create_using=networkx.DiGraph)
        expected = networkx.pagerank(graph, alpha=0.85, tol=1e-12)
        np.testing.assert_allclose(actual[batch, head], [expected[node] for node in range(9)], atol=1e-8)


def test_a_node_without_outgoing_edges_restarts():
    W = matrix(score=Sinks(ScaledDotProduct(), torch.ones(1, dtype=torch.float64)))
    dense = W.dense()[0, 0]
    chain = 0.85 * dense + (1 - 0.85 * dense.sum(1, keepdim=True)) / 9
    values, vectors = np.linalg.eig(chain.T.numpy())
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    np.testing.assert_allclose(pagerank(W, tol=1e-12)[0, 0], expected / expected.sum(), atol=1e-9)


def test_without_jumps_it_is_the_stationary_distribution():
    W = matrix(batch=2, heads=3)
    actual = pagerank(W, damping=1, tol=1e-12)
    torch.testing.assert_close((W.mT @ actual[..., None])[..., 0], actual, atol=1e-11, rtol=0)
    torch.testing.assert_close(actual.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    first = pagerank(matrix(Causal()), damping=1, tol=1e-12, max_iter=5000)[0, 0]
    torch.testing.assert_close(first, torch.eye(9, dtype=torch.float64)[0], atol=1e-9, rtol=0)


def test_a_sparse_matrix_reports_what_it_leaves_out(monkeypatch):
    blocks = WeightMatrix.query_blocks
    monkeypatch.setattr(WeightMatrix, "query_blocks", lambda W: blocks(W, 20))  # two rows at a time
    W = matrix(Causal())
    dense = W.dense()[0, 0]
    sparse = to_csr(W, 0.2)
    kept = dense.where(dense >= 0.2, 0.0)
    np.testing.assert_allclose(sparse.matrix.toarray(), kept.numpy(), rtol=1e-12)
    torch.testing.assert_close(sparse.dropped_mass, (dense - kept).sum(1))
    graph = to_networkx(W, 0.2, tokens=["a", "b", "c", "d", "e", "f", "g", "h", "i"])
    np.testing.assert_array_equal(networkx.to_numpy_array(graph, nodelist=range(9)), sparse.matrix.toarray())
    assert graph.nodes[3]["token"] == "d"
    assert [graph.nodes[i]["dropped_mass"] for i in range(9)] == sparse.dropped_mass.tolist()


def test_invalid_graphs_are_refused():
    W = matrix(heads=2)
    with pytest.raises(InvalidArgument, match=r"to_csr: expected one head of one batch entry, got batch 1 and heads 2"):
        to_csr(W)
    with pytest.raises(InvalidArgument, match=r"threshold: expected a weight above 0, got 0; W\.dense"):
        to_csr(W.at(heads=0), 0)
    with pytest.raises(InvalidArgument, match="expected a name for each of 9 tokens, got 2"):
        to_networkx(W.at(heads=0), tokens=["a", "b"])
    with pytest.raises(InvalidArgument, match="pagerank: expected as many queries as keys, got 3 and 9"):
        pagerank(W.at(queries=slice(3)))
    with pytest.raises(InvalidArgument, match=r"damping: expected a probability from 0 to 1, got 1\.5"):
        pagerank(W, damping=1.5)
    with pytest.raises(InvalidArgument, match="PageRank did not converge in 2 iterations"):
        pagerank(W, tol=1e-15, max_iter=2)
    with pytest.raises(InvalidType, match="pagerank: expected a weight matrix, got Tensor"):
        pagerank(W.dense())
