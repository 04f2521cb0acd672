"""``regard look``: give a model a sentence, and see what attended to what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.models import ExactDtype
from regard.errors import raise_problems

if TYPE_CHECKING:
    from regard.analysis.recording import Recording


def look(
    text: Annotated[str, typer.Argument(help="A sentence; in quotes, so that the shell leaves it whole.")],
    target: Annotated[
        str | None,
        typer.Option(
            help="What an encoder-decoder is to write; for a BERT, the second text.",
            show_default="what the model writes",
        ),
    ] = None,
    generate: Annotated[
        int | None, typer.Option(min=1, help="Let the model write so many tokens first.", show_default="none")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="The layer of the table: cross.0, encoder.0, ...; in watched models the name of its module.",
            show_default="the mean over all; of a translator, of its cross-attention",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("attention.html"),
    model: Annotated[
        Path | None, typer.Option(help="The folder of a model, or minilm.", show_default="the embedded model")
    ] = None,
    dtype: ExactDtype = "float32",
    subwords: Annotated[bool, typer.Option("--subwords", help="A row for each piece of a word in the table.")] = False,
) -> None:
    """Give a model a sentence, and show what each word attended to.

    Prints a table, and writes a page with every layer and head that any browser opens, without a network. A translator
    translates first, and the table is of what each word of the translation attended to:

        regard look "The animal didn't cross the street because it was too tired."

    Language models and BERTs read, and the table is of what each word attended to:

        regard look "ROMEO: But soft, what light?" --model runs/shakespeare/best --generate 20
        regard look "A story of two halves." --model minilm --layer encoder.0

    Any other model of Hugging Face's transformers in a folder is watched, its tokenizer beside it; one of images is
    given the path of one, and has no table, but a page:

        regard look "summarize: The cat sat on the mat." --model t5/ --target "The cat sat."
        regard look cat.png --model vit/
    """
    raise_problems(
        sentence_objections("TEXT", text) + ([] if target is None else sentence_objections("--target", target))
    )
    from rich.console import Console

    from regard.explore.page import write_page
    from regard.explore.terminal import table

    recording = _record(model, dtype, text, target, generate)
    if "image" in recording.texts:
        idle = [name for name, value in (("--layer", layer), ("--subwords", subwords)) if value]
        raise_problems([f"{name}: an image has no table, but a page with all layers; leave it out" for name in idle])
    shown = None if "image" in recording.texts else table(recording, layer, merge=not subwords)
    write_page(recording, output)  # before anything is printed: `| head` would end the command there
    console = Console()
    if recording.texts.get("translation"):
        console.print(recording.texts["translation"], style="bold", markup=False, highlight=False)
        console.print()
    if shown is not None:
        console.print(shown)
        console.print()
    console.print(f"All layers and heads: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)


def _record(model: Path | None, dtype: str, text: str, target: str | None, generate: int | None) -> Recording:
    """What a model of any kind attended to."""
    from regard.cli.models import load_model
    from regard.generation import Generator, Reader, Translator

    loaded = load_model(model, dtype=dtype, pair=target is not None)
    given = {"target": target, "generate": generate}
    takes = {Translator: ("target",), Generator: ("generate",), Reader: ()}.get(type(loaded), tuple(given))
    does = {Translator: "translates", Generator: "goes on with a text", Reader: "reads one text, and writes none"}
    idle = [name for name, value in given.items() if value is not None and name not in takes]
    raise_problems([f"--{name}: the model {does[type(loaded)]}; leave it out" for name in idle])
    names = {"target": "target", "generate": "max_new_tokens"}
    return loaded.record(text, **{names[name]: given[name] for name in takes})


def sentence_objections(name: str, text: str) -> list[str]:
    """Say why an argument of the command line is no sentence."""
    if not text.strip():
        return [f"{name}: expected a sentence, but it is empty"]
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # Python holds a byte of the command line that is not UTF-8 as a surrogate
        byte = ord(text[error.start]) & 0xFF
        return [f"{name}: expected UTF-8, but character {error.start + 1} is the byte 0x{byte:02x}"]
    return []
