"""Weights as a directed graph with an edge from each query to each key: PageRank, SciPy and NetworkX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.padding import valid_queries
from regard.errors import InvalidArgument, InvalidType, require, short_repr
from regard.ops import WeightMatrix
from regard.ops.linear_operator import require_one_head


def pagerank(
    weights: WeightMatrix, *, damping: float = 0.85, tol: float = 1e-6, max_iter: int = 1000
) -> Float[Tensor, "batch heads tokens"]:
    """PageRank of the tokens of each head: the stationary distribution of a random walk along attention.

    x = d · Wᵀx + (1 − d) / n; the mass on a row without keys is spread over all n tokens. Padding is not a token.

    With d = 1 it is the stationary distribution of the weights themselves, x = Wᵀx, from an even start. The iteration
    then converges like the second largest eigenvalue to the power of its steps (`WeightMatrix.spectral_gap`).

    Args:
        weights: Self-attention, (batch, heads, tokens, tokens).
        damping: d, the probability of following attention, from 0 to 1.
        tol: The iteration stops when the mean change of x is at most tol / tokens.
        max_iter: Largest number of iterations.

    Returns:
        (batch, heads, tokens); sums to 1 over the tokens and is 0 at padding. It has no gradients.

    Raises:
        InvalidArgument: If W is not square, a number is out of range, or the iteration did not converge.
        InvalidType: If W is not a weight matrix.

    Memory:
        O(tokens): each iteration is a product with the transpose.

    Reference:
        Brin and Page 1998, "The Anatomy of a Large-Scale Hypertextual Web Search Engine", section 2.1.1.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.zeros(2, 1, 4, 300, 8).unbind(), mask=regard.Causal())
        >>> regard.analysis.pagerank(W)[0, 0].argmax()
        tensor(0)
    """
    check_square(weights, "pagerank")
    if not 0 <= damping <= 1:
        raise InvalidArgument(f"damping: expected a probability from 0 to 1, got {damping}")
    weights = weights.detach()
    valid = valid_queries(weights, is_self=True)
    shares = (valid / valid.sum(1, keepdim=True).clamp(min=1)).to(weights.dtype)[:, None, :, None]
    x = shares.expand(-1, weights.shape[1], -1, -1)  # (batch, heads, tokens, 1)
    for _ in range(max_iter):
        followed = damping * (weights.mT @ x)
        # The rest of the mass: random jumps, and rows without keys or with a sink.
        new = followed + (1 - followed.sum(2, keepdim=True)) * shares
        if float((new - x).abs().sum(2).max()) <= tol:
            return new[..., 0]
        x = new
    raise InvalidArgument(
        f"max_iter: PageRank did not converge in {max_iter} iterations; raise max_iter or tol ({tol})"
    )


class SparseWeights(NamedTuple):
    """One head's weights, without those below a threshold."""

    matrix: Any
    """`scipy.sparse.csr_array`, (queries, keys)."""
    dropped_mass: Float[Tensor, " queries"]
    """The sum of the weights of each row that are below the threshold."""


def to_csr(weights: WeightMatrix, threshold: float = 0.01) -> SparseWeights:
    """One head's weights as a SciPy sparse matrix, and the mass that it leaves out. Rows that are padding are empty.

    Args:
        weights: One head of one sequence, ``W.at(batch=0, heads=3)``.
        threshold: Weights below it are left out. Above 0.

    Raises:
        InvalidArgument: If W is more than one head, or the threshold is not above 0.
        InvalidType: If W is not a weight matrix.
        MissingExtra: If SciPy is not installed.

    Memory:
        O(keys + weights above the threshold): it computes blocks of rows.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask=regard.Causal())
        >>> sparse = regard.analysis.to_csr(W, threshold=0.6)
        >>> sparse.matrix.toarray().tolist(), sparse.dropped_mass
        ([[1.0, 0.0], [0.0, 0.0]], tensor([0., 1.]))
    """
    sparse = require("scipy.sparse", extra="graph", needed_by="to_csr")
    blocks = list(_edges_above(weights, threshold, "to_csr"))
    rows, keys, values = (torch.cat(parts) for parts in zip(*(block[:3] for block in blocks), strict=True))
    matrix = sparse.csr_array((values.numpy(), (rows.numpy(), keys.numpy())), shape=tuple(weights.shape[2:]))
    return SparseWeights(matrix, torch.cat([block[3] for block in blocks]))


