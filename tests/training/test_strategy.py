"""Processes that divide the model and the data train what one process does with the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers.pairwise import each_value, everything
from helpers.training_ranks import train_on
from helpers.training_runs import make_recipe, rows, write_corpus
from regard.errors import InvalidRecipe
from regard.training import apply_overrides, train

STRATEGIES = {  # processes, keys, and shares of the data
    "ddp": (2, ["--trainer.strategy=ddp"], 2),
    "fsdp": (2, ["--trainer.strategy=fsdp"], 2),
    "tensor parallel": (2, ["--trainer.tensor_parallel=2"], 1),
    "both": (4, ["--trainer.tensor_parallel=2"], 2),
}
if everything():
    STRATEGIES |= {
        "ddp on 4": (4, ["--trainer.strategy=ddp"], 4),
        "fsdp on 4": (4, ["--trainer.strategy=fsdp"], 4),
        "tensor parallel on 4": (4, ["--trainer.tensor_parallel=4"], 1),
    }
STEPS = 50 if everything() else 20
LAYERS: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 32, "dropout": 0.0}
MODELS: dict[str, Any] = {
    "translation": {**LAYERS, "num_encoder_layers": 2, "num_decoder_layers": 1, "positions": "t5"},
    "relative": {**LAYERS, "num_encoder_layers": 1, "num_decoder_layers": 2, "positions": "relative"},
    "causal_lm": {**LAYERS, "architecture": "llama", "num_layers": 2, "max_seq_len": 64},
    "classification": {**LAYERS, "num_layers": 2, "attention_dropout": 0.0, "positions": "alibi"},
}


@pytest.fixture
def texts(tmp_path: Path, keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of a run of which each step is a row of its metrics."""
    write_corpus(tmp_path / "train.tsv", 1200, seed=1)
    # each epoch has at least 200 batches, so that one process does not begin an epoch earlier than several
    sentences = [line.partition("\t")[0] for line in (tmp_path / "train.tsv").read_text().splitlines()]
    labeled = [f"{sentence}\t{'animal' if sentence[-5:] > 'cats' else 'other'}" for sentence in sentences]
    for name, lines in (("text", sentences), ("labels", labeled)):
        (tmp_path / f"train.{name}").write_text("\n".join(lines))
        # 37 batches, so that a process has one less than another
        (tmp_path / f"valid.{name}").write_text("\n".join(lines[:73]))
    keys["trainer"] |= {"max_steps": STEPS, "log_every_n_steps": 1}
    keys["optimizer"]["learning_rate"] = 0.003  # a larger one amplifies the rounding
    keys["validation"] = {"every_n_steps": 2 * STEPS // 5}
    keys["checkpoint"] = {"every_n_steps": 4 * STEPS // 5, "average_last": 2, "snapshot_every_n_steps": 2 * STEPS // 5}
    return keys


def task_keys(keys: dict[str, Any], model: str) -> dict[str, Any]:
    """The keys for a model."""
    keys = {**keys, "model": MODELS[model]}
    folder = keys["data"]["folder"]
    if model == "causal_lm":
        data = {"train": "train.text", "valid": "valid.text", "block_size": 8, "batch_size": 2}
    elif model == "classification":
        data = {"train": "train.labels", "valid": "valid.labels", "batch_size": 2}
    else:
        data = {"train": "train.tsv", "valid": "valid.tsv", "max_tokens_per_batch": 80, "max_length": 70}
        return apply_overrides({**keys, "data": {"folder": folder, **data}}, ["--validation.bleu_sentences=8"])
    return {**keys, "task": model, "data": {"folder": folder, **data}}


@pytest.mark.parametrize(("strategy", "model"), each_value(STRATEGIES, MODELS))
def test_losses_are_those_of_one_process(strategy: str, model: str, tmp_path: Path, texts: dict[str, Any]) -> None:
    keys, (count, options, shares) = task_keys(texts, model), STRATEGIES[strategy]
    if model == "relative" and "tensor" not in options[0]:
        keys = apply_overrides(keys, ["--attention_loss.coverage.weight=0.1", "--attention_loss.coverage.kind=encoder"])
    many = train_on(count, apply_overrides(keys, ["--output_dir", str(tmp_path / "many"), *options]))
    one = apply_overrides(keys, ["--output_dir", str(tmp_path / "one"), f"--trainer.accumulate_grad_batches={shares}"])
    train(make_recipe(one))
    for left, right in zip(rows(many), rows(tmp_path / "one"), strict=True):
        assert left["step"] == right["step"]
        for column in right.keys() - {"tokens_per_second", "step"}:
            assert bool(left[column]) == bool(right[column])
            if right[column]:
                relative = 0 if column.endswith("loss") else 1e-5  # perplexity and scores
                expected = pytest.approx(float(right[column]), abs=1e-5, rel=relative)
                assert float(left[column]) == expected, (column, left["step"])
    for name in ("last", "best", "averaged"):
        actual, expected = (load_file(run / name / "model.safetensors") for run in (many, tmp_path / "one"))
        assert actual.keys() == expected.keys()
        for key, weight in expected.items():
            kept = torch.ones(len(weight), dtype=torch.bool)
            if key.endswith("in_proj.bias"):  # the key's changes nothing: its gradient is rounding
                kept.view(3, -1)[1] = False
            torch.testing.assert_close(actual[key][kept], weight[kept], rtol=1e-3, atol=1e-4)
    ranks = [torch.load(many / f"rank{rank}.pt", weights_only=True) for rank in range(count)]
    assert all(torch.equal(rank[name], ranks[0][name]) for rank in ranks for name in rank)


def test_a_run_goes_on_with_another_strategy(tmp_path: Path, texts: dict[str, Any]) -> None:
    keys = task_keys(texts, "relative")
    whole = ["--output_dir", str(tmp_path / "whole"), "--trainer.accumulate_grad_batches=2"]
    train(make_recipe(apply_overrides(keys, whole)))
    parts = apply_overrides(keys, ["--output_dir", str(tmp_path / "parts")])
    train_on(4, apply_overrides(parts, ["--trainer.tensor_parallel=2", f"--trainer.max_steps={STEPS // 2}"]))
    train_on(2, apply_overrides(parts, ["--trainer.strategy=fsdp"]), resume=True)
    losses = [[float(row["loss"]) for row in rows(tmp_path / name) if row["loss"]] for name in ("whole", "parts")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_all_options_together_with_dropout(tmp_path: Path, texts: dict[str, Any]) -> None:
    keys = apply_overrides(task_keys(texts, "causal_lm"), ["--model.dropout=0.2", "--model.attention_dropout=0.2"])
    keys = apply_overrides(keys, ["--trainer.precision=bf16-true", "--trainer.tensor_parallel=2"])
    keys = apply_overrides(keys, ["--output_dir", str(tmp_path / "run"), "--trainer.activation_checkpointing=true"])
    keys["trainer"]["max_steps"], keys["optimizer"]["learning_rate"] = 30, 0.01
    run = train_on(2, keys)
    losses = [float(row["loss"]) for row in rows(run) if row["loss"]]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert {weight.dtype for weight in load_file(run / "last" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--trainer.tensor_parallel=3", "--model.num_heads=12", "--model.d_model=24"],
            "trainer.tensor_parallel: expected a divisor of model.d_ff=32, got 3",
        ),
        (
            ["--trainer.tensor_parallel=4", "--model.num_kv_heads=2"],
            "expected a divisor of model.num_kv_heads=2, got 4",
        ),
        (["--trainer.tensor_parallel=2", "--model.d_ff=33"], "expected a divisor of model.d_ff=33, got 2"),
        (["--trainer.tensor_parallel=2"], "trainer.tensor_parallel: expected a divisor of 1, the number of processes"),
        (
            ["--trainer.tensor_parallel=2", "--trainer.strategy=ddp"],
            "trainer.strategy: expected 'auto' or 'fsdp' with trainer.tensor_parallel=2, got 'ddp'",
        ),
        (
            ["--trainer.tensor_parallel=2", "--attention_loss.coverage.weight=1"],
            "trainer.tensor_parallel: expected 1 with coverage_loss, for which one process needs all heads, got 2",
        ),
        (["--trainer.strategy=zero"], "trainer.strategy: expected one of auto, ddp, fsdp, got 'zero'"),
        (["--trainer.compile=maybe"], "trainer.compile: expected True or False, got 'maybe'"),
        (["--trainer.precision=16"], "trainer.precision: expected one of 32, bf16-mixed, bf16-true, got 16"),
    ],
)
def test_what_cannot_run_is_one_sentence(options: list[str], message: str, texts: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        train(make_recipe(task_keys(texts, "translation"), *options))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("key", ["tensor_parallel=2", "activation_checkpointing=true", "compile=true"])
def test_a_model_without_transformer_layers_has_none_to_change(key: str, texts: dict[str, Any]) -> None:
    name, _, value = key.partition("=")
    default = "1" if value == "2" else "False"
    message = f"trainer.{name}: expected {default} for model.architecture 'rnn_search', which has no Transformer layers"
    with pytest.raises(InvalidRecipe, match=message):
        make_recipe({**texts, "model": {"architecture": "rnn_search"}}, f"--trainer.{key}")
