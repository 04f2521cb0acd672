"""``regard steps``: the calculation of attention, step by step, with its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import ExactDtype, dtype_of
from regard.cli.show import sentence_objections
from regard.errors import InvalidArgument, raise_problems


def steps(
    text: Annotated[
        str | None,
        typer.Argument(help="A sentence to look at inside a model; in quotes.", show_default="four words as vectors"),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="The layer of the model: encoder.0, decoder.0, cross.0, ...", show_default="the first"),
    ] = None,
    head: Annotated[int | None, typer.Option(help="Show this head alone, from 0.", show_default="all")] = None,
    query: Annotated[
        int | None, typer.Option(help="Show the weighted values of this query alone, from 0.", show_default="all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page in place of tables.", show_default="none")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The folder of a model.", show_default="the bundled translator")
    ] = None,
    dtype: ExactDtype = "float32",
) -> None:
    """Show every step of attention with its numbers: projections, scores, softmax, weighted values, output.

    Without a sentence it is the calculation for four words of three features each:

        regard steps

    With one, that of a layer inside a model:

        regard steps "Thank you." --layer cross.0 --head 2
        regard steps "To be" --model gpt2/ --layer decoder.3
    """
    given = {"--layer": layer, "--model": model}
    idle = [name for name, value in given.items() if value is not None and text is None]
    raise_problems([f"{name}: belongs to a sentence, and none was given" for name in idle])
    raise_problems([] if text is None else sentence_objections("TEXT", text))
    if json and output is not None:
        raise InvalidArgument("--json: prints numbers, and --output writes a page; give one of them")
    chosen = [name for name, value in (("--head", head), ("--query", query)) if value is not None]
    if chosen and (json or output is not None):
        raise InvalidArgument(f"{' and '.join(chosen)}: choose among the tables; JSON and page hold all")
    from rich.console import Console

    from regard.analysis.trace_attention import trace as calculate
    from regard.explore.steps import tables, write_steps

    if text is None:
        found = calculate()
    else:
        from regard.models.minilm import resolve_folder
        from regard.pipelines import load

        found = load(model and resolve_folder(model), dtype=dtype_of(dtype)).trace(text, layer)
    heads, queries, _ = found["weights"].shape
    chosen = (("--head", head, heads, "heads"), ("--query", query, queries, "queries"))
    raise_problems(
        [
            f"{name}: expected 0 to {count - 1}, because the layer has {count} {what}, got {value}"
            for name, value, count, what in chosen
            if value not in (None, *range(count))
        ]
    )
    if json:
        print(found.to_json(indent=1))
    elif output is not None:
        write_steps(found, output)
        Console().print(f"Every step: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)
    else:
        Console().print(tables(found, None if query is None else [query], None if head is None else [head]))
