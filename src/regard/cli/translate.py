"""``regard translate``: lines in, translated lines out."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import FastestDtype, dtype_of, require_model
from regard.cli.output import is_typed, one_line, writing
from regard.errors import InvalidArgument
from regard.text.readers import display_name, read_lines

if TYPE_CHECKING:
    from regard.generation.sampling import SamplingParams
    from regard.pipelines.translator import Translation

CHUNK = 1024  # lines that are sorted by length together: enough for full batches, few enough that output begins soon


def translate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of lines, plain or `.gz`; `-` is standard input.", show_default="standard input"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to this file, complete or not at all.",
            show_default="standard output",
        ),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The folder of a model.", show_default="the bundled model")] = None,
    dtype: FastestDtype = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept while searching; 1 is greedy.", show_default="5")
    ] = None,
    nbest: Annotated[
        int, typer.Option(min=1, help="Translations a line; above 1 each is preceded by its line number.")
    ] = 1,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1 prefers longer translations, below 1 shorter ones.", show_default="1.0"),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw translations at random instead of searching for the best.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(help="With `--sample`: below 1 keeps to likely tokens, above 1 strays.", show_default="1.0"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="With `--sample`: draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With `--sample`: draw from the likeliest tokens that make up p.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="With `--sample`: the same seed draws the same translations.")
    ] = None,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Put score and confidence before each translation (nan for models without one); `--json` has both.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object a line: texts, scores, confidences, tokens, finished."),
    ] = False,
) -> None:
    """Translate lines of text; an empty line stays empty, and line n of the output is line n of the input.

    The bundled model translates short, everyday sentences from English to German, as in a phrase book. It fails on
    news and technical text. Its translations have a confidence: the probability that they are acceptable. A note on
    standard error lists the lines below 0.5, where most translations are wrong.

    From a pipe, up to 1,024 lines together; typed by hand, a line at a time:

        echo "Where is the station?" | regard translate

    From a file to a file, the three best translations of each line with their scores:

        regard translate book.en --nbest 3 --scores --output book.de
    """
    paths = files or [Path("-")]
    lines: Iterable[tuple[str, str]] = chain.from_iterable(map(named_lines, paths))
    total = None
    if Path("-") not in paths:
        lines = list(lines)  # so a bad file is refused before the first line is translated
        total = len(lines)
    by_hand = paths == [Path("-")] and is_typed()
    searching = given(beam=beam, length_penalty=length_penalty)
    sampling = _sampling(sample, given(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed), searching)
    with writing(output) as file:
        found = translations(
            lines,
            model=model,
            dtype=dtype,
            total=total,
            chunk=1 if by_hand else CHUNK,
            sampling=sampling,
            nbest=nbest,
            **searching,
        )
        cut, doubtful = [], []
        for number, (name, source, best) in enumerate(found, start=1):
            rows = [_json(number, source, best)] if as_json else _rows(number, best, nbest=nbest, scores=scores)
            file.writelines(f"{row}\n" for row in rows)
            cut += [] if best[0].finished else [name]
            doubtful += [str(number)] if best[0].is_reliable is False else []
            if by_hand:
                file.flush()
                if best[0].is_reliable is False:
                    print(f"note: low confidence: {best[0].confidence:.2f}", file=sys.stderr)
    if cut:
        print(f"note: cut at the length limit: the translation of {_shortened(cut, 5)}", file=sys.stderr)
    if doubtful and not by_hand:
        where = f"line{'s' if len(doubtful) > 1 else ''} {_shortened(doubtful, 20)}"
        print(f"note: low confidence in {len(doubtful):,} of {number:,} translations: {where}", file=sys.stderr)


def _shortened(names: list[str], limit: int) -> str:
    """The names up to a limit, and the number of the others."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def translations(
    lines: Iterable[tuple[str, str]],
    *,
    model: Path | None,
    dtype: str | None = None,
    total: int | None = None,
    chunk: int = CHUNK,
    sampling: SamplingParams | None = None,
    **options: Any,
) -> Iterator[tuple[str, str, list[Translation]]]:
    """Each line with its name and its translations, best first, while a bar on stderr shows how far it is.

    Args:
        lines: What to translate, each after what errors call it.
        model: The folder of a model; None is the bundled one.
        dtype: The name of what it computes in; None is the fastest.
        total: The number of lines, where it is known.
        chunk: Lines that are read, sorted and translated together.
        sampling: As ``Translator.translate`` takes it; one generator draws for all lines.
        options: As ``Translator.translate`` takes them.
    """
    from regard.models import EncoderDecoder
    from regard.pipelines.translator import Translator

    if model is not None:
        require_model(model, EncoderDecoder)
    translator = Translator.load(model, dtype=dtype_of(dtype))
    sampling = None if sampling is None else sampling.with_generator(translator.device)
    waiting = iter(lines)
    with _bar(total) as advance:
        while part := list(islice(waiting, chunk)):
            names, texts = zip(*part, strict=True)
            found = translator.translate(texts, line_names=names, sampling=sampling, **options)
            yield from zip(names, texts, found, strict=True)
            advance(len(part))


def named_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each after its name: "book.en, line 3"."""
    return ((f"{display_name(path)}, line {number}", line) for number, line in enumerate(read_lines(path), start=1))


@contextmanager
def _bar(total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar where someone sees it, and nothing where stderr goes to a file or the text is typed by hand."""
    if not sys.stderr.isatty() or (total is None and is_typed()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, so that the others keep the defaults of what they are handed to."""
    return {name: value for name, value in options.items() if value is not None}


def _sampling(wanted: bool, drawing: dict[str, Any], searching: dict[str, Any]) -> SamplingParams | None:
    """The rules of drawing, if that is wanted; what only searching knows must not be beside them, nor the reverse."""
    idle = ", ".join(f"`--{name.replace('_', '-')}`" for name in (searching if wanted else drawing))
    if idle and wanted:
        raise InvalidArgument(f"{idle}: says how to search, but `--sample` draws at random; leave one of them out")
    if idle:
        raise InvalidArgument(f"{idle}: expected together with `--sample`, which is not there; add it, or leave it out")
    from regard.generation.sampling import SamplingParams

    return SamplingParams(**drawing) if wanted else None


def _rows(number: int, best: list[Translation], *, nbest: int, scores: bool) -> Iterator[str]:
    for translation in best:
        columns = [str(number)] if nbest > 1 else []
        confidence = math.nan if translation.confidence is None else translation.confidence
        columns += [f"{translation.score:.4f}", f"{confidence:.4f}"] if scores else []
        yield "\t".join([*columns, one_line(translation.text)])


def _json(number: int, source: str, best: list[Translation]) -> str:
    found = [asdict(each) for each in best]
    return json.dumps({"line": number, "source": source, "translations": found}, ensure_ascii=False)
