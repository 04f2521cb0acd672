"""The Hodge decomposition of attention: how much of its direction is a hierarchy of tokens, and how much circulates."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.analysis.graph import check_square
from regard.analysis.padding import know_padding, valid_queries
from regard.ops import WeightMatrix


class HodgeParts(NamedTuple):
    """Norms of parts of the flow, relative to that of the weights: asymmetry² = gradient² + curl²."""

    asymmetry: Float[Tensor, "batch heads"]
    """‖A‖ / ‖P‖, from 0 for symmetric weights to √½ where no pair of tokens attends to each other."""
    gradient: Float[Tensor, "batch heads"]
    """‖A_grad‖ / ‖P‖: the part that leads from tokens of higher to tokens of lower potential."""
    curl: Float[Tensor, "batch heads"]
    """‖A − A_grad‖ / ‖P‖: the part that goes around in circles."""


def hodge(weights: WeightMatrix) -> HodgeParts:
    """How asymmetric the attention between tokens is, and which part of that is a hierarchy: a Hodge decomposition.

    The flow A = (P − Pᵀ) / 2 is the sum of the gradient of a potential φ, (φᵢ − φⱼ), and of a flow without divergence.
    With n tokens φᵢ = Σⱼ Aᵢⱼ / n: tokens that attend to others more than they are attended to are higher. All pairs of
    tokens are edges, so the rest is curl, and there is no harmonic part. Padding is not a token. Causal weights are
    asymmetric because of their mask.

    Args:
        weights: Self-attention, (batch, heads, tokens, tokens).

    Returns:
        ``asymmetry, gradient, curl``, (batch, heads) each, without gradients.

    Raises:
        InvalidArgument: If W is not square.
        InvalidType: If W is not a weight matrix.

    Memory:
        O(tokens): it computes blocks of rows and of columns, in three passes.

    Reference:
        Jiang et al. 2011, "Statistical ranking and combinatorial Hodge theory"; the coefficients G, Γ and C of
        Glassbox (dmaniloff/glassbox, signal ``asymmetry``).

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.zeros(2, 1, 1, 2, 8).unbind(), mask=regard.Causal())
        >>> regard.analysis.hodge(W).curl  # of two tokens, one is higher
        tensor([[0.]])
    """
    check_square(weights, "hodge")
    weights = know_padding(weights, is_self=True).detach()
    valid = valid_queries(weights, is_self=True).to(weights.dtype)[:, None, :, None]  # (batch, 1, tokens, 1)
    squares = flow_squares = valid.new_zeros(weights.shape[:2])
    first = 0
    for columns in weights.column_blocks([slice(0, weights.shape[3])]):
        part = slice(first, first + columns.shape[3])
        rows = weights.at(queries=part).dense() * valid[:, :, part]
        flow = (rows - (columns * valid).mT) / 2
        squares, flow_squares = (
            total + block.square().sum((2, 3)) for total, block in ((squares, rows), (flow_squares, flow))
        )
        first = part.stop
    sent = valid * (weights @ valid)
    divergence = (sent - weights.mT @ valid) / 2
    gradient_squares = 2 * divergence.square().sum((2, 3)) / valid.sum((2, 3)).clamp(min=1)
    curl_squares = (flow_squares - gradient_squares).clamp(min=0)
    asymmetry, gradient, curl = (
        (each / squares.where(squares > 0, 1.0)).sqrt() for each in (flow_squares, gradient_squares, curl_squares)
    )
    return HodgeParts(asymmetry, gradient, curl)
