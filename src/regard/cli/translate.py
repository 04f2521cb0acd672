"""``regard translate``: lines in, translated lines out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import (
    AutoDtypeOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    OutputOption,
    reject_options,
)
from regard.cli.output import note, open_output, progress, stdin_is_terminal, strip_newlines
from regard.errors import InvalidFile
from regard.text.display import is_blank
from regard.text.lines import display_name, read_lines

if TYPE_CHECKING:
    from regard.pipelines import Translation, Translator

CHUNK_LINES = 1024
"""Lines that are sorted by length together: enough for full batches, few enough that output starts soon."""


def translate(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of lines, plain or `.gz`; `-` is standard input.", show_default="standard input"),
    ] = None,
    *,
    output: OutputOption = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")] = 5,
    nbest: Annotated[
        int, typer.Option(min=1, help="Number of translations per line (with line numbers if above 1).")
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Above 1 prefers longer translations, below 1 shorter ones.")
    ] = 1.0,
    sample: Annotated[bool, typer.Option("--sample", help="Sample translations instead of beam search.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: below 1 prefers likely tokens.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="With --sample: sample from the k most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With --sample: sample from the most likely tokens of total probability p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="With --sample: seed; equal seeds give equal translations.")] = None,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores", help="Put score, confidence (nan if there is none) and missing words before each translation."
        ),
    ] = False,
    as_json: JsonOption = False,
    model: ModelOption = None,
    dtype: AutoDtypeOption = "auto",
    device: DeviceOption = "cpu",
) -> None:
    """Translate lines of text.

    Line n of the output is the translation of line n; an empty line stays empty. Input from a pipe or file is
    translated 1,024 lines at a time, typed input line by line. Long lines are translated in parts of whole sentences; a
    sentence that is too long for the model is refused, before anything is translated if the input is a file.

        echo "Where is the station?" | regard translate
        regard translate book.en --nbest 3 --scores --output book.de

    The bundled model translates short, everyday sentences from English to German, as in a phrase book. It fails on
    news and technical text. Its translations have a confidence: the probability that they are acceptable. A note on
    standard error lists the lines below 0.5, where most translations are wrong, and with any model those whose
    translation lacks a number or a name of its source.

    Scores are log-probabilities in nats, divided by the number of tokens to the power of `--length-penalty`; with
    `--sample` they are not divided. `--json` prints one object per line: line, source, and translations with text,
    score, tokens, finished (false if cut at the length limit), confidence, missing (numbers and names) and is_reliable.
    """
    if sample:
        reject_options(context, ("beam", "length_penalty"), "not used with --sample")
    else:
        reject_options(context, ("temperature", "top_k", "top_p", "seed"), "used only with --sample")
    paths = files or [Path("-")]
    for path in paths:
        if " " in str(path) and not path.exists():
            raise InvalidFile(
                f"{path}: no such file; to translate a text, write `echo {str(path)!r} | regard translate`"
            )
    lines: Iterable[tuple[str, str]] = chain.from_iterable(map(named_lines, paths))
    if Path("-") not in paths:
        lines = list(lines)  # unreadable files are refused before the first line is translated
    is_typed = paths == [Path("-")] and stdin_is_terminal()
    from regard.generation.sampling import SamplingParams

    options: dict[str, Any] = {"nbest": nbest, "beam": beam, "length_penalty": length_penalty}
    sampling = SamplingParams(temperature, top_k, top_p, seed) if sample else None
    unfinished: list[str] = []
    unreliable: list[str] = []
    num_translations = num_tabs = 0
    with open_output(output, paths) as file:
        translator = load_pipeline(model, "translate", dtype=dtype, device=device)
        if sampling is not None:  # one generator for all lines
            options = {"nbest": nbest, "sampling": sampling.with_generator(translator.device)}
        results = translate_lines(translator, lines, chunk=1 if is_typed else CHUNK_LINES, **options)
        for number, (name, source, translations) in enumerate(results, start=1):
            if as_json:
                rows = [_json_row(number, source, translations)]
            else:
                rows = _text_rows(number if nbest > 1 else None, translations, scores=scores)
            file.writelines(f"{row}\n" for row in rows)
            best = translations[0]
            num_translations += not is_blank(source)
            num_tabs += "\t" in source
            unfinished += [] if best.finished else [name]
            unreliable += [f"{number} ({doubts(best)})"] if best.is_reliable is False else []
            if is_typed:
                file.flush()
                if best.is_reliable is False:
                    note(f"may be wrong: {doubts(best)}")
    if unfinished:
        note(f"cut at the length limit: the translation of {_join(unfinished, limit=5)}")
    if num_tabs:
        lines_with_tabs = "1 line contains a tab" if num_tabs == 1 else f"{num_tabs:,} lines contain a tab"
        note(f"{lines_with_tabs}; `cut -f1 FILE | regard translate` translates the first column of a table")
    if unreliable and not is_typed:
        listed = f"line{'s' if len(unreliable) > 1 else ''} {_join(unreliable, limit=20)}"
        note(f"{len(unreliable):,} of {num_translations:,} translations may be wrong: {listed}")


def doubts(translation: Translation) -> str:
    """Why a translation may be wrong: "confidence 0.31, without 44, Smith"."""
    confidence = [] if translation.confidence is None else [f"confidence {translation.confidence:.2f}"]
    missing = [f"without {', '.join(translation.missing)}"] if translation.missing else []
    return ", ".join([*confidence, *missing])


def translate_lines(
    translator: Translator,
    lines: Iterable[tuple[str, str]],
    *,
    chunk: int = CHUNK_LINES,
    **options: Any,
) -> Iterator[tuple[str, str, list[Translation]]]:
    """Translate lines with a progress bar on stderr.

    Args:
        translator: The model.
        lines: Names, for error messages, and texts. Those of a list are checked before the first is translated.
        chunk: Lines that are read, sorted and translated together.
        options: As for `Translator.translate`.

    Yields:
        Name, text and translations, best first, of each line.
    """
    total = None
    if isinstance(lines, list):
        total = len(lines)
        translator.check_lines([text for _, text in lines], [name for name, _ in lines])
    remaining = iter(lines)
    with progress("translating", total) as advance:
        while part := list(islice(remaining, chunk)):
            names, texts = zip(*part, strict=True)
            translations = translator.translate(texts, line_names=names, progress=advance, **options)
            yield from zip(names, texts, translations, strict=True)


def named_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file with their names: "book.en, line 3"."""
    return ((f"{display_name(path)}, line {number}", line) for number, line in enumerate(read_lines(path), start=1))


def _join(names: list[str], limit: int) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _text_rows(number: int | None, translations: list[Translation], *, scores: bool) -> Iterator[str]:
    for translation in translations:
        columns = [] if number is None else [str(number)]
        confidence = math.nan if translation.confidence is None else translation.confidence
        missing = ", ".join(translation.missing)
        columns += [f"{translation.score:.4f}", f"{confidence:.4f}", missing] if scores else []
        yield "\t".join([*columns, strip_newlines(translation.text)])


def _json_row(number: int, source: str, translations: list[Translation]) -> str:
    values = [asdict(translation) for translation in translations]
    return json.dumps({"line": number, "source": source, "translations": values}, ensure_ascii=False)
