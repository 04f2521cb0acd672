"""A trace in the terminal: every step of the calculation of attention as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import TYPE_CHECKING

import torch
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from regard.errors import InvalidArgument
from regard.explore.terminal import plain_table, short
from regard.text.display import display_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tracing.trace import Step, Trace

MAX_FEATURE_ROWS = 8
"""How many rows of features are shown; rows of tokens are shown all."""
GAP = 2
TOKEN_AXES = ("query", "key", "token", "word")


@dataclass(frozen=True)
class StepTable:
    """A part of a step that is one table.

    Args:
        caption: Which part of the step, as ``"head 2, query cat"``; empty if it is the whole.
        axes: Axes of its rows and of its columns.
        rows: Names of the rows.
        columns: Names of the columns.
        numbers: The numbers, row by row.
    """

    caption: str
    axes: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    numbers: list[list[float]]


def step_tables(
    step: Step,
    queries: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    num_heads: int | None = None,
) -> Iterator[StepTable]:
    """Cut a step into tables by its last two axes.

    Args:
        step: A step of a trace.
        queries: The queries to show, and in self-attention the tokens that they are; None shows all.
        heads: The heads to show; None shows all.
        num_heads: Number of heads that attend. If the step has fewer, as keys and values can, heads share them.
            Default: as many as the step has.
    """
    value, axes, names = step.value, step.axes, step.labels
    if axes[:-1] in ((), ("head",)):  # a vector, or one for each head: a table of one row
        value, axes, names = value.unsqueeze(-2), (*axes[:-1], "", axes[-1]), (*names[:-1], ("",), names[-1])
    if heads is not None and axes[0] == "head" and num_heads is not None:
        heads = sorted({head * value.shape[0] // num_heads for head in heads})
    indices = {"query": queries, "token": queries, "head": heads}
    chosen = [indices.get(axis) or range(size) for axis, size in zip(axes, value.shape, strict=True)]
    labels = [
        tuple(map(str, range(size))) if own is None else tuple(display_tokens(own)) if axis in TOKEN_AXES else own
        for axis, own, size in zip(axes, names, value.shape, strict=True)
    ]
    rows, columns = (tuple(labels[axis][index] for index in chosen[axis]) for axis in (-2, -1))
    is_only_head = axes[0] == "head" and value.shape[0] == 1
    for outer in product(*chosen[:-2]):
        parts = [f"{axis} {label[index]}" for axis, label, index in zip(axes, labels, outer, strict=False)]
        numbers = _select(value[outer], chosen[-2], chosen[-1]).tolist()
        yield StepTable(", ".join(parts[is_only_head:]), (axes[-2], axes[-1]), rows, columns, numbers)


def trace_table(
    trace: Trace, queries: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> RenderableType:
    """Draw every step of a trace as tables with four decimals.

    Args:
        trace: What `regard.trace` returns.
        queries: The queries whose rows are shown, from 0; None shows all.
        heads: The heads that are shown, from 0; None shows all.

    Returns:
        A renderable for ``rich.print``.

    Raises:
        InvalidArgument: If there is no such query or head.

    Example:
        >>> import regard
        >>> Console(width=60).print(trace_table(regard.trace([[1.0, 0.5]], tokens=["word"])))  # doctest: +ELLIPSIS
        Scaled dot-product attention
        <BLANKLINE>
        1  input: X
        One row of numbers for each token.
                   0       1
        word  1.0000  0.5000
        ...
    """
    _check(trace, queries, heads)
    parts: list[RenderableType] = [Text(trace.title, "bold")]
    for number, step in enumerate(trace.steps, 1):
        parts += [Text(), Text.assemble(f"{number}  ", (step.name, "bold"), f": {step.formula}")]
        parts += [Text(step.explanation, "italic")] if step.explanation else []
        for table in step_tables(step, queries, heads, num_heads=trace["weights"].shape[0]):
            parts += [Text(table.caption, "dim")] if table.caption else []
            parts.append(_FittedTable(table, step.name))
    return Group(*parts)


class _FittedTable:
    """A table in the width of the terminal: tokens that do not fit go below, features that do not fit are counted."""

    def __init__(self, table: StepTable, step: str) -> None:
        self.table, self.step = table, step

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        rows = len(table.rows) if table.axes[0] in TOKEN_AXES else min(len(table.rows), MAX_FEATURE_ROWS)
        cells = [[_number(number, self.step) for number in row] for row in table.numbers[:rows]]
        names = [short(name) for name in table.rows[:rows]]
        columns = [short(name) for name in table.columns]
        widths = [max(map(cell_len, column)) + GAP for column in zip(columns, *cells, strict=True)]
        room = options.max_width - max(map(cell_len, names)) - GAP
        start = stop = 0
        while start < len(columns):
            stop = start + max(1, sum(used <= room for used in accumulate(widths[start:])))
            left = len(columns) - stop
            yield self._draw(names, columns[start:stop], [row[start:stop] for row in cells])
            start = stop
            if left and table.axes[1] not in TOKEN_AXES:
                start = len(columns)
        if left := len(table.rows) - rows:
            yield Text(f"… and {left} more rows", "dim")
        if (left := len(columns) - stop) and table.axes[1] not in TOKEN_AXES:
            yield Text(f"… and {left} more columns", "dim")

    @staticmethod
    def _draw(names: list[str], columns: list[str], cells: list[list[str]]) -> Table:
        drawn = plain_table(GAP)
        drawn.add_column("", style="dim", no_wrap=True)
        for name in columns:
            drawn.add_column(Text(name), justify="right", no_wrap=True)
        for name, row in zip(names, cells, strict=True):
            drawn.add_row(Text(name), *map(Text, row))
        return drawn


def _number(number: float, step: str) -> str:
    if number == -float("inf"):
        return "−∞"
    return str(int(number)) if step in ("ids", "mask") else f"{number:.4f}".replace("-", "−")


def _select(matrix: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    return matrix[torch.tensor(rows, device="cpu")][:, torch.tensor(columns, device="cpu")]


def _check(trace: Trace, queries: Sequence[int] | None, heads: Sequence[int] | None) -> None:
    for name, chosen, axis in (("queries", queries, 1), ("heads", heads, 0)):
        size = trace["weights"].shape[axis]
        wrong = [number for number in chosen or () if not 0 <= number < size]
        if wrong:
            raise InvalidArgument(f"{name}: expected indices from 0 to {size - 1}, got {wrong}")
