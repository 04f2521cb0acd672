"""A trace as one HTML page: a screen for each step, for a head and a query that can be chosen."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.explore.html_page import render_html
from regard.explore.page_format import float_array, write_block
from regard.explore.trace_selection import TraceSelection, axis_tokens, select
from regard.files import atomic_write
from regard.text.display import display_tokens

if TYPE_CHECKING:
    from regard.tracing.trace import Step, Trace

MAX_BYTES = 8 << 20
"""Size of the numbers up to which a page has those of all heads."""
COMPUTED = "weighted values"
"""The largest step, which the page computes from others."""


def write_steps_html(
    trace: Trace, path: str | os.PathLike[str], *, head: int | None = None, query: int | str | None = None
) -> Path:
    """Write a trace as one HTML file that any browser opens, without a network.

    The page shows the calculation of one query in one head, a screen for each step: tensors as pictures, with the
    numbers where the pointer is and in tables. It has all queries to choose from, and all heads if their numbers take
    at most 8 MiB in float32, else one head. The file is written whole or not at all.

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
    content = steps_html(trace, head=head, query=query).encode("utf-8", "xmlcharrefreplace")
    with atomic_write(path) as file:
        file.write(content)
    return Path(path)


def steps_html(trace: Trace, *, head: int | None = None, query: int | str | None = None) -> str:
    """The text of the page; arguments and errors are those of `write_steps_html`."""
    header, tensors = pack_trace(trace, select(trace, head, query))
    return render_html(header, [write_block(tensors)], kind="steps")


def pack_trace(trace: Trace, selection: TraceSelection) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the page reads of a trace: names, formulas and explanations; and the numbers of each step in float32."""
    heads = len(trace["weights"])
    axes = {step.name: _axes(step) for step in trace}
    tensors = {step.name: float_array(step.value) for step in trace if step.name != COMPUTED}
    if "W_O" in tensors:  # the rows of each head
        tensors["W_O"] = tensors["W_O"].reshape(heads, -1, tensors["W_O"].shape[1])
    has_heads = heads == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= MAX_BYTES
    if not has_heads:
        for name, tensor in tensors.items():
            if axes[name][0] == "head":  # several heads may share keys and values
                own = selection.head * len(tensor) // heads
                tensors[name] = tensor[own : own + 1]
    labels = _labels(trace)
    sentences = [f"The page opens here because {selection.reason}."] if selection.reason else []
    if not has_heads:
        sentences.append("To stay small the page contains only this head: choose with --head of regard steps.")
    queries = axis_tokens(trace, "query")
    header = {
        "title": trace.title.removeprefix(f"{trace.layer}: "),
        "layer": trace.layer,
        "layers": trace.layers,
        "heads": heads,
        "onlyHead": None if has_heads else selection.head,
        "head": selection.head,
        "query": selection.query,
        "note": " ".join(sentences),
        "isShifted": "token" in labels and queries != _tokens_read(trace),
        "labels": labels,
        "steps": step_headers(trace),
    }
    return header, tensors


def step_headers(trace: Trace) -> list[dict[str, Any]]:
    """What the page says of each step, which is the same for any text."""
    return [
        {"name": step.name, "formula": step.formula, "explanation": step.explanation, "axes": _axes(step)}
        for step in trace
    ]


def _axes(step: Step) -> list[str]:
    """The axes on the page, where each head has its rows of W_O."""
    return ["head", "dim", "feature"] if step.name == "W_O" else list(step.axes)


def _tokens_read(trace: Trace) -> tuple[str, ...] | None:
    """The tokens at the places of the queries, which in a decoder are those before."""
    return trace.steps[0].labels[0] or axis_tokens(trace, "key")


def _labels(trace: Trace) -> dict[str, tuple[str, ...]]:
    """The labels of queries, keys and words, and in self-attention of the tokens that the layer reads.

    Those of keys and tokens have their position in parentheses if they occur several times.
    """
    labels = {"query": tuple(display_tokens(axis_tokens(trace, "query")))}
    keys = display_tokens(axis_tokens(trace, "key"))
    counts = Counter(keys)
    labels["key"] = tuple(f"{key} ({index})" if counts[key] > 1 else key for index, key in enumerate(keys))
    if trace.steps[0].axes[0] == "token":
        labels["token"] = labels["key"]
    last = trace.steps[-1]
    if "word" in last.axes:
        labels["word"] = tuple(display_tokens(last.labels[-1] or ()))
    return labels
