"""``regard steps``: the computation of attention, step by step, with its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from regard.cli.texts import check_texts


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
    head: Annotated[int | None, typer.Option(min=0, help="Show only this head, from 0.")] = None,
    query: Annotated[
        int | None, typer.Option(min=0, help="Show the weighted values of this query only, from 0.")
    ] = None,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page (.html) instead of tables.")
    ] = None,
    model: AnyModelOption = None,
    dtype: WeightsDtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Show every step of attention with its numbers: projections, scores, softmax, weighted values, output.

    Prints a table for each step. Without a text it computes attention for four words with three features each; with
    one, a layer of a model on that text.

        regard steps
        regard steps "Thank you." --layer cross.0 --head 2

    `--json` and `--output` contain all heads and queries.
    """
    if text is None:
        reject_options(context, ("layer", "model", "dtype", "device"), "used only with a text")
    if as_json:
        reject_options(context, ("output",), "not used with --json, which prints the numbers")
    if as_json or output is not None:
        reject_options(context, ("head", "query"), "used only for tables; JSON and page contain all")
    check_suffix(output, PAGE_SUFFIXES)
    check_texts({"text": text})
    from rich.console import Console

    from regard.analysis.trace_attention import trace as trace_example
    from regard.checks import Checks
    from regard.explore.steps import tables, write_steps

    if text is None:
        trace = trace_example()
    else:
        trace = load_pipeline(model, None, dtype=dtype, device=device).trace(text, layer)
    num_heads, num_queries, _ = trace["weights"].shape
    with Checks() as checks:
        for name, index, count in (("head", head, num_heads), ("query", query, num_queries)):
            expected = f"0 to {count - 1}, the last {name} of the layer" if count > 1 else f"0, the only {name}"
            checks.that(index is None or index < count, f"--{name}: expected {expected}, got {index}")
    if as_json:
        print(trace.to_json(indent=1))
    elif output is not None:
        write_steps(trace, output)
        print_path("Every step", output)
    else:
        Console().print(tables(trace, None if query is None else [query], None if head is None else [head]))
