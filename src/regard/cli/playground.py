"""``regard playground``: a model in one HTML file, to type into."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import PAGE_SUFFIXES, check_suffix
from regard.cli.output import print_path, progress
from regard.errors import InvalidArgument


def playground(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page (.html) to write.")] = Path("playground.html"),
    model: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a translator, a GPT or a BERT.", show_default="the bundled English-German translator"
        ),
    ] = None,
) -> None:
    """Write a page that translates, continues or reads what you type, with the model in it.

    One HTML file, 15 MB with the bundled model, which needs no network and no server: it computes in the browser what
    Python computes, and shows every weight of the sentence that you typed, in the views of `regard show`. A GPT
    continues the text, and a BERT fills its masks. You can change the model, and compare. The address of the page
    contains the sentence and all choices, so that a link opens it again.

        regard playground
        regard playground --model runs/toy-translation/best -o toy.html

    A model that the page cannot run is refused with the reason: it must be a Transformer, GPT or BERT of this library,
    without relative positions (Shaw), and with a byte-level BPE or WordPiece.
    """
    check_suffix(output, PAGE_SUFFIXES)
    from regard.explore.playground import write_playground

    pipeline = load_pipeline(model, None, dtype="float32", device="cpu")
    try:
        with progress("packing", 100, "%") as advance:
            write_playground(pipeline, output, progress=lambda share: advance(100 * share))
    except InvalidArgument as error:
        raise InvalidArgument(f"{model or 'the bundled model'}: {error}") from None
    print_path(f"Playground, {output.stat().st_size / 1e6:.1f} MB", output)
