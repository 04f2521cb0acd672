"""ScoreMod: a score changed by a function of one cell, FlexAttention's `score_mod`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType
from regard.ops.autograd import is_traced
from regard.ops.cell_functions import CellFunction
from regard.ops.scores.base import Key, Query, Score, ScoreModFunction, Scores
from regard.ops.scores.modifiers import ScoreModifier
from regard.ops.tile import KeyRange, Shape, Tile


class ScoreMod(ScoreModifier):
    """A score changed by a function, s_ij = f(s'_ij, b, h, i, j): FlexAttention's `score_mod`.

    ``score=function`` is short for ``score=ScoreMod(ScaledDotProduct(), function)``.

    Args:
        score: The score s'.
        score_mod: Called as FlexAttention calls it, for one cell under `torch.vmap`, with a scalar score, in the dtype
            of sums, and four int64 scalars, (score, b, h, q_idx, kv_idx). It returns the new score as a floating-point
            scalar; −∞ forbids the cell. It must be made of torch's functions, without ``if``, and change nothing in
            place. q_idx is the query's index, not its position. Tensors that it captures get gradients and move with
            `to`; they are found when the score is made.

    Raises:
        InvalidArgument: If the function fails, or changes a tensor in place.
        InvalidType: If score is not a score, or score_mod not a function of five arguments.

    Memory:
        O(cells of a tile). Every cell that the mask may allow is computed in Python; `SoftCap`, `Bias`, `Alibi` and
        `T5RelativeBias` are faster.

    Reference:
        Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", section 3.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 2, 5, 4).unbind()
        >>> slopes = torch.tensor([0.5, 0.25])
        >>> W = regard.weights(query, key, score=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * kv_idx)
        >>> torch.allclose(W.scores.dense(), query @ key.mT / 2 + slopes[:, None, None] * torch.arange(5), atol=1e-6)
        True
    """

    score: Score
    score_mod: ScoreModFunction
    has_python_callable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_arguments(self)
        self._of_cell: CellFunction = self._run(lambda: CellFunction(self.score_mod, has_score=True))

    def __repr__(self) -> str:
        return f"ScoreMod({self.score!r}, {_name(self.score_mod)})"

    def __call__(self, query: Query, key: Key, scale: float, tile: Tile) -> Scores:
        return self._map(self.score(query, key, scale, tile), tile)

    def workspace_per_cell(self, head_dim: int) -> int:
        return self.score.workspace_per_cell(head_dim) + 3

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        before = len(checks.problems)
        super().check(checks, shape, head_dim, device)
        if len(checks.problems) > before or is_traced():  # values cannot be computed while tracing
            return
        batch, heads, queries, keys = (torch.tensor([0, size - 1], device=device) for size in shape)
        tile = Tile(batch, heads, queries, KeyRange(0, shape[3]), 0, device, keys.expand(2, 2))
        scores = checks.collect(self._map, torch.zeros(2, 2, 2, 2, device=device), tile)
        if scores is None:
            return
        if scores.shape != (2, 2, 2, 2):
            got = f"one of shape {tuple(scores.shape[4:])}"
            checks.fail(f"score: expected {_name(self.score_mod)} to return a scalar tensor, got {got}")
        elif not scores.is_floating_point():
            checks.fail_type(
                f"score: expected {_name(self.score_mod)} to return a floating-point score, got "
                f"{str(scores.dtype).removeprefix('torch.')}"
            )

    def _map(self, scores: Tensor, tile: Tile) -> Tensor:
        return self._run(lambda: self._of_cell.map(tile, scores))

    def _run(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except InvalidArgument as error:
            raise InvalidArgument(f"score: {_name(self.score_mod)} cannot be used: {error}") from None
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            raise InvalidArgument(
                f"score: {_name(self.score_mod)} failed with {type(error).__name__}: {_first_line(error)}; it is "
                "called for one cell with scalar tensors, (score, b, h, q_idx, kv_idx), and returns the new score"
            ) from error


def _check_arguments(score: ScoreMod) -> None:
    """Raise unless the function takes five arguments."""
    function = score.score_mod
    if not callable(function) or isinstance(function, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidType(
            f"ScoreMod.score_mod: expected a function (score, b, h, q_idx, kv_idx) -> score, got {describe(function)}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function
        return
    try:
        signature.bind(*range(5))
    except TypeError:
        raise InvalidType(
            f"score: expected a function (score, b, h, q_idx, kv_idx) -> score, got {_name(function)}{signature}"
        ) from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
