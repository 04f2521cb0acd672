"""Layers in training: compiled, and computed again for their gradients; and weights in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers.pairwise import everything
from helpers.training_ranks import train_on
from helpers.training_runs import bytes_of, make_recipe, rows
from regard.errors import InvalidRecipe
from regard.nn import FeedForward, MultiHeadAttention, TransformerLayer, TransformerStack
from regard.training import apply_overrides, train
from regard.training.tasks.translation import TranslationTask


def losses(run: Path) -> list[float]:
    return [float(row["loss"]) for row in rows(run) if row["loss"]]


def test_recomputed_activations_change_no_bit(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["model"] |= {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}
    for name in ("stored", "computed"):
        value = "true" if name == "computed" else "false"
        options = ["--output_dir", str(tmp_path / name), f"--trainer.activation_checkpointing={value}"]
        train(make_recipe(keys, *options))
    assert bytes_of(tmp_path / "stored") == bytes_of(tmp_path / "computed")
    assert losses(tmp_path / "stored") == losses(tmp_path / "computed")


def test_recomputed_activations_are_not_stored() -> None:
    stack = TransformerStack([TransformerLayer(MultiHeadAttention(16, 4), FeedForward(16, 64)) for _ in range(4)])
    stored = []
    for stack.activation_checkpointing in (False, True):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x):
            stack(torch.randn(2, 9, 16)).hidden.sum().backward()
        stored.append(sum(sizes))
    assert stored[1] < stored[0] / 10


def test_weights_in_bfloat16_train_and_resume_bit_for_bit(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes: set[torch.dtype] = set()
    compute_metrics = TranslationTask.compute_metrics

    def with_dtype(task: TranslationTask, model: Any, sums: Sequence[float]) -> dict[str, float]:
        dtypes.add(torch.tensor(sums).dtype)
        return compute_metrics(task, model, sums)

    monkeypatch.setattr(TranslationTask, "compute_metrics", with_dtype)
    keys["trainer"]["precision"] = "bf16-true"
    train(make_recipe({**keys, "output_dir": str(tmp_path / "whole")}))
    train(make_recipe(keys, "--trainer.max_steps=14"))
    train(make_recipe(keys), resume=True)
    assert {weight.dtype for weight in load_file(tmp_path / "run/last/model.safetensors").values()} == {torch.bfloat16}
    values = [load_file(tmp_path / name / "last/model.safetensors") for name in ("run", "whole")]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[1])
    assert dtypes == {torch.float32}
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0] - 0.5


@pytest.mark.parametrize("resumes", [False, True] if everything() else [False])
def test_a_compiled_run(resumes: bool, tmp_path: Path, keys: dict[str, Any]) -> None:
    if not resumes:  # fewer kinds of layers to compile
        keys = {name: keys[name] for name in ("output_dir", "tokenizer", "optimizer", "trainer")} | {
            "task": "causal_lm"
        }
        keys["data"] = {"train": str(tmp_path / "train.tsv"), "block_size": 16, "batch_size": 4}
        keys["model"] = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}
    keys["model"] |= {"dropout": 0.2 if resumes else 0.0, "positions": "alibi"}
    keys["trainer"] |= {"max_steps": 30 if resumes else 9}
    whole = train_on(1, apply_overrides(keys, ["--output_dir", str(tmp_path / "whole"), "--trainer.compile=true"]))
    if resumes:  # bit for bit
        compiled = apply_overrides(keys, ["--trainer.compile=true"])
        train_on(1, apply_overrides(compiled, ["--trainer.max_steps=14"]))
        train_on(1, compiled, resume=True)
        assert bytes_of(tmp_path / "run") == bytes_of(whole)
    else:
        train(make_recipe(keys))
        assert losses(tmp_path / "run") == pytest.approx(losses(whole), rel=1e-5)


def test_without_a_compiler_nothing_is_compiled(keys: dict[str, Any]) -> None:
    from torch._inductor import config

    message = r"^trainer.compile: expected False without a C\+\+ compiler; install g\+\+, or set CXX, got True$"
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(InvalidRecipe, match=message):
        train(make_recipe(keys, "--trainer.compile=true"))
