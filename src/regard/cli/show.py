"""``regard show``: what each token of a text attends to, as a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import ExactDtype
from regard.errors import raise_problems

if TYPE_CHECKING:
    from regard.analysis.recording import Recording

RECORDING = ".regard"
"""The suffix of recordings, which `regard serve` and `regard compare` read."""


def show(
    text: Annotated[str, typer.Argument(help="A text, in quotes; for a vision model the path of an image.")],
    target: Annotated[
        str | None,
        typer.Option(
            help="Target text of an encoder-decoder, or the second text of a pair for a BERT.",
            show_default="what the model generates",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Generate this many tokens and record them too.", show_default="none")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="Layer to show in the table: encoder.0, cross.0, or a module name.",
            show_default="the mean over all; of a translator, over its cross-attention",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help=f"Page to write, or a recording if the name ends in {RECORDING}."),
    ] = Path("attention.html"),
    model: Annotated[
        Path | None, typer.Option(help="Model folder, or minilm.", show_default="the bundled translator")
    ] = None,
    dtype: ExactDtype = "float32",
    tokens: Annotated[bool, typer.Option("--tokens", help="A row for each token in the table, not each word.")] = False,
) -> None:
    """Show what each token attends to, as a table and an offline HTML page.

    A translator translates first; the table is of its cross-attention:

        regard show "The animal didn't cross the street because it was too tired."

    Of language models and BERTs, the table is of self-attention:

        regard show "ROMEO: But soft, what light?" --model runs/shakespeare/best --max-new-tokens 20
        regard show "A story of two halves." --model minilm --layer encoder.0

    `--model` also takes a folder with any Hugging Face model and its tokenizer. For vision models pass the path of an
    image; only the page is written.

        regard show "summarize: The cat sat on the mat." --model t5/ --target "The cat sat."
        regard show cat.png --model vit/

    With `-o run.regard` it saves a recording, which `regard serve` and `regard compare` open:

        regard show "Thank you." -o run.regard
    """
    raise_problems(
        sentence_objections("TEXT", text) + ([] if target is None else sentence_objections("--target", target))
    )
    from rich.console import Console

    from regard.explore.page import write_page
    from regard.explore.terminal import table

    recording = _record(model, dtype, text, target, max_new_tokens)
    is_image = "image" in recording.texts
    if is_image:
        unused = [name for name, value in (("--layer", layer), ("--tokens", tokens)) if value]
        raise_problems([f"{name}: an image has no table, but a page with all layers; leave it out" for name in unused])
    shown = None if is_image else table(recording, layer, merge=not tokens)
    # before anything is printed: `| head` would end the command there
    if output.suffix == RECORDING:
        recording.save(output)
    else:
        write_page(recording, output)
    console = Console()
    if recording.texts.get("translation"):
        console.print(recording.texts["translation"], style="bold", markup=False, highlight=False)
        console.print()
    if shown is not None:
        console.print(shown)
        console.print()
    console.print(f"All layers and heads: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)


def _record(model: Path | None, dtype: str, text: str, target: str | None, max_new_tokens: int | None) -> Recording:
    """Record a model of any class."""
    from regard.cli.options import load_model
    from regard.pipelines import Generator, TextEncoder, Translator

    loaded = load_model(model, dtype=dtype, pair=target is not None)
    options = {"target": target, "max_new_tokens": max_new_tokens}
    accepted = {Translator: ("target",), Generator: ("max_new_tokens",), TextEncoder: ()}.get(
        type(loaded), tuple(options)
    )
    does = {Translator: "translates", Generator: "continues a text", TextEncoder: "reads one text and generates none"}
    unused = [name for name, value in options.items() if value is not None and name not in accepted]
    raise_problems([f"--{name.replace('_', '-')}: the model {does[type(loaded)]}; leave it out" for name in unused])
    return loaded.record(text, **{name: options[name] for name in accepted})


def sentence_objections(name: str, text: str) -> list[str]:
    """Say why an argument of the command line is not a text."""
    if not text.strip():
        return [f"{name}: expected a sentence, but it is empty"]
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # Python holds a byte of the command line that is not UTF-8 as a surrogate
        byte = ord(text[error.start]) & 0xFF
        return [f"{name}: expected UTF-8, but character {error.start + 1} is the byte 0x{byte:02x}"]
    return []
