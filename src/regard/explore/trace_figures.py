"""The tables of a trace's page as HTML; scripts in ``static/trace/`` draw the same for other heads and queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from regard.explore.trace_screens import Column, NumberTable
from regard.explore.trace_view import Line, Scale, View, bar, feature_scale, format_number, scales, shade

MAX_COLUMNS = 32
"""Features of a row that the page has without its script."""
MIN_STRIP, MAX_STRIP = 17, 1024
"""From how many features a vector is also a strip of colors, and how many of them the strip has."""
STRIP_POWER = 0.5
"""Brightens small numbers in strips: a few features are often much larger than the others."""


def filled_html(view: View, text: str) -> str:
    """A text as HTML in which the script can fill in another head and query."""
    return "".join(
        f'<span data-fill="{escape(name)}">{escape(part)}</span>' if name else escape(part)
        for name, part in view.fill(text)
    )


def figure_html(table: NumberTable, view: View, number: int) -> str:
    """A table as HTML.

    Args:
        table: The table.
        view: The numbers.
        number: The index of the table on the page.
    """
    lines = view.lines(table)
    ranges, visible = scales(table, lines), [line for line in lines if line.is_shown]
    count = max(len(line.features) for line in lines)
    headings = "".join(map(_heading, table.columns))
    headings += "".join(f'<th scope="col">{entry}</th>' for entry in range(min(count, MAX_COLUMNS)))
    rows = [_row(table, line, ranges) for line in visible]
    hidden = len(lines) - len(visible)
    if hidden and table.each in ("dim", "feature"):
        rows.insert(len(visible) - len(table.tail), '<tr class="gap"><td>⋮</td></tr>')
    caption = f"<figcaption>{filled_html(view, table.caption)}</figcaption>" if table.caption else ""
    kind = "features" if table.axis else "list"
    body = "\n".join(rows)
    notes = [f"{count} features, as many as fit" * (count > 4), f"{hidden} more rows" * (hidden > 0)]
    return (
        f'<figure class="numbers {kind} columns-{len(table.columns)}" data-table="{number}">{caption}'
        f'<div class="strips">{_strips(table, lines, ranges)}</div>'
        f'<div class="fit"><table><thead><tr><td></td>{headings}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
        f'<p class="more">{"; ".join(filter(None, notes))}</p></figure>'
    )


def _heading(column: Column) -> str:
    return f'<th scope="col">{escape(column.title)}</th>' + '<td class="bar"></td>' * column.bar


def _row(table: NumberTable, line: Line, ranges: Mapping[str, Scale]) -> str:
    cells = []
    for column, source, number in zip(table.columns, line.sources, line.columns, strict=True):
        cells.append("<td></td>" if number is None else _cell(number, ranges[source], source))
        if column.bar:
            has_bar = source == column.source
            cells.append(_bar(number or 0.0, source, ranges[source]) if has_bar else '<td class="bar"></td>')
    scale = ranges[feature_scale(table, line)]
    cells += [_cell(number, scale) for number in line.features[:MAX_COLUMNS]]
    kind = f' class="{line.kind}"' if line.kind else ""
    return f'<tr{kind}><th scope="row" title="{escape(line.label)}">{escape(line.label)}</th>{"".join(cells)}</tr>'


def _cell(number: float, scale: Scale, source: str = "") -> str:
    if source == "mask":
        return f"<td>{'yes' if number else 'no'}</td>"
    level = shade(number, scale)
    return f'<td class="{level}">{format_number(number)}</td>' if level else f"<td>{format_number(number)}</td>"


def _bar(number: float, source: str, scale: Scale) -> str:
    start, length = bar(number, source, scale)
    kind = "down" if number < 0 else "up"
    drawn = f'<rect class="{kind}" x="{start:g}" width="{length:g}" height="1"/>'
    return f'<td class="bar"><svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg></td>'


def _strips(table: NumberTable, lines: Sequence[Line], ranges: Mapping[str, Scale]) -> str:
    """All features of the vectors of a table as strips of colors, if they are more than fit as numbers."""
    if table.axis != "feature" or len(lines[-1].features) < MIN_STRIP:
        return ""
    vectors = [line for line in lines if line.features and (not line.is_entry or line.kind == "own")]
    return "".join(_strip(line, ranges[feature_scale(table, line)]) for line in vectors)


def _strip(line: Line, scale: Scale) -> str:
    numbers = line.features[:MAX_STRIP]
    levels = [shade(number, scale, STRIP_POWER) for number in numbers]
    drawn = "".join(f'<rect class="{level}" x="{x}" width="1" height="1"/>' for x, level in enumerate(levels) if level)
    svg = f'<svg viewBox="0 0 {len(numbers)} 1" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
    return f'<div class="strip"><span title="{escape(line.label)}">{escape(line.label)}</span>{svg}</div>'
