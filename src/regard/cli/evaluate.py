"""``regard evaluate``: BLEU, chrF and TER of a model's translations, or of any translations in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import one_line, read_lines, writing
from regard.errors import InvalidArgument, InvalidFile

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
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses kept while searching; 1 is greedy.")] = 5,
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

    sources, references = _read(test, source, reference or [])
    if hypotheses is not None:
        lines = list(read_lines(hypotheses))
        if len(lines) != len(sources):
            raise InvalidFile(
                f"{hypotheses}: expected {len(sources):,} lines, one for each different source line in its first "
                f"order, but there are {len(lines):,}"
            )
    else:
        from regard.cli.translate import translations

        lines = [
            one_line(best[0].text) for _, best in translations(sources, model=model, total=len(sources), beam=beam)
        ]
    if output is not None:
        with writing(output) as file:
            file.writelines(f"{line}\n" for line in lines)
    report(score(lines, references), sentences=len(sources), references=sum(map(len, references)), as_json=as_json)


def report(scores: Mapping[str, Score], *, sentences: int, references: int, as_json: bool) -> None:
    """Print the scores, for people or as JSON."""
    if as_json:
        named = {name: {"score": found.value, "signature": found.signature} for name, found in scores.items()}
        print(json.dumps({"sentences": sentences, "references": references, **named}))
        return
    print(f"{sentences:,} sentences, {references:,} references")
    for name, found in scores.items():
        print(f"{NAMES[name]:6}{found.value:6.2f}  {found.signature}")


def _read(test: Path | None, source: Path | None, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    """The sources and the references of each."""
    if test is not None and source is None and not reference:
        return _pairs(test)
    if test is None and source is not None and reference:
        return _aligned(source, reference)
    raise InvalidArgument("expected either TEST, a file of pairs, or `--source` with one `--reference` or more")


def _pairs(test: Path) -> tuple[list[str], list[list[str]]]:
    grouped: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(test), start=1):
        pair = line.split("\t")
        if len(pair) < 2 or not pair[0].strip() or not pair[1].strip():
            raise InvalidFile(
                f"{test}, line {number}: expected a source, a tab and a reference, but it is {line[:60]!r}"
            )
        grouped.setdefault(pair[0], []).append(pair[1])
    if not grouped:
        raise InvalidFile(f"{test}: expected pairs, but the file is empty")
    return list(grouped), list(grouped.values())


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
