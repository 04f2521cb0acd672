"""Each task learns its data, resumes bit for bit, and reports invalid inputs."""

from __future__ import annotations

import csv
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.training_runs import make_recipe
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, InvalidRecipe, TrainingDiverged
from regard.generation import SamplingParams
from regard.models import GPT, Bert, BertConfig, Transformer, TransformerConfig, load_model, save_model
from regard.nn import T5Positions
from regard.pipelines import TextEncoder, TextGenerator
from regard.pipelines.evaluation import evaluate_tagger
from regard.text.tokenizer import load_tokenizer, train_bpe, train_translation_bpe
from regard.training import apply_overrides, load_recipe, train

LINE = "abcdefghijklmnopqrstuvwxyz .\n"
SMALL = {"d_model": 32, "num_heads": 2, "num_layers": 1, "d_ff": 32, "dropout": 0.0, "attention_dropout": 0.0}
GOOD, BAD = ["good", "fine", "lovely"], ["bad", "poor", "awful"]


def write_texts(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(["no", "yes"])
        words = draw.choices(["the", "film", "is", "a", "story"], k=draw.randint(2, 6))
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "yes" else BAD))
        rows.append(" ".join(words) + f"\t{label}")
    path.write_text("\n".join(rows) + "\n")


def write_tagged(path: Path, count: int, seed: int) -> None:
    tags = {"Anna": "B-PER", "Hill": "I-PER", "Paris": "B-LOC"}
    draw = random.Random(seed)
    sentences = [draw.choices(["lives", "works", "in", "is", *tags], k=draw.randint(2, 7)) for _ in range(count)]
    path.write_text("\n".join("".join(f"{word} {tags.get(word, 'O')}\n" for word in words) for words in sentences))


