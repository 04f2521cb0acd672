"""``regard show``: what each token of a text attends to, as a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.models import load_any
from regard.cli.options import (
    PAGE_SUFFIXES,
    RECORDING_SUFFIX,
    TABLE_SUFFIXES,
    AnyModelOption,
    DeviceOption,
    FileOption,
    LinesOption,
    TextArgument,
    WeightsDtypeOption,
    check_suffix,
    reject_options,
)
from regard.cli.output import note, print_path
from regard.cli.texts import InputText, check_texts, find_recording, note_file_name, read_texts
from regard.cli.translate import doubts
from regard.errors import InvalidArgument, short_repr

if TYPE_CHECKING:
    from regard.pipelines import Translation
    from regard.recordings.recording import Recording

OF_MODELS = ("model", "dtype", "device", "lines", "target", "image", "max_new_tokens")
"""Parameters that a recording has no use for."""


def show(
    context: typer.Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    lines: LinesOption = False,
    target: Annotated[
        str | None,
        typer.Option(help="Target text of an encoder-decoder (by default it generates one); second text for a BERT."),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="Image for a model that reads an image and a text, which says where it is.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Generate up to this many tokens and record them too.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="Layer of the table: encoder.0, cross.0, or a module name.",
            show_default="mean over the cross-attention, or over all layers",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Show what this token attends to and what attends to it, strongest first.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Do not merge subword tokens into words.")] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Page (.html), recording (.regard) or table (.csv, .parquet) to write."),
    ] = Path("attention.html"),
    model: AnyModelOption = None,
    dtype: WeightsDtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Show what each token attends to, as a table and an offline HTML page.

    The table has a row per word with the words it attends to most, averaged over heads: cross-attention of a
    translator, self-attention of other models. The page has every layer and head.

        regard show "The animal didn't cross the street because it was too tired."
        regard show "The cat sat on the mat." --model minilm --layer encoder.5 --token cat

    `--model` also takes a folder with any Hugging Face model and its tokenizer. For vision models pass an image path;
    only the page is written. A model of images and texts takes both.

        regard show "Once upon a time" --model llama/ --max-new-tokens 30
        regard show cat.png --model vit/
        regard show "USER: <image> What is it? ASSISTANT:" --image cat.png --model llava/

    `-o` can also name a recording, for `regard serve` and `regard compare`, or a file for the weights of the table.
    With `--lines` there is one for each line that is not empty: weights-1.csv, weights-2.csv, ...

        regard show "Thank you." -o run.regard
        regard show --file texts.txt --lines -o weights.csv

    A recording is shown again without its model:

        regard show run.regard --layer cross.0
    """
    path = find_recording(context, text, file, OF_MODELS)
    inputs = [] if path is not None else read_texts(text, file, lines)
    check_texts({"--target": target, "--token": token})
    check_suffix(output, (*PAGE_SUFFIXES, RECORDING_SUFFIX, *TABLE_SUFFIXES))
    if path is not None:
        from regard.recordings.recording_file import load

        recording = load(path)
        _check_image(context, recording, output)
        _show(recording, InputText("", str(path)), output, layer, token, merge=not tokens)
        return
    from regard.pipelines import TextEncoder, TextGenerator, Translator

    loaded = load_any(model, dtype=dtype, device=device, pairs=target is not None)
    unused, because = {
        Translator: (["image", "max_new_tokens"], "this model translates"),
        TextGenerator: (["target", "image"], "this model continues a text"),
        TextEncoder: (["target", "image", "max_new_tokens"], "this model reads one text and generates none"),
    }.get(type(loaded), ([], ""))
    reject_options(context, unused, because)
    options = {"target": target, "image": image, "max_new_tokens": max_new_tokens}
    options = {name: value for name, value in options.items() if name not in unused}
    for source in inputs:
        with source.naming_errors():
            if isinstance(loaded, Translator) and target is None:
                translation, recording = loaded.translate_and_record(source.text)
                _note_doubts(translation, source)
            else:
                recording = loaded.record(source.text, **options)
        _check_image(context, recording, output)
        if "image" not in recording.texts:
            note_file_name(text)
        if max_new_tokens is not None and recording.texts.get("text") == source.text:
            note("no token was generated: the model ends the text here")
        numbered = output if source.line is None else output.with_stem(f"{output.stem}-{source.line}")
        _show(recording, source, numbered, layer, token, merge=not tokens)


def _check_image(context: typer.Context, recording: Recording, output: Path) -> None:
    """Refuse what the recording of an image does not have."""
    if "image" in recording.texts:
        reject_options(context, ("layer", "token", "tokens"), "an image has a page with all layers and no table")
        if output.suffix in TABLE_SUFFIXES:
            raise InvalidArgument(f"--output: expected .html or .regard for an image, got {short_repr(output.name)}")


def _note_doubts(translation: Translation, source: InputText) -> None:
    """Print a note if a translation is not reliable."""
    if translation.is_reliable is False:
        where = f"{source.origin}: " if source.origin else ""
        note(f"{where}the translation may be wrong: {doubts(translation)}")


def _show(
    recording: Recording, source: InputText, output: Path, layer: str | None, token: str | None, *, merge: bool
) -> None:
    """Write the output file, then print the text that the model generated, the table and the file's path."""
    from rich.console import Console

    from regard.analysis import save_table, word_weights
    from regard.explore import attention_table, write_html
    from regard.explore.terminal import token_tables
    from regard.text.display import escape_controls

    words = None if "image" in recording.texts else word_weights(recording, layer, merge=merge)
    with source.naming_errors():
        shown = words and (attention_table(words) if token is None else token_tables(words, token))
    label = "All layers and heads"
    # The file is written first: `| head` ends the command when it prints.
    if output.suffix == RECORDING_SUFFIX:
        recording.save(output)
        label = "Recording"
    elif words is not None and output.suffix in TABLE_SUFFIXES:
        save_table(words.columns(token), output)
        label = "Weights"
    else:
        write_html(recording, output)
    console = Console()
    for heading in (None if source.line is None else source.origin, recording.texts.get("translation")):
        if heading:
            console.print(escape_controls(heading), style="bold", markup=False, highlight=False, soft_wrap=True)
            console.print()
    if shown is not None:
        console.print(shown)
        console.print()
    print_path(label, output)
