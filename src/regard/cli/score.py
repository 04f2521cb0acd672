"""``regard score``: metrics of translations and generated texts, from any system."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import JsonOption, ReferenceOption, TokenizeOption, reject_options
from regard.cli.output import note
from regard.errors import InvalidArgument, InvalidFile
from regard.text.lines import display_name
from regard.text.readers import read_references
from regard.text.tables import read_texts

if TYPE_CHECKING:
    from regard.metrics.score import Score


class Metric(StrEnum):
    """What ``--metric`` takes; an enum, because typer has no lists of literals."""

    BLEU = "bleu"
    CHRF = "chrf"
    TER = "ter"
    ROUGE = "rouge"
    DIVERSITY = "diversity"


OF_TRANSLATIONS = (Metric.BLEU, Metric.CHRF, Metric.TER)


def score(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="Translations or generated texts, one per line, or a `.jsonl` file of `regard generate --json`; may "
            "be `.gz`; `-` is standard input."
        ),
    ],
    reference: ReferenceOption = None,
    metric: Annotated[
        list[Metric] | None,
        typer.Option(
            metavar="metric",
            help="Repeat for several: bleu, chrf, ter, rouge, or diversity (distinct-n and self-BLEU), which needs no "
            "reference.",
            show_default="bleu, chrf and ter with references, else diversity",
        ),
    ] = None,
    tokenize: TokenizeOption = "13a",
    as_json: JsonOption = False,
) -> None:
    """Rate translations or generated texts, of any system.

    With references it prints BLEU, chrF and TER, with the signatures of sacreBLEU. Without, it prints the diversity of
    the texts: distinct-n and self-BLEU. `--json` prints one object.

        regard score system.de --reference test.de
        regard score system.de --reference test.tsv
        regard score stories.jsonl --metric rouge --reference stories.txt

    A reference file whose name ends in `.tsv` has lines of source, tab, reference, as for `regard evaluate`: the texts
    belong to its distinct sources, in order. Texts of other files belong line by line.
    """
    texts, references = list(read_texts(file)), reference or []
    metrics = list(dict.fromkeys(metric or (OF_TRANSLATIONS if references else (Metric.DIVERSITY,))))
    of_references = [name for name in metrics if name != Metric.DIVERSITY]
    if of_references and not references:
        raise InvalidArgument(
            f"--reference: expected at least one file, got none; {', '.join(of_references)} cannot be computed without"
        )
    if references and not of_references:
        raise InvalidArgument(f"--reference: expected none for {', '.join(metrics)}, got {references[0]}")
    if Metric.BLEU not in metrics:
        reject_options(context, ("tokenize",), "used only for bleu")
    if not texts:
        raise InvalidFile(f"{display_name(file)}: expected texts, one per line, got an empty file")
    columns = read_aligned(references, len(texts)) if references else []
    from regard.metrics.generation import diversity_scores, rouge_scores
    from regard.metrics.score import Score
    from regard.metrics.translation import corpus_scores

    scores = {"texts": Score(len(texts), "texts")}
    if references:
        scores["references"] = Score(sum(map(len, columns)), "references")
    if translation_metrics := [name for name in metrics if name in OF_TRANSLATIONS]:
        scores |= corpus_scores(texts, columns, translation_metrics, tokenize=tokenize)
    if Metric.ROUGE in metrics:
        if any(len(each) > 1 for each in columns):
            raise InvalidArgument("--reference: expected one reference per text for rouge, got several")
        scores |= rouge_scores(texts, [each[0] for each in columns])
    if Metric.DIVERSITY in metrics:
        scores |= diversity_scores(texts)
    print_scores(scores, as_json)
    if Metric.BLEU in metrics:
        note_on_bleu(scores, texts, tokenize)


def read_aligned(files: Sequence[Path], expected: int) -> list[list[str]]:
    """The references of each text.

    Args:
        files: Each has one reference per text, or lines of source, tab, reference if its suffix is ``.tsv``.
        expected: Number of texts.

    Raises:
        InvalidFile: If a file cannot be read or has another number of lines or sources.
    """
    references: list[list[str]] = [[] for _ in range(expected)]
    for path in files:
        is_table = path.name.removesuffix(".gz").endswith(".tsv")
        rows = read_references(path)[1] if is_table else [[text] for text in read_texts(path)]
        if len(rows) != expected:
            unit = "distinct sources" if is_table else "lines"
            raise InvalidFile(f"{display_name(path)}: expected {expected:,} {unit}, one per text, got {len(rows):,}")
        for collected, more in zip(references, rows, strict=True):
            collected += more
    return references


def print_scores(scores: Mapping[str, Score], as_json: bool) -> None:
    """Print one score per line, or an object of numbers by name, whose ``signatures`` are by name, too."""
    if as_json:
        values = {name: None if math.isnan(each.score) else each.score for name, each in scores.items()}
        signatures = {name: each.signature for name, each in scores.items() if each.signature}
        print(json.dumps(values | ({"signatures": signatures} if signatures else {})))
        return
    rows = [(each.label, _format(each.score), each.signature) for each in scores.values()]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
    for label, value, signature in rows:
        print(f"{label:{widths[0]}}  {value:>{widths[1]}}  {signature}".rstrip())


def _format(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "none"
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"


def note_on_bleu(scores: Mapping[str, Score], translations: Sequence[str], tokenize: str) -> None:
    """Print notes on stderr: on text that is tokenized already, and on a BLEU of 0 of short translations."""
    if tokenize == "13a" and 2 * sum(line.endswith(" .") for line in translations) > len(translations):
        note("this text looks tokenized; `--tokenize none` takes its words as they are")
    if scores["bleu"].score == 0:
        from regard.metrics.translation import max_words

        if (longest := max_words(translations, tokenize)) < 4:
            words = "1 word" if longest == 1 else f"{longest} words"
            note(f"BLEU is 0, because it counts sequences of 4 words, and the longest translation has {words}")