@pytest.fixture
def recipes(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The keys of a recipe of each task, each of a few seconds."""
    (tmp_path / "text.txt").write_text(LINE * 60)
    for name, count, seed in (("train", 300, 1), ("valid", 40, 2)):
        write_texts(tmp_path / f"{name}.tsv", count, seed)
        write_tagged(tmp_path / f"{name}.conll", count, seed)
        lines = random.Random(seed).choices(["a b c d e", "f g h i j k", "l m n o p"], k=count)
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    common = {
        "output_dir": str(tmp_path / "run"),
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 5, "lr_schedule": "cosine"},
        "loss": {"label_smoothing": 0},
        "trainer": {"max_steps": 60, "log_every_n_steps": 10, "accelerator": "cpu"},
        "validation": {"every_n_steps": 20, "monitor": "valid_loss"},
        "checkpoint": {"every_n_steps": 20},
    }
    folder = {"folder": str(tmp_path)}
    return {
        "causal_lm": {
            **common,
            "task": "causal_lm",
            "data": {**folder, "train": "text.txt", "valid_fraction": 0.2, "block_size": 20, "batch_size": 8},
            "tokenizer": {"type": "char"},
            "model": {**SMALL, "max_seq_len": 64, "positions": "alibi"},
        },
        "masked_lm": {
            **common,
            "task": "masked_lm",
            "data": {
                **folder,
                "train": "train.txt",
                "valid": "valid.txt",
                "max_length": 30,
                "max_tokens_per_batch": 400,
            },
            "tokenizer": {"vocab_size": 300},
            "model": {**SMALL, "max_seq_len": 30},
        },
        "classification": {
            **common,
            "task": "classification",
            "data": {**folder, "train": "train.tsv", "valid": "valid.tsv", "max_length": 30},
            "tokenizer": {"vocab_size": 300},
            "model": {**SMALL, "max_seq_len": 30},
            "validation": {"every_n_steps": 20, "monitor": "f1"},
        },
        "tagging": {
            **common,
            "task": "tagging",
            "data": {**folder, "train": "train.conll", "valid": "valid.conll", "max_length": 30},
            "tokenizer": {"vocab_size": 300},
            "model": {**SMALL, "max_seq_len": 30},
            "validation": {"every_n_steps": 20, "monitor": "f1"},
        },
    }


def measured(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["valid_loss"]]


def test_a_language_model_learns_a_line(recipes):
    recipe = make_recipe(recipes["causal_lm"])
    outcome = train(recipe)
    rows = measured(outcome.output_dir)
    assert outcome.best_metric == pytest.approx(min(float(row["valid_loss"]) for row in rows))
    last = rows[-1]
    assert float(last["perplexity"]) < 1.3 < float(rows[0]["perplexity"])
    words = len(Path(recipe.data.folder / "text.txt").read_text()) * 0.2  # as many as characters, and an end
    bits = float(last["valid_loss"]) / torch.log(torch.tensor(2.0))
    assert float(last["bits_per_character"]) == pytest.approx(float(bits), rel=2 / words)
    writer = TextGenerator.load(outcome.output_dir / "best", dtype=torch.float32)
    assert writer.generate(["fgh", "uvw"], max_new_tokens=4) == ["ijkl", "xyz "]
    assert isinstance(writer.model, GPT)


def test_a_model_of_lines_starts_texts_like_lines(recipes, tmp_path):
    lines = random.Random(0).choices(["abcd", "efgh"], k=300)
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    outcome = train(make_recipe(recipes["causal_lm"], "--data.sample_by", "line"))
    writer = TextGenerator.load(outcome.output_dir / "last", dtype=torch.float32)
    assert set(writer.generate([""] * 20, sampling=SamplingParams(0.5, seed=1))) == {"abcd", "efgh"}
    assert writer.generate(["ef"]) == ["gh"]
    likelihood = writer.likelihood("\n".join(lines[240:]) + "\n")  # the last fifth, as in training
    row = measured(outcome.output_dir)[-1]
    assert likelihood.num_characters == 240
    assert likelihood.nll / likelihood.num_tokens == pytest.approx(float(row["valid_loss"]), rel=0.05)
    assert likelihood.bits_per_character == pytest.approx(float(row["bits_per_character"]), rel=0.05)


def test_a_model_of_files_continues_prompts_only(recipes):
    keys = apply_overrides(recipes["causal_lm"], ["--trainer.max_steps", "1"])
    writer = TextGenerator.load(train(make_recipe(keys)).output_dir / "last")
    assert writer.model.config.bos_id is None
    assert writer.encode_prompts(["abc"]) == writer.tokenizer.encode(["abc"])


def test_paths_may_be_relative_to_the_working_directory(recipes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(make_recipe(recipes["classification"], "--output_dir", "first", "--trainer.max_steps", "1"))
    keys = recipes["classification"]
    del keys["tokenizer"]
    keys["model"] = {"checkpoint": "first/last", "dropout": 0.3}
    for steps in (1, 2):
        again = apply_overrides(keys, ["--output_dir", "2024_1", f"--trainer.max_steps={steps}", "--data.folder", "."])
        assert train(make_recipe(again), resume=steps == 2).step == steps
    with pytest.raises(InvalidRecipe, match=r"model\.dropout: expected 0\.3 as in the run, got None"):
        train(make_recipe({**again, "model": {"checkpoint": "first/last"}}), resume=True)


def test_the_architecture_may_be_llama(recipes):
    keys = apply_overrides(recipes["causal_lm"], ["--model.architecture", "llama", "--trainer.max_steps", "2"])
    del keys["model"]["positions"]
    outcome = train(make_recipe(keys))
    config = load_model(outcome.output_dir / "last").config
    assert (config.norm, config.gated, config.positions, config.tie_embeddings) == ("rms_norm", True, "rotary", False)


def test_a_masked_language_model_learns_positions(recipes):
    outcome = train(make_recipe(recipes["masked_lm"], "--trainer.max_steps", "240"))
    assert re.search(r"loss [\d.]+, [\d,]+ masked tokens/s", (outcome.output_dir / "train.log").read_text())
    rows = measured(outcome.output_dir)
    assert float(rows[-1]["valid_loss"]) < 0.75 * float(rows[0]["valid_loss"])
    assert float(rows[-1]["accuracy"]) > 50
    model = load_model(outcome.output_dir / "best")
    assert isinstance(model, Bert)
    assert model.config.head == "masked_lm"
    assert load_tokenizer(outcome.output_dir / "best").mask_id == 3


def test_a_classifier_learns_and_may_start_from_another_model(recipes, tmp_path):
    outcome = train(make_recipe(recipes["classification"]))
    assert re.search(r"loss [\d.]+, [\d,]+ texts/s", (outcome.output_dir / "train.log").read_text())
    assert re.search(r"accuracy [\d.]+%, f1 [\d.]+%", (outcome.output_dir / "train.log").read_text())
    rows = measured(outcome.output_dir)
    assert float(rows[-1]["accuracy"]) > 90
    assert outcome.best_metric == pytest.approx(max(float(row["f1"]) for row in rows))
    model = load_model(outcome.output_dir / "best")
    assert model.config.labels == ("no", "yes")
    tokenizer = load_tokenizer(outcome.output_dir / "best")
    ids = torch.tensor(tokenizer.encode(["the film is awful"], add_special_tokens=True, split_special_tokens=False))
    assert model(ids).logits.argmax() == 0

    keys = {**recipes["classification"], "output_dir": str(tmp_path / "tuned")}
    del keys["tokenizer"]
    keys["model"] = {"checkpoint": str(tmp_path / "run" / "best"), "dropout": 0.3}
    keys["trainer"] = {**keys["trainer"], "max_steps": 1}
    keys["optimizer"] = {**keys["optimizer"], "learning_rate": 1e-9}
    tuned = train(make_recipe(keys))
    copy = load_recipe(tmp_path / "tuned" / "recipe.yaml")
    assert copy.model.checkpoint == (tmp_path / "run" / "best").absolute()
    assert load_model(tuned.output_dir / "last").config.dropout == 0.3
    assert float(measured(tuned.output_dir)[-1]["accuracy"]) == pytest.approx(float(rows[-1]["accuracy"]), abs=10)


def test_a_tagger_learns_and_its_metrics_are_those_of_its_predictions(recipes, tmp_path):
    keys = apply_overrides(recipes["tagging"], ["--trainer.max_steps", "120", "--checkpoint.every_n_steps", "40"])
    outcome = train(make_recipe(keys))
    log = (outcome.output_dir / "train.log").read_text()
    assert re.search(r"loss [\d.]+, [\d,]+ words/s", log)
    assert "tags: B-LOC, B-PER, I-PER, O" in log
    rows = measured(outcome.output_dir)
    assert outcome.best_metric == pytest.approx(max(float(row["f1"]) for row in rows))
    assert float(rows[-1]["f1"]) > 90
    scores = evaluate_tagger(outcome.output_dir / "last", tmp_path / "valid.conll")
    for name in ("accuracy", "precision", "recall", "f1"):
        assert float(rows[-1][name]) == pytest.approx(scores[name].score)
    reader = TextEncoder.load(outcome.output_dir / "best")
    assert [tag.label for tag in reader.tag(["Anna Hill is in Paris"])[0]] == ["B-PER", "I-PER", "O", "O", "B-LOC"]

    keys = {**recipes["tagging"], "output_dir": str(tmp_path / "tuned")}
    del keys["tokenizer"]
    keys["model"] = {"checkpoint": str(outcome.output_dir / "best")}
    keys = apply_overrides(keys, ["--trainer.max_steps", "1", "--optimizer.learning_rate", "1e-9"])
    tuned = train(make_recipe(keys))
    assert float(measured(tuned.output_dir)[-1]["f1"]) == pytest.approx(outcome.best_metric)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm", "classification", "tagging"])
def test_a_resumed_training_equals_an_uninterrupted_one(recipes, tmp_path, task):
    keys = apply_overrides(recipes[task], ["--model.dropout", "0.1", "--optimizer.lr_schedule", "constant"])
    keys["trainer"]["max_steps"] = 14
    keys["checkpoint"]["every_n_steps"] = 5
    full = train(make_recipe(keys))
    keys = {**keys, "output_dir": str(tmp_path / "parts"), "trainer": {**keys["trainer"], "max_steps": 6}}
    train(make_recipe(keys))
    keys["trainer"] = {**keys["trainer"], "max_steps": 14}
    parts = train(make_recipe(keys), resume=True)
    one, other = (load_model(each.output_dir / "last").state_dict() for each in (full, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_diverging_training_stops_without_saving(recipes):
    keys = apply_overrides(recipes["causal_lm"], ["--optimizer.learning_rate", "1e30", "--trainer.max_steps", "30"])
    with pytest.raises(
        TrainingDiverged, match=r"step \d+: the training has diverged: .* lower optimizer\.learning_rate"
    ):
        train(make_recipe(keys))
    folder = Path(keys["output_dir"])
    assert not [name for name in ("last", "best", "averaged") if (folder / name).exists()]
    assert re.search(r"ended by an error: step \d+: the training has diverged", (folder / "train.log").read_text())


def test_a_run_without_its_state_is_not_restarted_over_its_models(recipes):
    recipe = make_recipe(recipes["classification"], "--trainer.max_steps", "2")
    folder = train(recipe).output_dir
    shutil.rmtree(folder / "state")
    before = (folder / "last" / "model.safetensors").read_bytes(), (folder / "metrics.csv").read_bytes()
    with pytest.raises(InvalidArgument, match=r"state: no complete state, but there are models"):
        train(recipe, resume=True)
    with pytest.raises(InvalidArgument, match="expected an empty folder, got the models of a run"):
        train(recipe)
    assert before == ((folder / "last" / "model.safetensors").read_bytes(), (folder / "metrics.csv").read_bytes())
    shutil.rmtree(folder / "last")
    assert (folder / "best").is_dir()
    with pytest.raises(InvalidArgument, match="expected an empty folder, got the models of a run"):
        train(recipe)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: a\nrun: b\n", "line 2, column 1: duplicate key 'run'"),
        ("model:\n  d_model: 8\n  d_model: 9\n", "line 3, column 3: duplicate key 'd_model'"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InvalidFile, match=message):
        load_recipe(tmp_path / "a.yaml", [])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "none"])
@pytest.mark.parametrize("task", ["causal_lm", "masked_lm", "classification", "tagging"])
def test_positions_are_chosen_by_one_key(recipes, task, positions):
    """The order of earlier tokens matters to one layer with positions, and only to it."""
    keys = apply_overrides(recipes[task], [f"--model.positions={positions}", "--trainer.max_steps=2"])
    model = load_model(train(make_recipe(keys)).output_dir / "last").eval()
    assert model.config.positions == positions
    for module in model.modules():
        if isinstance(module, T5Positions):  # they start at 0, and two steps change them little
            torch.nn.init.normal_(module.weight)
    words = torch.tensor([[5, 6, 7, 8, 9]])
    last, padded = words.clone(), torch.cat([words, torch.zeros(1, 3, dtype=torch.long)], 1)
    last[0, 4] = 10

    @torch.no_grad()
    def states(inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return model(inputs).logits if isinstance(model, GPT) else model.forward_features(inputs, lengths)[0]

    actual = states(words)
    order_is_nothing = torch.allclose(actual[:, 4], states(words[:, [0, 2, 1, 3, 4]])[:, 4], atol=1e-6)
    assert order_is_nothing == (positions == "none")
    is_causal = torch.allclose(actual[:, :4], states(last)[:, :4], atol=1e-6)
    assert is_causal == (task == "causal_lm")
    if task != "causal_lm":
        torch.testing.assert_close(states(padded, torch.tensor([5]))[:, :5], actual, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("task", "override", "words"),
    [
        ("causal_lm", "--task=causal_lmm", "task: expected one of .* got 'causal_lmm', did you mean 'causal_lm'"),
        (
            "causal_lm",
            "--data.max_tokens_per_batch=9",
            "data.max_tokens_per_batch: no such key; expected one of folder, train",
        ),
        ("causal_lm", "--data.block_size=65", "data.block_size: expected at most model.max_seq_len=64, got 65"),
        ("causal_lm", "--data.valid=text.txt", "data.valid_fraction: expected 0 with data.valid, got 0.2"),
        ("causal_lm", "--validation.monitor=bleu", "validation.monitor: expected one of valid_loss, perplexity"),
        ("causal_lm", "--model.gated=maybe", "model.gated: expected True or False, got 'maybe'"),
        ("causal_lm", "--model.architecture=[gpt]", r"model.architecture: expected one of gpt, llama, got \['gpt'\]"),
        (
            "causal_lm",
            "--model.d_model=yes",
            "model.d_model: expected an int of at least 1 and at most 268435456, got True",
        ),
        (
            "masked_lm",
            "--data.max_length=401",
            "expected at most model.max_seq_len=30, got 401.*max_tokens_per_batch=400",
        ),
        (
            "masked_lm",
            "--data.mlm_probability=1.5",
            "data.mlm_probability: expected a finite number above 0 and below 1, got 1.5",
        ),
        (
            "classification",
            "--model.checkpoint=x",
            "model.d_model: expected none with model.checkpoint, which decides it; leave",
        ),
        ("classification", "--attention_loss.entropy.weight=1", "attention_loss: no such key"),
    ],
)
def test_invalid_keys_are_named(recipes, task, override, words):
    with pytest.raises(InvalidRecipe) as caught:
        make_recipe(apply_overrides(recipes[task], [override]))
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)


def test_invalid_data_and_checkpoints_are_named(recipes, tmp_path):
    keys = recipes["classification"]
    (tmp_path / "valid.tsv").write_text("the film\tmaybe\n")
    with pytest.raises(InvalidFile, match=r"valid\.tsv, line 1: expected one of 'no', 'yes', got 'maybe'"):
        train(make_recipe(keys))
    (tmp_path / "train.tsv").write_text("the film\n")
    with pytest.raises(InvalidFile, match=r"train\.tsv, line 1: expected text, tab, class"):
        train(make_recipe(keys))
    (tmp_path / "train.tsv").write_text("".join(f"the film {n}\tder Film {n}\n" for n in range(40)))
    with pytest.raises(
        InvalidFile, match="expected texts with a few labels, got 40 labels for 40 texts; are these pairs"
    ):
        train(make_recipe(keys))
    keys = recipes["masked_lm"]
    del keys["tokenizer"]
    keys["model"] = {"checkpoint": str(tmp_path / "model")}
    with pytest.raises(InvalidCheckpoint, match=r"model: expected a folder with"):
        make_recipe(keys)
    own, sizes = train_translation_bpe(["a"], 270), {"d_model": 8, "num_heads": 2, "d_ff": 8}
    save_model(tmp_path / "model", Bert(BertConfig(270, num_layers=1, **sizes)), own)
    with pytest.raises(InvalidFile, match=r"expected a tokenizer with a mask token, got none"):
        train(make_recipe(keys))
    large = train_bpe(["a"] * 9, 270)
    save_model(tmp_path / "model", Bert(BertConfig(large.vocab_size - 1, num_layers=1, **sizes)), large)
    with pytest.raises(
        InvalidArgument, match=r"model: expected a tokenizer with at most 2\d\d tokens as in the model, got 2\d\d"
    ):
        train(make_recipe(keys))
    pipeline = train_bpe(["a"], 270)
    save_model(tmp_path / "model", Bert(BertConfig(270, num_layers=1, max_seq_len=29, **sizes)), pipeline)
    with pytest.raises(InvalidRecipe, match=r"data\.max_length: expected at most the checkpoint's max_seq_len=29, got"):
        train(make_recipe(keys))
    save_model(tmp_path / "model", Transformer(TransformerConfig(270, **sizes)), pipeline)
    with pytest.raises(InvalidCheckpoint, match=r"folder: expected a BERT, got an encoder-decoder in "):
        train(make_recipe(keys))
