"""``regard evaluate``: metrics of a model on test data, of translations, or of generated texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.models import MODELS, command_for, load_pipeline
from regard.cli.options import DeviceOption, Dtype, JsonOption, ModelOption, reject_options
from regard.cli.output import note, open_output, progress
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile
from regard.text.readers import read_lines

if TYPE_CHECKING:
    from regard.pipelines import Translator
    from regard.pipelines.evaluation import TranslationScores

TRANSLATION_LABELS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
LABELS = {
    "draws": "random draws of masks",
    "loss": "loss (nats per token)",
    "loss_std": "its standard deviation over draws",
    "accuracy": "accuracy (%)",
    "f1": "macro F1 (%)",
}


def evaluate(
    context: typer.Context,
    test: Annotated[
        Path | None,
        typer.Argument(
            help="Test data, plain or `.gz`. Translator: source, tab, reference; a repeated source brings a further "
            "reference. Language model: a text. Masked language model: one text per line. Classifier: text, tab, class."
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Source lines, instead of a file of pairs.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(help="References aligned with `--source`; repeat for further references.")
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these translations, one line per distinct source, without a model.")
    ] = None,
    model: ModelOption = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy.")] = 5,
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
        Literal["auto", Dtype],
        typer.Option(
            metavar="dtype",
            help="auto (bfloat16 for translators on CPUs that are faster at it, else float32), float32, bfloat16, "
            "float16 or float64.",
        ),
    ] = "auto",
    device: DeviceOption = "cpu",
) -> None:
    """Evaluate a model or its output.

    Prints BLEU, chrF and TER of a translator, with the signatures of sacreBLEU; perplexity and bits per character of a
    language model; loss, perplexity and accuracy of a masked language model, over several random draws of masks;
    accuracy and macro F1 of a classifier; diversity (distinct-n, self-BLEU) and ROUGE of generated texts. `--json`
    prints one object.

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
    if hypotheses is not None:
        reject_options(context, ("model", "dtype", "device", "beam"), "not used with --hypotheses")
    command = command_for(model)
    if command != "translate":
        reject_options(context, (*of_translators, "reference"), f"not used with {MODELS[command]}")
        if test is None:
            raise InvalidArgument(f"test: expected a file to evaluate {MODELS[command]}, got none")
        values = _evaluate_text_model(command, model, test, "float32" if dtype == "auto" else dtype, device)
        _print_values(values, as_json)
        return
    sources, references = _read_test(test, source, reference or [])
    inputs = [path for path in (test, source, *(reference or ()), hypotheses) if path is not None]
    opened = nullcontext() if output is None else open_output(output, inputs)
    with opened as file:  # before anything is translated
        if hypotheses is not None:
            from regard.pipelines.evaluation import score_translations

            scores = score_translations(_read_aligned(hypotheses, len(sources)), references, tokenize=tokenize)
        else:
            translator = load_pipeline(model, command, dtype=dtype, device=device)
            scores = _translate_and_score(translator, sources, references, beam, tokenize)
        if file is not None:
            file.writelines(f"{line}\n" for line in scores.translations)
    _print_scores(scores, as_json)
    if tokenize == "13a" and 2 * sum(line.endswith(" .") for line in scores.translations) > len(scores.translations):
        note("this text looks tokenized; `--tokenize none` takes its words as they are")
    if scores.bleu.score == 0:
        from regard.metrics.translation import max_words

        if (longest := max_words(scores.translations, tokenize)) < 4:
            words = "1 word" if longest == 1 else f"{longest} words"
            note(f"BLEU is 0, because it counts sequences of 4 words, and the longest translation has {words}")


def _evaluate_text_model(command: str, model: Path | None, test: Path, dtype: str, device: str) -> dict[str, Any]:
    """Scores of a language model, a masked language model or a classifier."""
    from regard.pipelines.evaluation import evaluate_classifier, evaluate_language_model, evaluate_masked_lm

    if command == "show":
        expected = "a translator, a language model, a masked language model or a classifier"
        raise InvalidCheckpoint(f"--model: expected {expected}, got {MODELS[command]} in {model}")
    pipeline = load_pipeline(model, command, dtype=dtype, device=device)
    if command == "generate":
        return asdict(evaluate_language_model(pipeline, test))
    return asdict(evaluate_masked_lm(pipeline, test) if command == "fill-mask" else evaluate_classifier(pipeline, test))


def _read_test(test: Path | None, source: Path | None, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    """Sources, and the references of each."""
    if test is not None:
        if source is not None or reference:
            option = "--reference" if source is None else "--source"
            raise InvalidArgument(
                f"{option}: expected it without a file of pairs, got {test} too; leave one of them out"
            )
        from regard.pipelines.evaluation import read_test_pairs

        return read_test_pairs(test)
    if source is None:
        raise InvalidArgument("test: expected a file of pairs, or --source with --reference, got neither")
    if not reference:
        raise InvalidArgument("--reference: expected at least one file with the references of --source, got none")
    sources = _read_aligned(source)
    columns = [_read_aligned(path, len(sources)) for path in reference]
    return sources, [list(row) for row in zip(*columns, strict=True)]


def _translate_and_score(
    translator: Translator, sources: list[str], references: list[list[str]], beam: int, tokenize: str
) -> TranslationScores:
    from regard.pipelines.evaluation import evaluate_translation

    with progress("translating", len(sources)) as advance:
        return evaluate_translation(translator, sources, references, beam=beam, tokenize=tokenize, progress=advance)


def _read_aligned(path: Path, expected: int | None = None) -> list[str]:
    """The lines of a file, as many as expected."""
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
        label = LABELS.get(name, name.replace("_", " "))
        print(f"{label}: {'none: the texts are too short' if text is None else text}")


def _print_scores(scores: TranslationScores, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: value for name, value in asdict(scores).items() if name != "translations"}))
        return
    print(f"{_count(scores.sentences, 'sentence')}, {_count(scores.references, 'reference')}")
    for name, label in TRANSLATION_LABELS.items():
        score = getattr(scores, name)
        print(f"{label:6}{score.score:6.2f}  {score.signature}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
