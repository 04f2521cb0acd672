"""Measures: what may be asked of the weights while they pass by, a block of rows at a time.

A measure is one class with one method, `of`, a function of a block of rows in torch operations. Its `axis` says how the
blocks' answers become one. Its gradient needs no writing: the block is run again with gradients on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, nearest, refuse
from regard.ops.cells import Cells
from regard.ops.tensors import tensors_out_of_reach

Shape = tuple[int, int, int, int]
Answer = Shaped[Tensor, "batch heads ..."]
"""What a measure says of a block."""


@dataclass(frozen=True, eq=False)
class Block:
    """Whole rows of the weight matrix, restricted to the keys that any of them may see.

    Args:
        weights: (batch, heads, rows, keys), 0 where masked.
        scores: (batch, heads, rows, keys), what softmax was given; a very low but finite number where masked, so that
            weight × score is 0 there.
        cells: The rectangle of the matrix that the block is, as rules for masks and scores are asked about it.
        index: Where the block lies in the whole matrix: four slices.
        shape: The shape of the whole matrix.
    """

    weights: Float[Tensor, "batch heads rows keys"]
    scores: Float[Tensor, "batch heads rows keys"]
    cells: Cells
    index: tuple[slice, slice, slice, slice]
    shape: Shape

    @cached_property
    def lse(self) -> Float[Tensor, "batch heads rows"]:
        """Log Σⱼ exp(scoreⱼ), (batch, heads, rows); −∞ for a row with no key."""
        return _LogSumExp.apply(self.scores, self.weights)  # pyright: ignore[reportReturnType]

    @property
    def positions(self) -> Int[Tensor, " rows"]:
        """Where the queries of the block stand, (rows,)."""
        return self.cells.positions

    @property
    def keys(self) -> Int[Tensor, " keys"]:
        """The keys of the block, (keys,)."""
        return self.cells.key

    def rows_of(self, tensor: Tensor) -> Shaped[Tensor, "#batch #heads #rows"]:
        """The part that belongs to this block of a tensor broadcastable to (batch, heads, queries)."""
        whole = tensor.reshape((1,) * (3 - tensor.ndim) + tuple(tensor.shape))
        return whole[
            tuple(at if size > 1 else slice(None) for at, size in zip(self.index[:3], whole.shape, strict=True))
        ]


class _LogSumExp(torch.autograd.Function):
    """The log-sum-exp of scores whose softmax is known: at a row's maximum, log weight = score − lse."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        strongest = weights.amax(-1)
        return (scores.amax(-1) - strongest.log()).masked_fill_(strongest == 0, -torch.inf)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * gradient[..., None], None


class Measure:
    """Base of all measures. A measure that holds tensors is a dataclass with these as fields: they get gradients.

    Attributes:
        axis: Which axis of the matrix the third axis of the answer follows. ``"queries"``: the answers of the blocks
            are concatenated, (batch, heads, queries, ...); ``"keys"``: they are added key by key, (batch, heads, keys,
            ...);
            None: they are added, (batch, heads, ...).

    Example:
        The weight that each query gives to itself:

        >>> import regard, torch
        >>> from regard.ops.measures import Measure
        >>> class OnItself(Measure):
        ...     axis = "queries"
        ...     def of(self, block):
        ...         return (block.weights * (block.keys == block.positions[:, None])).sum(-1)
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> regard.weights(x, x).measure(OnItself())["on_itself"]
        tensor([[[0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    axis: Literal["queries", "keys"] | None = "queries"

    @property
    def name(self) -> str:
        """The key of the answer in `measured`: the class's name in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def of(self, block: Block) -> Answer | tuple[Answer, ...]:
        """The answer of one block of rows: a tensor or several, each starting with the axes (batch, heads)."""
        raise NotImplementedError

    def objections(self, shape: Shape) -> list[str]:
        """Why the measure cannot be taken of a matrix of this shape."""
        return []


@dataclass(frozen=True, eq=False)
class Entropy(Measure):
    """How spread a row is: Hᵢ = −Σⱼ Pᵢⱼ log Pᵢⱼ, in nats, (batch, heads, queries); 0 for a row with no key."""

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        if block.scores.requires_grad or block.weights.requires_grad:
            return _EntropyOfRows.apply(block.scores, block.weights)  # pyright: ignore[reportReturnType]
        return _entropy(block.scores, block.weights)


class _EntropyOfRows(torch.autograd.Function):
    """H = −Σ P log P with log P = score − maximum + log P at the maximum, which loses no digits where scores are large.

    Its gradient with respect to the scores, the way through P included, is −P (log P + H).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor) -> Tensor:
        entropy = _entropy(scores, weights)
        ctx.save_for_backward(scores, weights, entropy)
        return entropy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scores, weights, entropy = ctx.saved_tensors
        below, log_strongest = _logs(scores, weights)
        of_logs = below + (log_strongest + entropy)[..., None]
        if torch.is_grad_enabled():  # a second derivative is wanted, which needs what would be overwritten
            return of_logs * weights * -gradient[..., None], None
        return of_logs.mul_(weights).mul_(-gradient[..., None]), None


def _entropy(scores: Tensor, weights: Tensor) -> Tensor:
    below, log_strongest = _logs(scores, weights)
    return torch.linalg.vecdot(weights, below).add_(log_strongest).abs_()  # −H, but for rounding at 0


def _logs(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Log P as a sum: a tensor of the scores' shape, not to be changed, and a number for each row."""
    strongest, highest = weights.amax(-1), scores.amax(-1)
    log_strongest = strongest.where(strongest > 0, 1.0).log()  # of a row with no key 0: its entropy is 0
    if highest.abs().amax() < SMALL:
        return scores, log_strongest - highest
    return scores - highest[..., None], log_strongest


