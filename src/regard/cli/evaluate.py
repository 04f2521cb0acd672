"""``regard evaluate``: BLEU, chrF and TER of a model's translations, or of any translations in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import one_line, writing
from regard.errors import InvalidArgument, InvalidFile
from regard.text.lines import read_lines, read_pairs, references_by_source

if TYPE_CHECKING:
    from regard.text.scores import Score

NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def evaluate(
    test: Annotated[
        Path | None,
        typer.Argument(
            help="Pairs: source, tab, reference; `.gz` too. A source line that comes again brings a further reference."
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="The source lines, in place of TEST.")] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="References aligned with `--source`; give it again for each further reference."),
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these lines (one for each different source line) and run no model.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The folder of a model.", show_default="the embedded model")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept while searching; 1 is greedy.", show_default="5")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the translations to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure translations with sacreBLEU: BLEU, chrF and TER, each with the signature that makes it comparable.

    Pairs in one file, where repeated source lines are several references of one sentence:

        regard evaluate test.tsv

    Aligned files, and translations that came from elsewhere:

        regard evaluate --source test.en --reference test.de --hypotheses other-system.de
    """
    from regard.text.scores import score

    if hypotheses is not None and (model is not None or beam is not None):
        raise InvalidArgument(
            "`--hypotheses`: no model is run, so `--model` and `--beam` say nothing; leave these out, or that"
        )
    sources, references = _read(test, source, reference or [])
    with nullcontext() if output is None else writing(output) as file:  # refused before anything is translated
        if hypotheses is not None:
            lines = _hypotheses(hypotheses, len(sources))
        else:
            from regard.cli.translate import given, translations

            named = [(f"the source {text[:40]!r}", text) for text in sources]
            found = translations(named, model=model, total=len(sources), **given(beam=beam))
            lines = [one_line(best[0].text) for *_, best in found]
        if file is not None:
            file.writelines(f"{line}\n" for line in lines)
    report(score(lines, references), sentences=len(sources), references=sum(map(len, references)), as_json=as_json)


def report(scores: Mapping[str, Score], *, sentences: int, references: int, as_json: bool) -> None:
    """Print the scores, for people or as JSON."""
    if as_json:
        named = {name: {"score": found.value, "signature": found.signature} for name, found in scores.items()}
        print(json.dumps({"sentences": sentences, "references": references, **named}))
        return
    print(f"{_count(sentences, 'sentence')}, {_count(references, 'reference')}")
    for name, found in scores.items():
        print(f"{NAMES[name]:6}{found.value:6.2f}  {found.signature}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _read(test: Path | None, source: Path | None, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    """The sources and the references of each."""
    if test is not None and source is None and not reference:
        return _pairs(test)
    if test is None and source is not None and reference:
        return _aligned(source, reference)
    raise InvalidArgument("expected either TEST, a file of pairs, or `--source` with one `--reference` or more")


def _hypotheses(path: Path, wanted: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != wanted:
        raise InvalidFile(
            f"{path}: expected {wanted:,} lines, one for each different source line in its first order, but there are "
            f"{len(lines):,}"
        )
    return lines


def _pairs(test: Path) -> tuple[list[str], list[list[str]]]:
    grouped = references_by_source(_whole(test))
    if not grouped:
        raise InvalidFile(f"{test}: expected pairs, but the file is empty")
    return list(grouped), list(grouped.values())


def _whole(test: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a file, of which none may have an empty side: a test is measured whole."""
    for number, (source, target) in enumerate(read_pairs([test]), start=1):
        if not source or not target:
            raise InvalidFile(f"{test}, line {number}: expected a source, a tab and a reference, but one is empty")
        yield source, target


def _aligned(source: Path, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    sources = list(read_lines(source))
    columns = [list(read_lines(path)) for path in reference]
    counted = zip(reference, map(len, columns), strict=True)
    uneven = [f"{path} has {count:,}" for path, count in counted if count != len(sources)]
    if uneven:
        raise InvalidFile(f"expected as many lines as {source} has, {len(sources):,}, but {' and '.join(uneven)}")
    if not sources:
        raise InvalidFile(f"{source}: expected lines, but the file is empty")
    return sources, [list(row) for row in zip(*columns, strict=True)]
