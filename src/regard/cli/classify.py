"""``regard classify``: the class of each text, by a trained classifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import DeviceOption, DtypeOption, JsonOption, OutputOption, RequiredModelOption
from regard.cli.output import open_output, strip_newlines
from regard.errors import InvalidFile
from regard.text.display import is_blank
from regard.text.lines import display_name, read_lines


def classify(
    file: Annotated[Path, typer.Argument(help="Texts, one per line; `-` is standard input.")] = Path("-"),
    *,
    model: RequiredModelOption,
    as_json: JsonOption = False,
    output: OutputOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Classify texts: the most probable class of each line and its probability.

    Prints class, tab, probability; `--json` prints one object per text: text, label, probabilities. An empty line has
    no class: its output is an empty line, or an object with the label null.

        echo "A story of two halves." | regard classify --model runs/polarity/best
        regard classify reviews.txt --model runs/polarity/best --json -o classes.jsonl

    Takes models that `regard train` makes from classification recipes, and BERT or RoBERTa classifiers. Texts that are
    too long are truncated. `regard evaluate` measures a classifier on texts with known classes.
    """
    texts = list(read_lines(file))
    if not texts:
        raise InvalidFile(f"{display_name(file)}: expected texts, one per line, got an empty file")
    encoder = load_pipeline(model, "classify", dtype=dtype, device=device)
    predictions = iter(encoder.classify([text for text in texts if not is_blank(text)]))
    with open_output(output, [file]) as out:
        for text in texts:
            label, probabilities = next(predictions) if not is_blank(text) else (None, {})
            if as_json:
                values = {"text": text, "label": label, "probabilities": probabilities}
                out.write(json.dumps(values, ensure_ascii=False) + "\n")
            else:
                out.write("\n" if label is None else f"{strip_newlines(label)}\t{probabilities[label]:.4f}\n")
