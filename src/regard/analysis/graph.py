"""The weights as a directed graph: an edge from each query to each key, as heavy as its weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, MissingExtra
from regard.ops import WeightMatrix
from regard.ops.linear_operator import require_one_head

BLOCK = 2**24
"""How many weights are held at once: 64 MiB in float32."""


def pagerank(
    weights: WeightMatrix, *, damping: float = 0.85, tolerance: float = 1e-6, most: int = 1000
) -> Float[Tensor, "batch heads tokens"]:
    """PageRank of the tokens of each head: where a reader is found who follows attention, and now and then starts anew.

    x = d · Wᵀx + (1 − d) / n, where what stands on a row with no key is spread over all tokens.

    Args:
        weights: Self-attention, (batch, heads, tokens, tokens).
        damping: d, the probability of following attention, from 0 to below 1.
        tolerance: It is found when a step changes each x by no more than so much on average, times 1 / tokens.
        most: After so many steps it raises.

    Returns:
        (batch, heads, tokens); sums to 1 over the tokens. It has no gradients.

    Raises:
        InvalidArgument: If W is not square, a number is out of range, or it was not found in so many steps.
        InvalidType: If W is no weight matrix.

    Memory: O(tokens): each step is a product with the transpose.

    Reference: Brin and Page 1998, "The Anatomy of a Large-Scale Hypertextual Web Search Engine", section 2.1.1.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 4, 300, 8).unbind(), mask=regard.Causal())
        >>> regard.analysis.pagerank(W)[0, 0].argmax()
        tensor(0)
    """
    _check_square(weights, "pagerank")
    if not 0 <= damping < 1:
        raise InvalidArgument(f"damping: expected a probability from 0 to below 1, got {damping}")
    weights = weights.detach()
    batch, heads, tokens, _ = weights.shape
    x = torch.full((batch, heads, tokens, 1), 1 / tokens, dtype=weights.dtype, device=weights.device)
    for _ in range(most):
        followed = damping * (weights.mT @ x)
        # What was not followed: by chance, or because a row leads nowhere or to a sink.
        new = followed + (1 - followed.sum(2, keepdim=True)) / tokens
        if float((new - x).abs().mean(2).max()) <= tolerance / tokens:
            return new[..., 0]
        x = new
    raise InvalidArgument(f"pagerank: not found in {most} steps; allow more steps or a larger tolerance ({tolerance})")


class SparseWeights(NamedTuple):
    """One head's weights from a threshold on."""

    matrix: Any
    """`scipy.sparse.csr_array`, (queries, keys)."""
    discarded: Float[Tensor, " queries"]
    """The mass of each row that lies below the threshold."""


def to_csr(weights: WeightMatrix, threshold: float = 0.01) -> SparseWeights:
    """One head's weights as a sparse matrix of SciPy, and what it leaves out.

    Args:
        weights: One head of one sequence, ``W.at(batch=0, heads=3)``.
        threshold: Weights below it are left out; above 0.

    Raises:
        InvalidArgument: If W is more than one head, or the threshold is not above 0.
        InvalidType: If W is no weight matrix.
        MissingExtra: If SciPy is not installed.

    Memory: O(keys + weights kept): blocks of rows are looked at one after the other.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask=regard.Causal())
        >>> sparse = regard.analysis.to_csr(W, threshold=0.6)
        >>> sparse.matrix.toarray().tolist(), sparse.discarded
        ([[1.0, 0.0], [0.0, 0.0]], tensor([0., 1.]))
    """
    try:
        from scipy.sparse import csr_array
    except ImportError:
        raise MissingExtra("to_csr needs scipy: install it with `pip install 'regard[graph]'`") from None
    kept = list(_kept(weights, threshold, "to_csr"))
    rows, keys, values = (torch.cat(parts) for parts in zip(*(part[:3] for part in kept), strict=True))
    matrix = csr_array((values.numpy(), (rows.numpy(), keys.numpy())), shape=tuple(weights.shape[2:]))
    return SparseWeights(matrix, torch.cat([part[3] for part in kept]))


def to_networkx(weights: WeightMatrix, threshold: float = 0.01, tokens: Sequence[str] | None = None) -> Any:
    """One head's weights as a `networkx.DiGraph`: an edge from query to key for each weight from a threshold on.

    Args:
        weights: One head of one sequence, of self-attention.
        threshold: Weights below it are left out; above 0.
        tokens: Names of the tokens.

    Returns:
        A graph whose nodes are the numbers of the tokens, with ``token``, where names were given, and ``discarded``,
        the mass of their rows that was left out; edges have a ``weight``.

    Raises:
        InvalidArgument: If W is not square or more than one head, the threshold is not above 0, or there are not as
            many names as tokens.
        InvalidType: If W is no weight matrix.
        MissingExtra: If networkx is not installed.

    Memory: O(keys + weights kept).

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), mask=regard.Causal())
        >>> graph = regard.analysis.to_networkx(W, tokens=["a", "cat"])
        >>> list(graph.edges(data="weight")), graph.nodes[1]["token"]
        ([(0, 0, 1.0), (1, 0, 0.5), (1, 1, 0.5)], 'cat')
    """
    try:
        import networkx
    except ImportError:
        raise MissingExtra("to_networkx needs networkx: install it with `pip install 'regard[graph]'`") from None
    _check_square(weights, "to_networkx")
    if tokens is not None and len(tokens) != weights.shape[2]:
        raise InvalidArgument(f"tokens: expected a name for each of {weights.shape[2]} tokens, got {len(tokens)}")
    graph, node = networkx.DiGraph(), 0
    for rows, keys, values, discarded in _kept(weights, threshold, "to_networkx"):
        for share in discarded.tolist():
            graph.add_node(node, discarded=share, **({} if tokens is None else {"token": tokens[node]}))
            node += 1
        graph.add_weighted_edges_from(zip(rows.tolist(), keys.tolist(), values.tolist(), strict=True))
    return graph


def _kept(weights: WeightMatrix, threshold: float, name: str) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Blocks of rows: query, key and weight of what is kept, and the mass of each row that is not; on the CPU."""
    if not isinstance(weights, WeightMatrix):
        raise InvalidType(f"{name}: expected a weight matrix, got {type(weights).__name__}")
    require_one_head(name, weights.shape)
    if not threshold > 0:
        raise InvalidArgument(f"threshold: expected a weight above 0, got {threshold}; for all weights W.dense()")
    weights = weights.detach()
    size = max(1, BLOCK // weights.shape[3])
    for start in range(0, weights.shape[2], size):
        block = weights.at(queries=slice(start, start + size)).dense()[0, 0]
        keep = block >= threshold
        rows, keys = keep.nonzero(as_tuple=True)
        discarded = block.masked_fill(keep, 0.0).sum(-1)
        yield (rows + start).cpu(), keys.cpu(), block[keep].cpu(), discarded.cpu()


def _check_square(weights: WeightMatrix, name: str) -> None:
    if not isinstance(weights, WeightMatrix):
        raise InvalidType(f"{name}: expected a weight matrix, got {type(weights).__name__}")
    if weights.shape[2] != weights.shape[3]:
        raise InvalidArgument(
            f"{name}: expected as many queries as keys, got {weights.shape[2]} and {weights.shape[3]}"
        )