def to_networkx(weights: WeightMatrix, threshold: float = 0.01, tokens: Sequence[str] | None = None) -> Any:
    """One head's weights as a `networkx.DiGraph`: an edge from query to key for each weight of at least a threshold.

    Args:
        weights: One head of one sequence, of self-attention.
        threshold: Weights below it are left out. Above 0.
        tokens: Names of the tokens.

    Returns:
        A graph whose nodes are the indices of the tokens that are not padding, with ``token``, if names were passed,
        and ``dropped_mass``, the sum of the weights of the row that were left out. Edges have a ``weight``.

    Raises:
        InvalidArgument: If W is not square or more than one head, the threshold is not above 0, or there are not as
            many names as tokens.
        InvalidType: If W is not a weight matrix.
        MissingExtra: If networkx is not installed.

    Memory:
        O(keys + weights above the threshold).

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask=regard.Causal())
        >>> graph = regard.analysis.to_networkx(W, tokens=["a", "cat"])
        >>> list(graph.edges(data="weight")), graph.nodes[1]["token"]
        ([(0, 0, 1.0), (1, 0, 0.5), (1, 1, 0.5)], 'cat')
    """
    networkx = require("networkx", extra="graph", needed_by="to_networkx")
    check_square(weights, "to_networkx")
    if tokens is not None and len(tokens) != weights.shape[2]:
        raise InvalidArgument(f"tokens: expected a name for each of {weights.shape[2]} tokens, got {len(tokens)}")
    graph, node = networkx.DiGraph(), 0
    require_one_head("to_networkx", weights.shape)
    is_valid = valid_queries(weights, is_self=True)[0].tolist()
    for rows, keys, values, dropped in _edges_above(weights, threshold, "to_networkx", is_self=True):
        for mass in dropped.tolist():
            if is_valid[node]:
                graph.add_node(node, dropped_mass=mass, **({} if tokens is None else {"token": tokens[node]}))
            node += 1
        graph.add_weighted_edges_from(zip(rows.tolist(), keys.tolist(), values.tolist(), strict=True))
    return graph


def _edges_above(
    weights: WeightMatrix, threshold: float, name: str, *, is_self: bool = False
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """By block of rows: query, key and weight of each edge, and the mass that each row drops; on the CPU."""
    if not isinstance(weights, WeightMatrix):
        raise InvalidType(f"{name}: expected a weight matrix, got {type(weights).__name__}")
    require_one_head(name, weights.shape)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not threshold > 0:
        raise InvalidArgument(
            f"threshold: expected a weight above 0, got {short_repr(threshold)}; W.dense() has all weights"
        )
    weights = weights.detach()
    valid = valid_queries(weights, is_self=is_self)[0, :, None]
    for part in weights.query_blocks():
        block = weights.at(queries=part).dense()[0, 0].where(valid[part], 0.0)
        keep = block >= threshold
        rows, keys = keep.nonzero(as_tuple=True)
        dropped = block.masked_fill(keep, 0.0).sum(-1)
        yield (rows + part.start).cpu(), keys.cpu(), block[keep].cpu(), dropped.cpu()


def check_square(weights: WeightMatrix, name: str) -> None:
    """Check that a function, named so in errors, got weights of self-attention.

    Raises:
        InvalidType: If it is not a weight matrix.
        InvalidArgument: If it is not square.
    """
    if not isinstance(weights, WeightMatrix):
        raise InvalidType(f"{name}: expected a weight matrix, got {type(weights).__name__}")
    if weights.shape[2] != weights.shape[3]:
        raise InvalidArgument(
            f"{name}: expected as many queries as keys, got {weights.shape[2]} and {weights.shape[3]}"
        )
