"""``regard classify``: the class of each text, by a trained classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import ExactDtype, dtype_of, require_model
from regard.cli.output import one_line, writing
from regard.errors import InvalidFile
from regard.text.readers import read_lines


def classify(
    file: Annotated[Path, typer.Argument(help="Texts, one a line; `-` reads standard input.")] = Path("-"),
    *,
    model: Annotated[Path, typer.Option(help="Model folder: a run's, or a BERT or RoBERTa classifier checkpoint.")],
    dtype: ExactDtype = "float32",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a text: text, label, probabilities.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Classify texts: the most probable class of each line, and its probability.

        echo "A story of two halves." | regard classify --model runs/polarity/best
        regard classify reviews.txt --model runs/polarity/best --json -o classes.jsonl

    Texts that are too long are truncated. `regard evaluate` measures a classifier on texts with known classes.
    """
    from regard.models import Bert
    from regard.pipelines.text_encoder import TextEncoder

    require_model(model, Bert)
    texts = list(read_lines(file))
    if not texts:
        raise InvalidFile(f"{file}: expected texts, one a line, got none")
    predictions = TextEncoder.load(model, dtype=dtype_of(dtype)).classify(texts)
    with writing(output) as out:
        for text, prediction in zip(texts, predictions, strict=True):
            if as_json:
                values = {"text": text, "label": prediction.label, "probabilities": prediction.probabilities}
                out.write(json.dumps(values, ensure_ascii=False) + "\n")
            else:
                out.write(f"{one_line(prediction.label)}\t{prediction.probabilities[prediction.label]:.4f}\n")
