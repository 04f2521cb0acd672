"""``regard steps``: the computation of attention, step by step, with its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import (
    PAGE_SUFFIXES,
    AnyModelOption,
    DeviceOption,
    JsonOption,
    WeightsDtypeOption,
    check_suffix,
    reject_options,
)
from regard.cli.output import print_path
from regard.cli.texts import check_texts, reject_recording
from regard.errors import InvalidArgument

if TYPE_CHECKING:
    from regard.tracing.trace import Trace

HeadOption = Annotated[
    int | None, typer.Option(min=0, help="Head to show, from 0.", show_default="tables: all; page: lowest entropy")
]
QueryOption = Annotated[
    str | None,
    typer.Option(
        help="Query to show: its index from 0, or its token, of which the first is taken.",
        show_default="tables: all; page: a word",
    ),
]


def steps(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="Text for a model, in quotes; without it, four words as small vectors.")
    ] = None,
    *,
    layer: Annotated[
        str | None,
        typer.Option(help="Layer of the model: encoder.0, decoder.0, cross.0, ...", show_default="the first"),
    ] = None,
    head: HeadOption = None,
    query: QueryOption = None,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page (.html) with a screen for each step.")
    ] = None,
    model: AnyModelOption = None,
    dtype: WeightsDtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Show every step of attention with its numbers, from the token ids to the output of the block.

    Prints a table for each step. Without a text it computes attention for four words with three features each; with
    one, a layer of a model on that text.

        regard steps
        regard steps "Thank you." --layer cross.0 --head 2
        regard steps "The animal didn't cross the street." --head 2 --query animal -o steps.html

    A page follows one query through one head, in pictures, sentences and tables, and lets you choose others. `--json`
    contains all heads and queries.
    """
    if text is None:
        reject_options(context, ("layer", "model", "dtype", "device"), "used only with a text")
    if as_json:
        reject_options(context, ("output",), "not used with --json, which prints the numbers")
        reject_options(context, ("head", "query"), "not used with --json, which contains all")
    check_suffix(output, PAGE_SUFFIXES)
    check_texts({"text": text})
    reject_recording("text", text, "every step needs the weights of a model")
    from rich.console import Console

    from regard.explore.steps_page import write_steps_html
    from regard.explore.trace_tables import trace_table
    from regard.tracing.attention import trace as trace_example

    if text is None:
        trace = trace_example()
    else:
        trace = load_pipeline(model, None, dtype=dtype, device=device).trace(text, layer)
    query_index = _check_selection(trace, head, query)
    if as_json:
        print(trace.to_json(indent=1))
    elif output is not None:
        write_steps_html(trace, output, head=head, query=query_index)
        print_path("Every step", output)
    else:
        Console().print(
            trace_table(trace, None if query_index is None else [query_index], None if head is None else [head])
        )


def _check_selection(trace: Trace, head: int | None, query: str | None) -> int | None:
    """The index of the query; an error if there is no such head or query."""
    from regard.checks import Checks
    from regard.explore.trace_selection import find_query

    last, index = len(trace["weights"]) - 1, None
    with Checks() as checks:
        expected = f"0 to {last}, the last head of the layer" if last else "0, the only head"
        checks.that(head is None or head <= last, f"--head: expected {expected}, got {head}")
        try:
            index = None if query is None else find_query(trace, query)
        except InvalidArgument as error:
            checks.fail(f"--{error}")
    return index