@dataclass(frozen=True, eq=False)
class Lse(Measure):
    """The logarithm of softmax's denominator: log Σⱼ exp(Sᵢⱼ), (batch, heads, queries); −∞ for a row with no key."""

    def of(self, block: Block) -> Float[Tensor, "batch heads rows"]:
        return block.lse


@dataclass(frozen=True, eq=False)
class Received(Measure):
    """What each key receives: cⱼ = Σᵢ wᵢ Pᵢⱼ, (batch, heads, keys).

    Args:
        row_weights: wᵢ, broadcastable to (batch, heads, queries); None is 1 for each row. A query is a query also
            where it is padding: weigh it out with 0.
    """

    row_weights: Tensor | None = None
    axis = "keys"

    def of(self, block: Block) -> Float[Tensor, "batch heads keys"]:
        weights = block.weights
        if self.row_weights is None:
            ones = weights.new_ones(1, 1, 1, weights.shape[2])
            return (ones.expand(*weights.shape[:2], 1, -1) @ weights)[:, :, 0]
        rows = block.rows_of(self.row_weights).to(weights.dtype).expand(weights.shape[:3])
        return (rows[:, :, None] @ weights)[:, :, 0]

    def objections(self, shape: Shape) -> list[str]:
        if self.row_weights is not None and not isinstance(self.row_weights, Tensor):
            return [f"received: row_weights must be a tensor, but is {type(self.row_weights).__name__}"]
        given = () if self.row_weights is None else tuple(self.row_weights.shape)
        if len(given) <= 3 and all(mine in (1, size) for mine, size in zip(given[::-1], shape[2::-1], strict=False)):
            return []
        return [f"received: row_weights {given} do not broadcast to (batch, heads, queries) = {shape[:3]}"]


class Top(NamedTuple):
    """The strongest keys of each row, strongest first."""

    values: Float[Tensor, "batch heads queries k"]
    indices: Int[Tensor, "batch heads queries k"]


@dataclass(frozen=True, eq=False)
class TopK(Measure):
    """The k strongest keys of each row: (values, indices), each (batch, heads, queries, k).

    Where a row may see fewer than k keys, the value is 0 and the index −1. The values have a gradient, the indices
    cannot.

    Args:
        k: How many, from 1 to the number of keys.
    """

    k: int

    @property
    def name(self) -> str:
        """``"topk"``, as torch writes it."""
        return "topk"

    def of(self, block: Block) -> Top:
        count = min(self.k, block.weights.shape[-1])
        # Chosen by score: a tiny weight that rounds to 0 still stands before a masked key.
        scores, indices = block.scores.detach().topk(count, dim=-1)
        values = block.weights.gather(-1, indices)
        indices = torch.where(scores > FORBIDDEN, indices + block.index[3].start, -1)
        missing = (0, self.k - count)
        return Top(torch.nn.functional.pad(values, missing), torch.nn.functional.pad(indices, missing, value=-1))

    def objections(self, shape: Shape) -> list[str]:
        if isinstance(self.k, int) and not isinstance(self.k, bool) and 1 <= self.k <= shape[3]:
            return []
        return [f"topk: k must be from 1 to the number of keys ({shape[3]}), got {self.k!r}"]


SMALL = 16
"""Scores up to here may be added up as they are: in float32 the last of their digits are worth 10⁻⁶."""

FORBIDDEN = -1e30
"""The score of a masked cell inside a block: finite, so that its product with the weight 0 is 0 and not NaN, and far
enough from the end of float32 for the gradients of such products."""

MEASURES: dict[str, type[Measure]] = {"entropy": Entropy, "lse": Lse, "received": Received, "topk": TopK}
"""What `measure=` takes by name."""

Asked = str | Measure | Sequence[str | Measure] | Mapping[str, str | Measure]


def as_measures(asked: Asked) -> dict[str, Measure]:
    """Measures by their name, from what a user gave: a name, a measure, several of them, or a dict that renames them.

    Raises:
        InvalidArgument: If a name is unknown, needs an argument, or comes twice.
        InvalidType: If something is neither a name nor a measure.
    """
    if isinstance(asked, (str, Measure)):
        asked = [asked]
    if not isinstance(asked, (Mapping, Sequence)):
        raise InvalidType(
            f"measure: expected a name, a Measure, several or a dict, got {type(asked).__name__} {asked!r}"
        )
    named = list(asked.items()) if isinstance(asked, Mapping) else [(None, each) for each in asked]
    found: dict[str, Measure] = {}
    wrong: list[str] = []
    for name, each in named:
        measure = _by_name(each, wrong) if isinstance(each, str) else each
        if measure is None:
            continue
        if not isinstance(measure, Measure):
            raise InvalidType(f"measure: expected a name or a Measure, got {type(each).__name__} {each!r}")
        lost = tensors_out_of_reach(measure)
        if lost:
            wrong.append(
                f"measure: {type(measure).__name__} holds {', '.join(lost)}, which would get no gradient: make the "
                "class a dataclass with such tensors as fields"
            )
        name = name or measure.name
        if name in found:
            wrong.append(f"measure: '{name}' is asked for twice; give a dict to name each, as {{'{name}_2': ...}}")
        found[name] = measure
    refuse(wrong, InvalidArgument)
    return found


def _by_name(name: str, wrong: list[str]) -> Measure | None:
    if name == "topk":
        wrong.append("measure: 'topk' needs to know how many: give regard.TopK(8)")
    elif name in MEASURES:
        return MEASURES[name]()
    else:
        wrong.append(f"measure: unknown name '{name}'{nearest(name, MEASURES)} (known: {', '.join(sorted(MEASURES))})")
    return None
