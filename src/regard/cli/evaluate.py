"""``regard evaluate``: metrics of a model on test data."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard.cli.models import MODELS, command_for, load_pipeline
from regard.cli.options import (
    DeviceOption,
    Dtype,
    JsonOption,
    ModelOption,
    ReferenceOption,
    TokenizeOption,
    join_words,
    reject_options,
)
from regard.cli.output import open_output, progress
from regard.cli.score import note_on_bleu, print_scores, read_aligned
from regard.errors import InvalidArgument, InvalidCheckpoint
from regard.text.readers import read_references
from regard.text.tables import read_texts


def evaluate(
    context: typer.Context,
    test: Annotated[
        Path,
        typer.Argument(
            help="Test data, plain or `.gz`. Translator: source, tab, reference; a repeated source brings a further "
            "reference; with `--reference`, sources. Language model: a text. Masked language model: one text per line. "
            "Classifier: text, tab, class. Tagger: CoNLL columns, or a `.jsonl` file of tokens and tags."
        ),
    ],
    model: ModelOption = None,
    reference: ReferenceOption = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size of a translator; 1 is greedy.")] = 5,
    tokenize: TokenizeOption = "13a",
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
    """Evaluate a model on test data.

    Prints BLEU, chrF and TER of a translator, with the signatures of sacreBLEU; perplexity and bits per character of a
    language model; loss, perplexity and accuracy of a masked language model, over several random draws of masks;
    accuracy and macro F1 of a classifier; precision, recall and F1 of the spans of a tagger, as seqeval computes them,
    and of each type. `--json` prints one object.

        regard evaluate test.tsv
        regard evaluate test.en --reference test.de --model marian/
        regard evaluate test.tsv --model runs/polarity/best
        regard evaluate test.conll --model runs/toy-tagging/best

    `regard score` rates files of translations and generated texts, from any system.
    """
    command = command_for(model)
    kind = MODELS[command]
    if kind.evaluation is None:
        expected = join_words([each.noun for each in MODELS.values() if each.evaluation is not None])
        raise InvalidCheckpoint(f"--model: expected {expected}, got {kind.noun} in {model}")
    from regard.pipelines import evaluation

    if command == "translate":
        sources, references = _read_test(test, reference or [])
        opened = nullcontext() if output is None else open_output(output, [test, *(reference or ())])
        with opened as file:  # before anything is translated
            translator = load_pipeline(model, command, dtype=dtype, device=device)
            with progress("translating", len(sources)) as advance:
                options: dict[str, Any] = {"beam": beam, "tokenize": tokenize, "progress": advance}
                scores, translations = evaluation.evaluate_translation(translator, sources, references, **options)
            if file is not None:
                file.writelines(f"{line}\n" for line in translations)
        print_scores(scores, as_json)
        note_on_bleu(scores, translations, tokenize)
        return
    reject_options(context, ("reference", "beam", "tokenize", "output"), f"not used with {kind.noun}")
    pipeline = load_pipeline(model, command, dtype="float32" if dtype == "auto" else dtype, device=device)
    print_scores(getattr(evaluation, kind.evaluation)(pipeline, test), as_json)


def _read_test(test: Path, references: list[Path]) -> tuple[list[str], list[list[str]]]:
    """Sources, and the references of each."""
    if not references:
        return read_references(test)
    if test == Path("-") and Path("-") in references:
        raise InvalidArgument("--reference: expected a file, got standard input, which is the test data")
    sources = list(read_texts(test))
    return sources, read_aligned(references, len(sources))
