"""``regard look``: translate a sentence, and see what attended to what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import refuse


def look(
    text: Annotated[str, typer.Argument(help="A sentence; in quotes, so that the shell leaves it whole.")],
    translation: Annotated[
        str | None, typer.Option(help="Look at this translation.", show_default="the one that the model finds")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="The cross-attention layer of the table.", show_default="the mean over all")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("attention.html"),
    model: Annotated[
        Path | None, typer.Option(help="The folder of a model.", show_default="the embedded model")
    ] = None,
) -> None:
    """Translate a sentence and show what each word of the translation attended to.

    Prints the translation and a table of the cross-attention, and writes a page with every layer and head that any
    browser opens, without a network:

        regard look "The animal didn't cross the street because it was too tired."
    """
    refuse(
        sentence_objections("TEXT", text)
        + ([] if translation is None else sentence_objections("--translation", translation))
    )
    from rich.console import Console

    from regard.explore.page import write_page
    from regard.explore.terminal import table
    from regard.generation.translator import Translator

    recording = Translator.load(model).record(text, translation)
    shown = table(recording, layer)
    write_page(recording, output)  # before anything is printed: `| head` would end the command there
    console = Console()
    console.print(recording.texts["translation"], style="bold", markup=False, highlight=False)
    console.print()
    console.print(shown)
    console.print(f"\nAll layers and heads: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)


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
