"""A trace as one HTML page: the calculation of one query in one head, a screen for each step."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import asdict
from html import escape
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from regard.explore.static_files import hash_of, inert_json, module_scripts, style_sheet
from regard.explore.trace_figures import figure_html, filled_html
from regard.explore.trace_numbers import TraceNumbers, page_numbers
from regard.explore.trace_screens import Screen, trace_screens
from regard.explore.trace_selection import TraceSelection, axis_tokens, select
from regard.explore.trace_view import View
from regard.files import atomic_write
from regard.text.display import display_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.tracing.trace import Trace

LEGEND = "Blue cells are above 0, orange cells below: the stronger the color, the larger the number within its table."


def write_trace_html(
    trace: Trace, path: str | os.PathLike[str], *, head: int | None = None, query: int | str | None = None
) -> Path:
    """Write a trace as one HTML file that any browser opens, without a network.

    The page shows the calculation of one query in one head, a screen for each step. It contains all heads and queries
    to choose from if their numbers take less than 1.5 MB, else one head with all queries, or one query. The file is
    written whole or not at all.

    Args:
        trace: What `regard.trace` or the ``trace`` of a pipeline returns.
        path: Path of the file, which is replaced if it exists.
        head: The head that the page opens on, from 0. Default: the one with the lowest mean entropy over the words.
        query: The query that it opens on: an index from 0, or the text of a token, which means its first occurrence.
            Default: the word with the largest weight on another word.

    Returns:
        The path of the file.

    Raises:
        InvalidArgument: If there is no such head or query.
        InvalidType: If the head is not an int, or the query neither an int nor a str.
        InvalidFile: If the file cannot be written.
    """
    content = trace_html(trace, head=head, query=query).encode("utf-8", "xmlcharrefreplace")
    with atomic_write(path) as file:
        file.write(content)
    return Path(path)


def trace_html(trace: Trace, *, head: int | None = None, query: int | str | None = None) -> str:
    """The text of the page; arguments and errors are those of `write_trace_html`."""
    selection = select(trace, head, query)
    numbers, screens = page_numbers(trace, selection), trace_screens(trace)
    labels = _labels(trace)
    view = View(numbers, selection.head, selection.query, labels)
    data = {
        "head": selection.head,
        "query": selection.query,
        "heads": numbers.num_heads,
        "choices": {"head": numbers.has_heads and numbers.num_heads > 1, "query": numbers.has_queries},
        "labels": labels,
        "tables": [asdict(table) for screen in screens for table in screen.tables],
        "steps": numbers.pack(),
    }
    style, scripts, title = style_sheet("trace"), module_scripts("trace/main.js").values(), escape(trace.title)
    hashes = " ".join(map(hash_of, scripts))
    policy = f"default-src 'none'; script-src {hashes}; style-src {hash_of(style)}; img-src data:"
    contents = "\n".join(
        f'<li><a href="#{screen.slug}"><span class="number">{number}</span> {escape(screen.title)}</a></li>'
        for number, screen in enumerate(screens, 1)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}; base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="brand">Regard</p>
<h1>{title}</h1>
<div id="choice">{_choice(view)}</div>
</header>
<main>
<nav aria-label="Steps"><details open><summary>Steps</summary><ol>
{contents}
</ol></details></nav>
<div class="steps">
{_sections(screens, view, _opening(trace, numbers, selection))}
<div class="turn" hidden><button type="button" id="previous"></button>
<p id="place" role="status"></p><button type="button" id="next"></button></div>
</div>
</main>
<footer><p>{LEGEND}</p></footer>
<script type="application/json" id="trace">{inert_json(data)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _labels(trace: Trace) -> dict[str, tuple[str, ...]]:
    """The labels of queries and keys, and in self-attention of the tokens that the layer reads.

    The latter two have their position in parentheses if they occur several times.
    """
    queries, keys = (tuple(display_tokens(axis_tokens(trace, axis))) for axis in ("query", "key"))
    counts = Counter(keys)
    names = tuple(f"{key} ({index})" if counts[key] > 1 else key for index, key in enumerate(keys))
    return {"query": queries, "key": names, **({"token": names} if trace.steps[0].axes[0] == "token" else {})}


def _sections(screens: list[Screen], view: View, opening: str) -> str:
    """The screens; the first one says why the page opens here."""
    tables, sections = count(), []
    for number, screen in enumerate(screens, 1):
        figures = "\n".join(figure_html(table, view, next(tables)) for table in screen.tables)
        parts = [
            f'<h2 id="title-{screen.slug}"><span class="number">{number}</span> {escape(screen.title)}</h2>',
            f'<p class="text">{escape(screen.text)}</p>' * bool(screen.text),
            f'<p class="formula">{_formulas_html(screen.formulas)}</p>' * bool(screen.formulas),
            f'<p class="reading">{filled_html(view, screen.reading)}</p>' * bool(screen.reading),
            figures,
            f'<p class="note">{escape(opening)}</p>' * (number == 1 and bool(opening)),
        ]
        body = "\n".join(filter(None, parts))
        sections.append(f'<section id="{screen.slug}" aria-labelledby="title-{screen.slug}">\n{body}\n</section>')
    return "\n".join(sections)


def _choice(view: View) -> str:
    """The head and the query of the page without its script, which replaces them by controls."""
    head = f"Head {view.head} of {view.numbers.num_heads}, query " if view.numbers.num_heads > 1 else "Query "
    return f"<p>{head}<b>{escape(view.labels['query'][view.query])}</b></p>"


def _opening(trace: Trace, numbers: TraceNumbers, selection: TraceSelection) -> str:
    """Why the page opens on this head and this query, and what it does not contain."""
    sentences = [f"The page opens here because {selection.reason}."] if selection.reason else []
    if not numbers.has_heads:
        only, options = ("head", "--head") if numbers.has_queries else ("head and query", "--head and --query")
        sentences.append(f"To stay small the page contains only this {only}: choose with {options} of regard steps.")
    features, all_features = numbers.size("input", "feature"), trace["input"].shape[-1]
    if features < all_features:
        sentences.append(f"The page contains the first {features} of {all_features:,} features of the model.")
    return " ".join(sentences)


def _formulas_html(formulas: Sequence[str]) -> str:
    """Formulas with their indices and exponents as such."""
    text = " ".join(f"<span>{escape(formula)}</span>" for formula in formulas)
    return re.sub(r"\^\(([^()]*)\)", r"<sup>\1</sup>", re.sub(r"_([A-Z])\b", r"<sub>\1</sub>", text))
