"""A small translator, trained with and without a loss on its attention: what does teaching it who belongs to whom do?

The language is made up: a sentence is translated word by word, and its order turned round. So it is known which words
belong together, and a word aligner's work can be played. Both trainings are one recipe; the second gives
`attention.alignment` a weight, so that one head of the last layer is told where to look (Garg et al. 2019).

Run: ``python examples/aligned_heads.py``
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch

from regard.data.pairs import PairLoader, tokenize_pairs
from regard.models import load_model
from regard.text.tokenizer import Tokenizer
from regard.training import Recipe, train

WORDS = [f"{start}{end}" for start in ("ba", "do", "ki", "lu", "me", "po", "ra", "ti") for end in ("n", "r", "sk", "l")]


def write_language(folder: Path, name: str, pairs: int, seed: int) -> None:
    """Pairs of sentences, and which of their words belong together."""
    draw = random.Random(seed)
    with (folder / f"{name}.tsv").open("w") as text, (folder / f"{name}.align").open("w") as links:
        for _ in range(pairs):
            words = draw.choices(WORDS, k=draw.randint(3, 12))
            text.write(f"{' '.join(words)}\t{' '.join(word.upper() for word in words[::-1])}\n")
            links.write(" ".join(f"{len(words) - 1 - place}-{place}" for place in range(len(words))) + "\n")


def recipe(folder: Path, run: str, weight: float, steps: int) -> dict[str, object]:
    return {
        "output_dir": str(folder / run),
        "data": {"folder": str(folder), "train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 1500},
        "tokenizer": {"vocab_size": 500},
        "model": {"d_model": 64, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "d_ff": 128},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 100},
        "attention_loss": {"alignment": {"weight": weight, "file": "train.align"}},
        "trainer": {"max_steps": steps, "log_every_n_steps": steps, "accelerator": "cpu"},
        "validation": {"every_n_steps": steps, "bleu_sentences": 100},
    }


def rightly_aligned(folder: Path, run: Path) -> float:
    """The share of target words for which the first head of the last layer looks at the right source word most."""
    model, tokenizer = load_model(run / "last"), Tokenizer.load(run / "last")
    corpus = tokenize_pairs([folder / "valid.tsv"], tokenizer, run / "data", alignments=folder / "valid.align")
    right = total = 0
    for batch in PairLoader(corpus, 4000):
        assert batch.alignment is not None
        with torch.no_grad():
            ids = batch.input_ids, batch.decoder_input_ids, batch.lengths
            cross = model(*ids, output_attentions=True).attentions.cross[-1].weights
        strongest = cross.at(heads=0).topk(1).indices[:, 0, :, 0]
        right += int((strongest == batch.alignment)[batch.alignment >= 0].sum())
        total += int((batch.alignment >= 0).sum())
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small translator with and without a loss on its attention.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=4000)
    arguments = parser.parse_args()
    print(f"{'weight of the loss':20}{'BLEU':>8}{'rightly aligned':>18}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_language(folder, "train", arguments.pairs, seed=1)
        write_language(folder, "valid", 200, seed=2)
        for run, weight in (("without", 0.0), ("with", 0.5)):
            outcome = train(Recipe.from_dict(recipe(folder, run, weight, arguments.steps)))
            print(f"{weight:<20}{outcome.best_metric:8.1f}{rightly_aligned(folder, outcome.output_dir):18.1%}")


if __name__ == "__main__":
    main()
