"""``regard look``: give a model a sentence, and see what attended to what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import InvalidArgument, refuse

if TYPE_CHECKING:
    from regard.analysis.recording import Recording


def look(
    text: Annotated[str, typer.Argument(help="A sentence; in quotes, so that the shell leaves it whole.")],
    translation: Annotated[
        str | None, typer.Option(help="Look at this translation.", show_default="the one that the model finds")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="The layer of the table: cross.0, encoder.0, ...",
            show_default="the mean over all; of a translator, of its cross-attention",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("attention.html"),
    model: Annotated[
        Path | None, typer.Option(help="The folder of a model.", show_default="the embedded model")
    ] = None,
) -> None:
    """Give a model a sentence, and show what each word attended to.

    Prints a table, and writes a page with every layer and head that any browser opens, without a network. A translator
    translates first, and the table is of what each word of the translation attended to:

        regard look "The animal didn't cross the street because it was too tired."

    Language models and BERTs read, and the table is of what each word attended to:

        regard look "ROMEO: But soft, what light?" --model runs/shakespeare/best
        regard look "A story of two halves." --model minilm/ --layer encoder.0
    """
    refuse(
        sentence_objections("TEXT", text)
        + ([] if translation is None else sentence_objections("--translation", translation))
    )
    from rich.console import Console

    from regard.explore.page import write_page
    from regard.explore.terminal import table

    recording = _record(model, text, translation)
    shown = table(recording, layer)
    write_page(recording, output)  # before anything is printed: `| head` would end the command there
    console = Console()
    if "translation" in recording.texts:
        console.print(recording.texts["translation"], style="bold", markup=False, highlight=False)
        console.print()
    console.print(shown)
    console.print(f"\nAll layers and heads: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)


def _record(model: Path | None, text: str, translation: str | None) -> Recording:
    """What a model of any kind attended to."""
    from regard.generation.load import load
    from regard.generation.translator import Translator

    loaded = load(model)
    if isinstance(loaded, Translator):
        return loaded.record(text, translation)
    if translation is not None:
        came = f"{model} holds a {type(loaded.model).__name__}"
        raise InvalidArgument(f"--translation: {came}, which does not translate; leave it out")
    return loaded.record(text)


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
