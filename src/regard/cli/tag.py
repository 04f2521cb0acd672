"""``regard tag``: the tag of each word, and the spans that tags form, by a trained tagger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import DeviceOption, DtypeOption, JsonOption, OutputOption, RequiredModelOption
from regard.cli.output import open_output
from regard.cli.texts import check_texts, reject_recording
from regard.errors import InvalidArgument, InvalidFile
from regard.text.lines import display_name, read_lines

if TYPE_CHECKING:
    from regard.pipelines import WordPrediction


def tag(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, each in quotes; their tags are printed as tables.")
    ] = None,
    *,
    model: RequiredModelOption,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Read one text per line of this file (or `.gz`); `-` is standard input.",
            show_default="standard input, if there are no texts",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Tag the words of texts, such as the names of people and places.

    Prints a table for each text: word, tag, probability, and the spans that the tags form. For the lines of a file it
    prints the columns of CoNLL instead: word, tab, tag, and an empty line after each text. `--json` prints one object
    per text: text, words with label and probability, and spans with label, text, start and end, in characters.

        regard tag "Florence lives in Florence." --model runs/toy-tagging/best
        regard tag --file news.txt --model bert-base-NER/ --json -o names.jsonl

    Takes models that `regard train` makes from tagging recipes, and BERT or RoBERTa models for token classification.
    Punctuation at the sides of a word becomes a word of its own. Only the first token of a word decides its tag.
    `regard evaluate` measures a tagger on sentences with known tags.
    """
    if texts and file is not None:
        raise InvalidArgument("--file: expected it without texts, got both; leave one of them out")
    file = Path("-") if file is None and not texts else file
    for text in texts or ():
        check_texts({"texts": text})
        reject_recording("texts", text, "a model tags its words")
    lines = list(read_lines(file)) if file is not None else texts or []
    if not lines:
        raise InvalidFile(f"{display_name(str(file))}: expected texts, one per line, got an empty file")
    encoder = load_pipeline(model, "tag", dtype=dtype, device=device)
    tagged: list[list[WordPrediction]] = encoder.tag(lines)
    with open_output(output, [] if file is None else [file]) as out:
        for text, words in zip(lines, tagged, strict=True):
            if as_json:
                out.write(json.dumps(_as_dict(text, words), ensure_ascii=False) + "\n")
            elif file is not None:
                out.writelines(f"{word.word}\t{word.label}\n" for word in words)
                out.write("\n")
            else:
                _print_table(out, words)
                out.write("\n")


def _as_dict(text: str, words: Sequence[WordPrediction]) -> dict[str, Any]:
    from regard.metrics.tagging import find_spans

    starts: list[int] = []
    ends = [0]
    for word in words:  # words are pieces of the text, in order
        starts.append(text.index(word.word, ends[-1]))
        ends.append(starts[-1] + len(word.word))
    spans = []
    for label, first, stop in find_spans([word.label for word in words]):
        start, end = starts[first], ends[stop]
        spans.append({"label": label, "text": text[start:end], "start": start, "end": end})
    rows = [
        {"word": word.word, "label": word.label, "probability": word.probabilities.get(word.label)} for word in words
    ]
    return {"text": text, "words": rows, "spans": spans}


def _print_table(out: IO[str], words: Sequence[WordPrediction]) -> None:
    from rich.console import Console
    from rich.text import Text

    from regard.explore.terminal import plain_table
    from regard.metrics.tagging import find_spans

    spans = {span.start: span for span in find_spans([word.label for word in words])}
    table = plain_table()
    for heading in ("word", "tag", "probability", "span"):
        table.add_column(heading, justify="right" if heading == "probability" else "left")
    for index, word in enumerate(words):
        cells = [word.word, word.label, f"{word.probabilities.get(word.label, 0.0):.4f}", ""]
        if index in spans:
            label, start, stop = spans[index]
            cells[3] = f"{label}: {' '.join(each.word for each in words[start:stop])}"
        table.add_row(*map(Text, cells))
    Console(file=out).print(table)
