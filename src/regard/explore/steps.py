"""The calculation of attention on screen: every step as tables, in the terminal and as a page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from regard.errors import InvalidArgument
from regard.explore.page import hash_of, static
from regard.explore.terminal import short
from regard.files import atomic_write

if TYPE_CHECKING:
    from torch import Tensor

    from regard.analysis.trace import Step, Trace


MOST_FEATURES = 8
"""How many rows of features a terminal is shown; rows of tokens are shown all."""
MOST_ON_PAGE = 32
"""The same of a page."""
GAP = 2
TOKENS = ("query", "key")
MARK = "▁"


@dataclass(frozen=True)
class Sheet:
    """A part of a step that is one table.

    Args:
        caption: Which part of the step, as ``"head 2, query cat"``; empty where it is the whole.
        axes: What its rows and its columns are.
        rows: What the rows are called.
        columns: What the columns are called.
        numbers: The numbers, row by row.
    """

    caption: str
    axes: tuple[str, str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    numbers: list[list[float]]


def sheets(step: Step, queries: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Iterator[Sheet]:
    """Cut a step into tables by its last two axes.

    Args:
        step: A step of a trace.
        queries: The queries that are shown where each has a table of its own; None shows all.
        heads: The heads that are shown; None shows all.
    """
    value, axes = step.value, step.axes
    if axes[:-1] in ((), ("head",)):  # a vector, or one for each head: a table of one row
        value, axes = value.unsqueeze(-2), (*axes[:-1], "", axes[-1])
    labels = [_labels(axis, size, names) for axis, size, names in _named_axes(step, value, axes)]
    outer = [
        [i for i in range(size) if _is_shown(axis, i, queries, heads)]
        for axis, size in zip(axes[:-2], value.shape[:-2], strict=True)
    ]
    alone = value.shape[0] == 1 and axes[0] == "head"
    for index in product(*outer):
        parts = [
            f"{axis} {label[i]}"
            for axis, label, i in zip(axes, labels, index, strict=False)
            if not (axis == "head" and alone)
        ]
        yield Sheet(", ".join(parts), (axes[-2], axes[-1]), labels[-2], labels[-1], value[index].tolist())


def tables(trace: Trace, queries: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> RenderableType:
    """Draw every step of a trace as tables with four decimals.

    Args:
        trace: What `regard.trace` gives.
        queries: The queries whose weighted values are shown, from 0; None shows all.
        heads: The heads that are shown, from 0; None shows all.

    Returns:
        A renderable for ``rich.print``.

    Raises:
        InvalidArgument: If there is no such query or head.

    Example:
        >>> import regard
        >>> Console(width=60).print(tables(regard.trace([[1.0, 0.5]], tokens=["word"])))  # doctest: +ELLIPSIS
        Scaled dot-product attention
        <BLANKLINE>
        1  input: X
                   0       1
        word  1.0000  0.5000
        ...
    """
    _check(trace, queries, heads)
    parts: list[RenderableType] = [Text(trace.title, "bold")]
    for number, step in enumerate(trace.steps, 1):
        parts += [Text(), Text.assemble(f"{number}  ", (step.name, "bold"), f": {step.formula}")]
        for sheet in sheets(step, queries, heads):
            parts += [Text(sheet.caption, "dim")] if sheet.caption else []
            parts.append(_Drawn(sheet, step.name))
    return Group(*parts)


class _Drawn:
    """A sheet in the width that there is: tokens that do not fit go below, features that do not fit are counted."""

    def __init__(self, sheet: Sheet, step: str) -> None:
        self.sheet, self.step = sheet, step

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sheet = self.sheet
        rows = len(sheet.rows) if sheet.axes[0] in TOKENS else min(len(sheet.rows), MOST_FEATURES)
        cells = [[_number(each, self.step) for each in row] for row in sheet.numbers[:rows]]
        names = [short(name) for name in sheet.rows[:rows]]
        columns = [short(name) for name in sheet.columns]
        widths = [max(map(cell_len, column)) + GAP for column in zip(columns, *cells, strict=True)]
        room = options.max_width - max(map(cell_len, names)) - GAP
        start = 0
        while start < len(columns):
            stop = start + max(1, sum(used <= room for used in accumulate(widths[start:])))
            left = len(columns) - stop
            yield self._table(names, columns[start:stop], [row[start:stop] for row in cells])
            start = stop
            if left and sheet.axes[1] not in TOKENS:
                start = len(columns)
        if left := len(sheet.rows) - rows:
            yield Text(f"… and {left} more rows", "dim")
        if (left := len(columns) - stop) and sheet.axes[1] not in TOKENS:
            yield Text(f"… and {left} more columns", "dim")

    @staticmethod
    def _table(names: list[str], columns: list[str], cells: list[list[str]]) -> Table:
        drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        drawn.add_column("", style="dim", no_wrap=True)
        for name in columns:
            drawn.add_column(Text(name), justify="right", no_wrap=True)
        for name, row in zip(names, cells, strict=True):
            drawn.add_row(Text(name), *map(Text, row))
        return drawn


def write_steps(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write a trace as one HTML file that any browser opens, without a script and without a network.

    The file is written whole or not at all.

    Args:
        trace: What `regard.trace` gives.
        path: Where the file shall lie; a file that is there is replaced.

    Returns:
        The path of the file.

    Raises:
        InvalidFile: If the file cannot be written there.
    """
    content = steps_page(trace).encode("utf-8", "xmlcharrefreplace")
    with atomic_write(path) as file:
        file.write(content)
    return Path(path)


