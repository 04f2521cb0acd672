"""Measures: quantities computed from the weights, one block of rows at a time.

A measure is one class with one method, `compute`, written in torch operations on a block of whole rows. Its `axis` says
how the results of the blocks become one. Its gradient needs no code: the block is computed again with gradients on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from regard.checks import Checks
from regard.errors import short_repr
from regard.ops.autograd import AutogradFunction, check_forward_mode
from regard.ops.rules import Rule, resolve
from regard.ops.steps import Place, Step
from regard.ops.tile import Index, KeyRange, Shape, Tile, index_rows

BlockResult = Shaped[Tensor, "batch heads ..."]
"""What a measure returns for a block."""

Spec = tuple[tuple[int, ...], torch.dtype]
"""The shape and the dtype of a tensor."""

BlockIndex = tuple[slice, slice, Index, slice]
"""The batch entries, heads, queries and keys of a block, counted in the matrix."""


def lowest(dtype: torch.dtype) -> float:
    """What `Block.scores` holds where masked: the lowest finite number. Any finite score above it may be attended to.

    It is finite because its product with the weight 0 must be 0, not NaN.
    """
    return torch.finfo(dtype).min


@dataclass(eq=False)
class Block:
    """Rows of the weight matrix.

    By default a measure sees every key. With ``needs_all_keys = False`` the block may hold only a range of keys that
    covers all those that its rows may attend to; the weights of the others are 0.

    Args:
        weights: (batch, heads, rows, keys), 0 where masked.
        scores: (batch, heads, rows, keys), the input of the softmax; the lowest finite number where masked, so that
            weight * score is 0 there.
        tile: The indices of the block in the tensors that the matrix was made from.
        index: The indices of the block in the matrix.
        shape: (batch, heads, queries, keys) of the matrix.
        lse_with_sink: (batch, heads, rows) Log-sum-exp of scores and sink, if the score has sinks.
    """

    weights: Float[Tensor, "batch heads rows keys"]
    scores: Float[Tensor, "batch heads rows keys"]
    tile: Tile
    index: BlockIndex
    shape: Shape
    lse_with_sink: Float[Tensor, "batch heads rows"] | None = None

    @cached_property
    def lse(self) -> Float[Tensor, "batch heads rows"]:
        """Log Σ_j exp(s_ij), sinks included; −∞ for a row with neither key nor sink."""
        if self.lse_with_sink is not None:
            return self.lse_with_sink
        return LogSumExpOfWeights.apply(self.scores, self.weights)

    @cached_property
    def max_weight(self) -> Float[Tensor, "batch heads rows"]:
        """The largest weight of each row, without gradient."""
        return self.weights.detach().amax(-1)

    @cached_property
    def max_score(self) -> Float[Tensor, "batch heads rows"]:
        """The highest score of each row, without gradient."""
        return self.scores.detach().amax(-1)

    @property
    def is_differentiated(self) -> bool:
        """Whether the block may be differentiated, in reverse or in forward mode."""
        return self.scores.requires_grad or self.weights.requires_grad or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]

    @property
    def q_pos(self) -> Int[Tensor, "rows 1"]:
        """Positions of the queries, (rows, 1)."""
        return self.tile.q_pos

    @property
    def kv_idx(self) -> Int[Tensor, "*rows keys"]:
        """The keys of the block, (keys,); (rows, keys) where each row has its own, as on a sparse graph."""
        return self.tile.kv_idx

    @property
    def matrix_tile(self) -> Tile:
        """The tile in the indices of the matrix, where `WeightMatrix.at` selected a part; positions stay."""
        tile, (batch, heads, rows, _) = self.tile, self.index
        if isinstance(tile.batch, slice) and isinstance(tile.heads, slice) and tile.rows is rows:
            return tile
        positions = None if tile.rows is rows else tile.q_pos[:, 0]
        return replace(tile, batch=batch, heads=heads, rows=rows, positions=positions)

    def slice_rows(self, tensor: Tensor) -> Shaped[Tensor, "#batch #heads #rows"]:
        """The part for this block of a tensor broadcastable to (batch, heads, queries) of the matrix."""
        return index_rows(tensor.reshape((1,) * (3 - tensor.ndim) + tuple(tensor.shape)), self.index[:3])

    def with_all_keys(self) -> Block:
        """The same rows with every key of the matrix."""
        keys, count = self.index[3], self.shape[3]
        if keys.stop - keys.start == count:
            return self
        outside = (keys.start, count - keys.stop)
        scores = pad(self.scores, outside, value=lowest(self.scores.dtype))
        return replace(
            self,
            weights=pad(self.weights, outside),
            scores=scores,
            tile=self.tile.with_keys(KeyRange(0, count)),
            index=(*self.index[:3], slice(0, count)),
        )


class LogSumExpOfWeights(AutogradFunction):
    """The log-sum-exp of scores whose softmax is known: at the maximum of a row, log weight = score − lse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor) -> Tensor:
        max_weight = weights.amax(-1)
        return (scores.amax(-1) - max_weight.log()).masked_fill(max_weight == 0, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * gradient[..., None], None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        check_forward_mode()
        return (ctx.saved_tensors[0] * tangent).sum(-1)


class _Sinks(AutogradFunction):
    """The share of a row's mass that goes to keys, the log-sum-exp with the sink, and the share of the sink.

    With the highest score m and its weight P_m the share is 1 / (1 + P_m exp(z − m)), which loses no digits where
    scores and sink are large.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, weights: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        max_score, max_weight, sink = scores.amax(-1), weights.amax(-1), sinks[:, None]
        is_empty = max_weight == 0
        odds = (max_weight * (sink - max_score).exp()).masked_fill(is_empty, torch.inf)  # of the sink
        lse = (max_score - max_weight.log()).masked_fill(is_empty, -torch.inf)
        return 1 / (1 + odds), torch.logaddexp(lse, sink), 1 / (1 + 1 / odds)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        share, _, sink_share = output
        ctx.save_for_backward(inputs[1], share, sink_share)
        ctx.save_for_forward(inputs[1], share, sink_share)

    @staticmethod
    def backward(
        ctx: Any, grad_share: Tensor, grad_lse: Tensor, grad_sink_share: Tensor
    ) -> tuple[Tensor, None, Tensor]:
        weights, share, sink_share = ctx.saved_tensors
        grad_share = grad_share - grad_sink_share  # both shares sum to one; a second derivative uses the other, too
        through_share = grad_share * share * sink_share
        grad_sinks = (grad_lse * sink_share - through_share).sum((0, 2))
        return weights * (through_share + grad_lse * share)[..., None], None, grad_sinks

    @staticmethod
    def jvp(ctx: Any, scores: Tensor | None, _: Any, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        check_forward_mode()
        weights, share, sink_share = ctx.saved_tensors
        of_keys = share.new_zeros(()) if scores is None else (weights * scores).sum(-1)
        of_sink = share.new_zeros(()) if sinks is None else sinks[:, None]
        through_share = share * sink_share * (of_keys - of_sink)
        return through_share, share * of_keys + sink_share * of_sink, -through_share


def apply_sinks(scores: Tensor, weights: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add sinks, (heads,), to the softmax of scores, 0 in a row without keys; returns weights and log-sum-exp."""
    share, lse, _ = _Sinks.apply(scores, weights, sinks.to(weights.dtype))
    return weights * share[..., None], lse


class Measure(Rule):
    """Base of all measures. A subclass defines `compute`.

    Attributes:
        axis: What the third axis of the result is. ``"queries"``: the results of the blocks are concatenated, (batch,
            heads, queries, ...). ``"keys"``: they are added per key, (batch, heads, keys, ...). None: they are added,
            (batch, heads, ...).
        result_type: The named tuple that a built-in measure's `compute` returns; None if it returns one tensor. A
            user's measure need not set it.
        needs_all_keys: Whether blocks must hold every key. False allows them to leave out keys that no row of the block
            may attend to. A subclass that overrides `compute` gets True, the default, again, and no `steps`.

    Examples:
        The weight that each query gives to itself:

        >>> import regard, torch
        >>> from regard.ops.measures import Measure
        >>> class SelfWeight(Measure):
        ...     def compute(self, block):
        ...         return (block.weights * (block.kv_idx == block.q_pos)).sum(-1)
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> regard.weights(x, x).measure(SelfWeight())["self_weight"]
        tensor([[[0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    hints: ClassVar = {"compute": ("needs_all_keys", "steps")}
    axis: ClassVar[Literal["queries", "keys"] | None] = "queries"
    result_type: ClassVar[Callable[..., Any] | None] = None
    needs_all_keys: ClassVar[bool] = True

    def compute(self, block: Block) -> BlockResult | tuple[BlockResult, ...]:
        """The result for one block of rows: a tensor or several, each starting with the axes (batch, heads)."""
        raise NotImplementedError(f"{type(self).__name__} must define compute(block)")

    def steps(self, place: Place) -> list[Step] | None:
        """The measure as one step, for kernels in other languages; None if there is none.

        Such a kernel fills the tensors that `result_specs` describes without calling `compute`.
        """
        return None

    def for_valid_queries(self, valid: Bool[Tensor, "batch queries"]) -> Measure:
        """The measure that counts only valid queries, where a matrix knows which of its queries are padding.

        Default: this measure, which counts all queries. A result with an entry for each query needs nothing else.

        Args:
            valid: (batch, queries) False where a query is padding; see `WeightMatrix.valid_queries`.
        """
        return self

    def result_shape(self, shape: Shape) -> tuple[int, ...]:
        """The first axes of the result for a matrix of a shape; they follow from `axis`."""
        batch, heads, queries, keys = shape
        return {"queries": (batch, heads, queries), "keys": (batch, heads, keys), None: (batch, heads)}[self.axis]

    def result_specs(self, shape: Shape, dtype: torch.dtype) -> tuple[Spec, ...]:
        """Shape and dtype of each tensor of the result; a compiler needs them before there is a result."""
        return ((self.result_shape(shape), dtype),)

    def result_index(self, index: BlockIndex, shape: Shape) -> tuple[Index, ...]:
        """The entries of the result that a block's result belongs to; they follow from `axis`."""
        batch, heads, queries, keys = index
        if self.axis is None:
            return batch, heads
        return batch, heads, queries if self.axis == "queries" else keys


MeasureLike = str | Measure | Sequence[str | Measure] | Mapping[str, str | Measure]
"""What `measure=` takes: a name, a measure, several of these, or a dict that names the results."""


def as_measures(measures: MeasureLike, checks: Checks | None = None) -> dict[str, Measure]:
    """The measures that an argument means, by the name of their result.

    Args:
        measures: A name, a measure, several, or a dict that names the results.
        checks: Collects the problems. Default: they are raised.

    Raises:
        InvalidArgument: If a name is unknown, needs arguments or occurs twice.
        InvalidType: If something is neither a name nor a measure.
    """
    if isinstance(measures, (str, Measure, type)):  # of a class, the error says how to make an instance
        measures = [measures]
    collected, named = Checks() if checks is None else checks, {}
    if isinstance(measures, (Mapping, Sequence)):  # pyright: ignore[reportUnnecessaryIsInstance]
        items = measures.items() if isinstance(measures, Mapping) else zip(repeat(None), measures)
        for name, each in items:
            _add_measure(collected, named, name, each)
    else:
        collected.fail_type(
            "measure: expected a name, a Measure, several of them or a dict, got "
            f"{type(measures).__name__} {short_repr(measures)}"
        )
    if checks is None:
        collected.raise_problems()
    return named


def _add_measure(checks: Checks, named: dict[str, Measure], name: Any, value: Any) -> None:
    if name is not None and not isinstance(name, str):
        checks.fail_type(f"measure: expected str keys in the dict, got {short_repr(name)}")
        return
    measure = checks.collect(resolve, Measure, value, "measure")
    if measure is None:
        return
    key = name or measure.name
    if measure.axis not in ("queries", "keys", None):
        checks.fail(f"measure '{key}': expected axis 'queries', 'keys' or None, got {short_repr(measure.axis)}")
    if key in named:
        checks.fail(f"measure: expected different names, got '{key}' twice; pass a dict, as {{'{key}_2': ...}}")
    named[key] = measure
