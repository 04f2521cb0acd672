"""Train a small translator with and without an alignment loss, and compare BLEU and the alignment of one head.

The language is artificial: each word is translated by itself and the order is reversed, so that the correct alignment
is known. Both trainings use the same recipe; the second sets the weight of `attention_loss.alignment`, which trains one
head of the last layer to attend to the aligned source token (Garg et al. 2019).

Run: ``python examples/aligned_heads.py``
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch

from regard.data.pairs import pair_loader, tokenize_pairs
from regard.models import load_model
from regard.text.tokenizer import Tokenizer
from regard.training import Recipe, train

WORDS = [f"{start}{end}" for start in ("ba", "do", "ki", "lu", "me", "po", "ra", "ti") for end in ("n", "r", "sk", "l")]


def write_language(folder: Path, name: str, pairs: int, seed: int) -> None:
    """Write pairs of sentences and their word alignments."""
    rng = random.Random(seed)
    with (folder / f"{name}.tsv").open("w") as text, (folder / f"{name}.align").open("w") as links:
        for _ in range(pairs):
            words = rng.choices(WORDS, k=rng.randint(3, 12))
            text.write(f"{' '.join(words)}\t{' '.join(word.upper() for word in words[::-1])}\n")
            links.write(" ".join(f"{len(words) - 1 - index}-{index}" for index in range(len(words))) + "\n")


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


def alignment_accuracy(folder: Path, run: Path) -> float:
    """The fraction of target tokens for which head 0 of the last layer attends most to the aligned source token."""
    model, tokenizer = load_model(run / "last"), Tokenizer.load(run / "last")
    corpus = tokenize_pairs([folder / "valid.tsv"], tokenizer, run / "data", alignments=folder / "valid.align")
    correct = total = 0
    for batch in pair_loader(corpus, 4000):
        assert batch.alignment is not None
        with torch.no_grad():
            ids = batch.input_ids, batch.decoder_input_ids, batch.lengths
            cross = model(*ids, output_attentions=True).attentions.cross[-1].weights
        strongest = cross.at(heads=0).topk(1).indices[:, 0, :, 0]
        correct += int((strongest == batch.alignment)[batch.alignment >= 0].sum())
        total += int((batch.alignment >= 0).sum())
    return correct / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small translator with and without an alignment loss.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=4000)
    arguments = parser.parse_args()
    print(f"{'weight of the loss':20}{'BLEU':>8}{'correctly aligned':>18}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_language(folder, "train", arguments.pairs, seed=1)
        write_language(folder, "valid", 200, seed=2)
        for run, weight in (("without", 0.0), ("with", 0.5)):
            result = train(Recipe.from_dict(recipe(folder, run, weight, arguments.steps)))
            print(f"{weight:<20}{result.best_metric:8.1f}{alignment_accuracy(folder, result.output_dir):18.1%}")


if __name__ == "__main__":
    main()
