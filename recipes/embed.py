"""Put a trained translator into the package: averaged weights in bfloat16, tokenizer, and a card with its figures.

Run: ``python recipes/embed.py RUN DATA``, or ``make model DATA=...``, which trains first. RUN is the run folder of
``regard train``; DATA holds ``test.tsv.gz``, on which the model is measured with beam 5; every German line of an
English sentence is one of its references.
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
from results import effort

from regard.errors import RegardError
from regard.generation import Translator
from regard.models.checkpoint import load_model, replacing_files, save_model
from regard.text.lines import read_pairs, references_by_source
from regard.text.scores import Score, score
from regard.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "src/regard/embedded/tatoeba-en-de"

CARD = Path(__file__).with_name("card.md")  # with a place for each figure


def main(
    run: Annotated[Path, typer.Argument(help="The run folder of `regard train`.")],
    data: Annotated[Path, typer.Argument(help="The folder with test.tsv.gz.")],
    weights: Annotated[str, typer.Option(help="Which of the run's models: averaged, best or last.")] = "averaged",
    place: Annotated[Path, typer.Option(help="Where the model goes.")] = PLACE,
    machine: Annotated[str, typer.Option(help="On what it was trained.")] = f"{os.cpu_count()} CPU cores",
) -> None:
    """Write a model of RUN into the package, measure them on DATA, and write the card."""
    try:
        # all that may be missing comes before what takes long
        references = references_by_source(read_pairs([data / "test.tsv.gz"]))
        model, tokenizer, past = load_model(run / weights), Tokenizer.load(run / weights), history(run, weights)
        with replacing_files(place) as staging:  # all or nothing
            save_model(staging, model, tokenizer, dtype=torch.bfloat16)
            figures = {**measure(staging, references), **past, **architecture(staging)}
            card = CARD.read_text(encoding="utf-8").format(machine=machine, **figures)
            (staging / "README.md").write_text(card, encoding="utf-8")
    except (RegardError, OSError) as error:
        sys.exit(f"embed: {error}")
    print(f"{place}: BLEU {figures['bleu'].value:.2f}, {sum(f.stat().st_size for f in place.iterdir()) / 1e6:.1f} MB")


def measure(place: Path, references: dict[str, list[str]]) -> dict[str, Score | int]:
    """BLEU, chrF and TER of the stored model."""
    translations = [best[0].text for best in Translator.load(place).translate(list(references), beam=5)]
    found = score(translations, list(references.values()))
    return {**found, "sentences": len(references), "references": sum(map(len, references.values()))}


def history(run: Path, weights: str) -> dict[str, object]:
    """What the run folder tells of the training."""
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    tokens, seconds = effort(run)
    return {
        "seed": recipe["seed"],
        "data": "`train.tsv.gz`: pairs of English and German sentences of Tatoeba",
        "weights": {
            "averaged": f"the mean of the weights of the last {recipe['checkpoint']['average']} snapshots",
            "best": "the weights of the best validation",
        }.get(weights, "the last weights"),
        "steps": steps[-1],
        "effort": f", {tokens / 1e6:.0f} million target tokens, {seconds / 3600:.1f} hours",
    }


def architecture(place: Path) -> dict[str, object]:
    """The model's sizes, and what it was made with."""
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
