"""Measures: what may be asked of the weights while they pass by, a block of rows at a time.

A measure is one class with one method, `of`, a function of a block of rows in torch operations. Its `axis` says how the
blocks' answers become one. Its gradient needs no writing: the block is run again with gradients on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.ops.tile import Index, Tile

Shape = tuple[int, int, int, int]
Answer = Shaped[Tensor, "batch heads ..."]
"""What a measure says of a block."""

Position = tuple[slice, slice, Index, slice]
"""Where a block lies in the whole matrix: the entries of its four axes."""

Entries = tuple[Index, ...]
"""Some entries of an answer, by its first axes."""

FORBIDDEN = -1e30
"""The score of a masked cell inside a block: finite, so that its product with the weight 0 is 0 and not NaN, and far
enough from the end of float32 for the gradients of such products."""


@dataclass(eq=False)
class Block:
    """Whole rows of the weight matrix, restricted to the keys that any of them may see.

    Args:
        weights: (batch, heads, rows, keys), 0 where masked.
        scores: (batch, heads, rows, keys), what softmax was given; a very low but finite number where masked, so that
            weight × score is 0 there.
        cells: The cells of the matrix that the block is, as rules for masks and scores are asked about them.
        index: Where the block lies in the whole matrix.
        shape: The shape of the whole matrix.
        sunk_lse: (batch, heads, rows) The log-sum-exp of scores and sink, where the score rule has sinks.
        anchor: One of the block's keys that no row is masked from, counted from the first; None where none is known.
        concrete: Whether the numbers may be looked at to choose a way; not so under `torch.func`.
    """

    weights: Float[Tensor, "batch heads rows keys"]
    scores: Float[Tensor, "batch heads rows keys"]
    cells: Tile
    index: Position
    shape: Shape
    sunk_lse: Float[Tensor, "batch heads rows"] | None = None
    anchor: int | None = None
    concrete: bool = False

    @cached_property
    def lse(self) -> Float[Tensor, "batch heads rows"]:
        """Log Σⱼ exp(scoreⱼ), sinks included, (batch, heads, rows); −∞ for a row with no key and no sink."""
        if self.sunk_lse is not None:
            return self.sunk_lse
        return _LogSumExp.apply(self.scores, self.weights)  # pyright: ignore[reportReturnType]

    @cached_property
    def strongest(self) -> Float[Tensor, "batch heads rows"]:
        """The largest weight of each row, as a constant."""
        return self.weights.detach().amax(-1)

    @cached_property
    def highest(self) -> Float[Tensor, "batch heads rows"]:
        """The highest score of each row, as a constant."""
        return self.scores.detach().amax(-1)

    @property
    def position(self) -> Int[Tensor, "rows 1"]:
        """Where the queries of the block stand among the keys, (rows, 1)."""
        return self.cells.position

    @property
    def key(self) -> Int[Tensor, "*rows keys"]:
        """The keys of the block, (keys,); (rows, keys) where each row has its own, as on a sparse graph."""
        return self.cells.key

    def rows_of(self, tensor: Tensor) -> Shaped[Tensor, "#batch #heads #rows"]:
        """The part that belongs to this block of a tensor broadcastable to (batch, heads, queries)."""
        whole = tensor.reshape((1,) * (3 - tensor.ndim) + tuple(tensor.shape))
        return whole[
            tuple(at if size > 1 else slice(None) for at, size in zip(self.index[:3], whole.shape, strict=True))
        ]


class _LogSumExp(torch.autograd.Function):
    """The log-sum-exp of scores whose softmax is known: at a row's maximum, log weight = score − lse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor) -> Tensor:
        strongest = weights.amax(-1)
        return (scores.amax(-1) - strongest.log()).masked_fill(strongest == 0, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * gradient[..., None], None


def sunk(scores: Tensor, weights: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of a softmax that a sink takes part in, and its log-sum-exp, from those of one without.

    Args:
        scores: (batch, heads, rows, keys).
        weights: Their softmax, 0 in a row with no key.
        sinks: (heads,).
    """
    lse: Tensor = _LogSumExp.apply(scores, weights)  # pyright: ignore[reportAssignmentType]
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    return weights * (lse - total).exp()[..., None], total


class Measure:
    """Base of all measures. A measure that holds tensors is a dataclass with these as fields: they get gradients.

    Attributes:
        axis: Which axis of the matrix the third axis of the answer follows. ``"queries"``: the answers of the blocks
            are concatenated, (batch, heads, queries, ...); ``"keys"``: they are added key by key, (batch, heads, keys,
            ...);
            None: they are added, (batch, heads, ...).
        answer: The named tuple that `of` gives; None where it gives one tensor.

    Example:
        The weight that each query gives to itself:

        >>> import regard, torch
        >>> from regard.ops import Measure
        >>> class OnItself(Measure):
        ...     axis = "queries"
        ...     def of(self, block):
        ...         return (block.weights * (block.key == block.position)).sum(-1)
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> regard.weights(x, x).measure(OnItself())["on_itself"]
        tensor([[[0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    axis: Literal["queries", "keys"] | None = "queries"
    answer: ClassVar[Callable[..., Any] | None] = None

    @property
    def name(self) -> str:
        """The key of the answer in `measured`: the class's name in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def of(self, block: Block) -> Answer | tuple[Answer, ...]:
        """The answer of one block of rows: a tensor or several, each starting with the axes (batch, heads)."""
        raise NotImplementedError

    def objections(self, shape: Shape, device: torch.device) -> list[str]:
        """Why the measure cannot be taken of a matrix of this shape on this device."""
        return []

    def whole(self, shape: Shape) -> tuple[int, ...]:
        """The first axes of the whole answer about a matrix of this shape; `axis` says them."""
        batch, heads, queries, keys = shape
        return {"queries": (batch, heads, queries), "keys": (batch, heads, keys), None: (batch, heads)}[self.axis]

    def parts(self, shape: Shape, dtype: torch.dtype) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Shape and dtype of each tensor of the whole answer, which a compiler must know before it is there."""
        return ((self.whole(shape), dtype),)

    def entries(self, index: Position, shape: Shape) -> Entries:
        """Which entries of the whole answer a block's answer belongs to, by these axes; `axis` says them.

        Args:
            index: Where the block lies in the whole matrix.
            shape: The shape of the whole matrix.
        """
        batch, heads, queries, keys = index
        if self.axis is None:
            return batch, heads
        return batch, heads, queries if self.axis == "queries" else keys
