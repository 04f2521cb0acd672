"""``regard evaluate``: metrics of a model on test data, of translations, or of generated texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.options import DeviceOption, JsonOption, ModelOption, load_pipeline, reject_options
from regard.cli.output import open_output, progress
from regard.errors import InvalidArgument, InvalidFile
from regard.text.readers import read_lines

if TYPE_CHECKING:
    from regard.pipelines import Generator, TextEncoder
    from regard.pipelines.evaluation import TranslationScores

NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def evaluate(
    context: typer.Context,
    test: Annotated[
        Path | None,
        typer.Argument(
            help="Test data, plain or `.gz`. Translator: source, tab, reference; a repeated source brings a further "
            "reference. Language model: a text. Masked language model: one text per line. Classifier: text, tab, class."
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Source lines, instead of TEST.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(help="References aligned with `--source`; repeat for further references.")
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these translations, one line per distinct source, without a model.")
    ] = None,
    model: ModelOption = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; 1 is greedy.", show_default="5")] = None,
    generated: Annotated[
        Path | None,
        typer.Option(
            help="Measure generated texts: one per line, or a `.jsonl` file of `regard generate --json`. One "
            "`--reference` may have a reference for each."
        ),
    ] = None,
    tokenize: Annotated[
        str, typer.Option(help="Tokenizer of BLEU: 13a, intl, char, zh, or none for tokenized texts.")
    ] = "13a",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the translations to this file.")] = None,
    as_json: JsonOption = False,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "float64"],
        typer.Option(
            help="Compute dtype; auto is bfloat16 for translators on CPUs that are faster at it, else float32."
        ),
    ] = "auto",
    device: DeviceOption = "cpu",
) -> None:
    """Evaluate a model or its output.

    Prints BLEU, chrF and TER of a translator, with the signatures of sacreBLEU; perplexity and bits per character of a
    language model; loss, perplexity and accuracy of a masked language model; accuracy and F1 of a classifier; diversity
    (distinct-n, self-BLEU) and ROUGE of generated texts. `--json` prints one object.

        regard evaluate test.tsv
        regard evaluate test.tsv --model runs/polarity/best
        regard evaluate --source test.en --reference test.de --hypotheses other-system.de
        regard evaluate --generated texts.jsonl
    """
    of_translators = ("source", "hypotheses", "beam", "tokenize", "output")
    if generated is not None:
        reject_options(context, ("test", *of_translators, "model", "dtype", "device"), "not used with --generated")
        if reference and len(reference) > 1:
            raise InvalidArgument("--reference: expected at most one file with --generated, got several")
        from regard.pipelines.evaluation import evaluate_generated

        _print_values(evaluate_generated(generated, reference[0] if reference else None), as_json)
        return
    from regard.models import GPT, Bert
    from regard.models.checkpoint import kind_of, model_class

    architecture = None if model is None else model_class(model)
    if model is not None and architecture in (GPT, Bert):
        reject_options(context, (*of_translators, "reference"), f"not used with {kind_of(architecture)}")
        if test is None:
            raise InvalidArgument(f"TEST: expected a file to evaluate {kind_of(architecture)}, got none")
        _print_values(_evaluate_text_model(model, test, "float32" if dtype == "auto" else dtype, device), as_json)
        return
    if hypotheses is not None:
        reject_options(context, ("model", "dtype", "device", "beam"), "not used with --hypotheses")
    scores = _evaluate_translation(test, source, reference or [], hypotheses, output, tokenize,
                                   model=model, beam=beam, dtype=dtype, device=device)  # fmt: skip
    _print_scores(scores, as_json)
    if tokenize == "13a" and 2 * sum(line.endswith(" .") for line in scores.translations) > len(scores.translations):
        print("note: this text looks tokenized; `--tokenize none` takes its words as they are", file=sys.stderr)


def _evaluate_text_model(model: Path, test: Path, dtype: str, device: str) -> dict[str, Any]:
    """Scores of a language model, a masked language model or a classifier."""
    from regard.pipelines import Generator
    from regard.pipelines.base import Pipeline
    from regard.pipelines.evaluation import evaluate_classifier, evaluate_language_model, evaluate_masked_lm

    pipeline: Generator | TextEncoder | Any = load_pipeline(model, Pipeline, dtype=dtype, device=device)
    if isinstance(pipeline, Generator):
        return asdict(evaluate_language_model(pipeline, test))
    head = pipeline.model.config.head
    if head == "masked_lm":
        return asdict(evaluate_masked_lm(pipeline, test))
    if head == "sequence_classification":
        return asdict(evaluate_classifier(pipeline, test))
    expected = "expected a BERT with the head 'sequence_classification' or 'masked_lm'"
    raise InvalidArgument(f"--model: {expected}, got {head!r} in {model}")


def _evaluate_translation(
    test: Path | None,
    source: Path | None,
    reference: list[Path],
    hypotheses: Path | None,
    output: Path | None,
    tokenize: str,
    *,
    model: Path | None,
    beam: int | None,
    dtype: str,
    device: str,
) -> TranslationScores:
    """Scores of a translator or of the translations of a file."""
    from regard.pipelines import Translator
    from regard.pipelines.evaluation import evaluate_translation, read_test_pairs, score_translations

    translator = None if hypotheses else load_pipeline(model, Translator, dtype=dtype, device=device)
    if test is not None and source is None and not reference:
        sources, references = read_test_pairs(test)
    elif test is None and source is not None and reference:
        sources = _read_aligned(source)
        columns = [_read_aligned(path, len(sources)) for path in reference]
        references = [list(row) for row in zip(*columns, strict=True)]
    else:
        raise InvalidArgument("TEST: expected a file of pairs, or --source with at least one --reference")
    with nullcontext() if output is None else open_output(output) as file:  # opened before anything is translated
        if translator is None:
            assert hypotheses is not None
            translations = _read_aligned(hypotheses, len(sources))
            scores = score_translations(translations, references, tokenize=tokenize)
        else:
            with progress("translating", len(sources)) as advance:
                scores = evaluate_translation(
                    translator, sources, references, beam=beam, tokenize=tokenize, progress=advance
                )
        if file is not None:
            file.writelines(f"{line}\n" for line in scores.translations)
    return scores


def _read_aligned(path: Path, expected: int | None = None) -> list[str]:
    """The lines of a file, as many as there are sources."""
    lines = list(read_lines(path))
    if not lines:
        raise InvalidFile(f"{path}: expected lines, got an empty file")
    if expected is not None and len(lines) != expected:
        raise InvalidFile(f"{path}: expected {expected:,} lines, one for each distinct source, got {len(lines):,}")
    return lines


def _print_values(values: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values))
        return
    for name, value in values.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' ')}: {'none: the texts are too short' if text is None else text}")


def _print_scores(scores: TranslationScores, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: value for name, value in asdict(scores).items() if name != "translations"}))
        return
    print(f"{_count(scores.sentences, 'sentence')}, {_count(scores.references, 'reference')}")
    for name, label in NAMES.items():
        score = getattr(scores, name)
        print(f"{label:6}{score.score:6.2f}  {score.signature}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
