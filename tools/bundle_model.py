"""Put a trained translator into the package: averaged weights in bfloat16, tokenizer, and a model card.

``python tools/bundle_model.py RUN DATA``, or ``make model DATA=...``, which trains first. RUN is the run folder of
``regard train``; DATA holds ``test.tsv.gz``, on which the model is evaluated with beam 5. All German lines of the same
English sentence are its references. The confidence of the old model is removed: run
``experiments/translation_confidence.py`` for the new one.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
import yaml

from regard.errors import RegardError
from regard.files import atomic_folder
from regard.metrics.translation import Score, corpus_scores
from regard.models import load_model, save_model
from regard.pipelines import Translator, fastest_dtype
from regard.pipelines.confidence import CONFIDENCE_FILE
from regard.text.readers import group_references, read_pairs
from regard.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "experiments"))
from results import effort  # noqa: E402

PLACE = ROOT / "src/regard/bundled/tatoeba-en-de"

CARD = Path(__file__).with_name("model_card.md")  # template


def main(
    run: Annotated[Path, typer.Argument(help="Run folder of `regard train`.")],
    data: Annotated[Path, typer.Argument(help="Folder with test.tsv.gz.")],
    weights: Annotated[str, typer.Option(help="Model of the run: averaged, best or last.")] = "averaged",
    place: Annotated[Path, typer.Option(help="Output folder.")] = PLACE,
    machine: Annotated[str, typer.Option(help="Machine of the training.")] = f"{os.cpu_count()} CPU cores",
) -> None:
    """Write a model of RUN into the package, evaluate it on DATA, and write its card."""
    try:
        # read all files before the slow part, so that a missing one fails early
        references = group_references(read_pairs([data / "test.tsv.gz"]))
        model, tokenizer, past = load_model(run / weights), Tokenizer.load(run / weights), history(run, weights)
        with atomic_folder(place, remove=[CONFIDENCE_FILE]) as staging:  # all or nothing
            save_model(staging, model, tokenizer, dtype=torch.bfloat16)
            figures = {**evaluate(staging, references), **past, **architecture(staging)}
            card = CARD.read_text(encoding="utf-8").format(machine=machine, **figures)
            (staging / "README.md").write_text(card, encoding="utf-8")
    except (RegardError, OSError) as error:
        sys.exit(f"bundle_model: {error}")
    print(f"{place}: BLEU {figures['bleu'].score:.2f}, {sum(f.stat().st_size for f in place.iterdir()) / 1e6:.1f} MB")


def evaluate(place: Path, references: dict[str, list[str]]) -> dict[str, Score | int]:
    """BLEU, chrF and TER of the stored model."""
    translator = Translator.load(place, dtype=fastest_dtype())
    translations = [best[0].text for best in translator.translate(list(references), beam=5)]
    scores = corpus_scores(translations, list(references.values()))
    return {**scores, "sentences": len(references), "references": sum(map(len, references.values()))}


def history(run: Path, weights: str) -> dict[str, object]:
    """Seed, data, weights, steps and duration of the training, from the run folder."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    tokens, seconds = effort(run)
    return {
        "seed": recipe["seed"],
        "data": "`train.tsv.gz`: pairs of English and German sentences of Tatoeba",
        "weights": {
            "averaged": f"the mean of the weights of the last {recipe['checkpoint']['average_last']} snapshots",
            "best": "the weights of the best validation",
        }.get(weights, "the last weights"),
        "steps": steps[-1],
        "effort": f", {tokens / 1e6:.0f} million target tokens, {seconds / 3600:.1f} hours",
    }


def architecture(place: Path) -> dict[str, object]:
    """Sizes of the model, and the versions of this repository and of torch."""
    model = load_model(place)
    config = model.config
    commit = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "layers": f"{config.num_encoder_layers} encoder and {config.num_decoder_layers} decoder layers",
        "d_model": config.d_model,
        "heads": config.num_heads,
        "d_ff": config.d_ff,
        "norm": "pre" if config.norm_first else "post",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "megabytes": (place / "model.safetensors").stat().st_size / 1e6,
        "vocabulary": config.vocab_size,
        "commit": commit or "none",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    typer.run(main)