def steps_page(trace: Trace) -> str:
    """Make the text of the page: a section for each step, with its tables, whose cells are shaded by their size."""
    style = static("steps.css")
    sections = "\n".join(_section(number, step) for number, step in enumerate(trace.steps, 1))
    contents = " ".join(
        f'<a href="#step-{number}">{html.escape(step.name)}</a>' for number, step in enumerate(trace.steps, 1)
    )
    title = html.escape(trace.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src {hash_of(style)}; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><p class="brand">Regard</p><h1>{title}</h1><nav aria-label="Steps">{contents}</nav></header>
<main>
{sections}
</main>
</body>
</html>
"""


def _section(number: int, step: Step) -> str:
    largest = float(step.value[step.value.isfinite()].abs().max()) if step.value.isfinite().any() else 0.0
    drawn = "\n".join(_html_table(sheet, step, largest) for sheet in sheets(step))
    return (
        f'<section id="step-{number}"><h2><span class="number">{number}</span> {html.escape(step.name)}</h2>'
        f'<p class="formula">{html.escape(step.formula)}</p>\n<div class="sheets">{drawn}</div></section>'
    )


def _html_table(sheet: Sheet, step: Step, largest: float) -> str:
    shown = len(sheet.rows) if sheet.axes[0] in (*TOKENS, "") else min(len(sheet.rows), MOST_ON_PAGE)
    left = len(sheet.rows) - shown
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in sheet.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f'<td class="{_shade(each, largest)}">{_number(each, step.name)}</td>' for each in row)
        + "</tr>"
        for name, row in zip(sheet.rows[:shown], sheet.numbers[:shown], strict=True)
    )
    rest = f'<tr><td colspan="{len(sheet.columns) + 1}" class="rest">… and {left} more rows</td></tr>' if left else ""
    caption = f"<caption>{html.escape(sheet.caption)}</caption>" if sheet.caption else ""
    return f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>\n{rows}{rest}\n</tbody></table>"


def _shade(number: float, largest: float) -> str:
    """One of nine classes each way: a share of the largest number of a step, above 0 or below."""
    if number != number or number in (float("inf"), -float("inf")):
        return "none"
    level = round(9 * abs(number) / largest) if largest else 0
    return f"{'up' if number >= 0 else 'down'}{level}"


def _number(number: float, step: str) -> str:
    if number == -float("inf"):
        return "−∞"
    return str(int(number)) if step == "mask" else f"{number:.4f}".replace("-", "−")


def _named_axes(step: Step, value: Tensor, axes: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[str, ...] | None]]:
    names = dict(zip(step.axes, step.labels, strict=True))
    return zip(axes, value.shape, (names.get(axis) for axis in axes), strict=True)


def _labels(axis: str, size: int, names: tuple[str, ...] | None) -> tuple[str, ...]:
    if names is not None:
        return tuple(_piece(name) for name in names) if any(name[:1] == MARK for name in names) else names
    return tuple(map(str, range(size))) if axis else ("",) * size


def _piece(token: str) -> str:
    """A subword as a label shows it: one that goes on within a word carries a dot before it."""
    if token[:1] == MARK:
        return token[1:] or "␣"
    return f"·{token}" if token[:1].isalnum() else token


def _is_shown(axis: str, number: int, queries: Sequence[int] | None, heads: Sequence[int] | None) -> bool:
    chosen = {"query": queries, "head": heads}.get(axis)
    return chosen is None or number in chosen


def _check(trace: Trace, queries: Sequence[int] | None, heads: Sequence[int] | None) -> None:
    for name, chosen, axis in (("queries", queries, 1), ("heads", heads, 0)):
        size = trace["weights"].shape[axis]
        wrong = [number for number in chosen or () if not 0 <= number < size]
        if wrong:
            raise InvalidArgument(f"{name}: there are {size}, numbered 0 to {size - 1}; got {wrong}")
