"""Trainings of a tiny model: the files they write, how they stop, and how they resume."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from helpers.full_disk import full_disk
from helpers.training_runs import bytes_of, make_recipe, rows
from regard.data import token_dataset
from regard.data.pairs import collate_sources
from regard.errors import InvalidFile, InvalidRecipe
from regard.generation import greedy
from regard.models import load_model
from regard.text.tokenizer import Tokenizer
from regard.training import apply_overrides, load_recipe, train
from regard.training.loop import _Run
from regard.training.run_data import prepare_data
from regard.training.state import find_state
from regard.training.tasks import translation


def test_a_training_learns_and_writes_all_its_files(
    tmp_path: Path, keys: dict[str, Any], words: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    keys = apply_overrides(
        keys, ["--trainer.max_steps=250", "--validation.every_n_steps=50", "--trainer.log_every_n_steps=10"]
    )
    keys["model"] |= {"d_model": 32, "d_ff": 64, "dropout": 0.0, "norm_first": True}
    keys["data"]["max_tokens_per_batch"] = 500
    keys["tokenizer"]["vocab_size"] = 400  # every word is a piece
    outcome = train(make_recipe(keys))
    run = tmp_path / "run"
    assert (outcome.output_dir, outcome.step, outcome.signal) == (run, 250, None)
    logged = [(float(row["loss"]), float(row["learning_rate"])) for row in rows(run) if row["loss"]]
    assert len(logged) == 25
    assert logged[-1][0] < logged[0][0] / 2
    expected = [0.01 * (step / 20 if step < 20 else (20 / step) ** 0.5) for step in range(10, 251, 10)]
    assert [learning_rate for _, learning_rate in logged] == pytest.approx(expected)  # with which the step was taken
    scores = [float(row["bleu"]) for row in rows(run) if row["bleu"]]
    assert outcome.best_metric == pytest.approx(max(scores))
    assert outcome.best_metric > 50
    text = (run / "train.log").read_text()
    assert "training: 400 pairs (skipped: 0 empty, 0 too long)" in text
    assert re.search(r"padding: [\d.]+% of the tokens", text)
    assert "nrefs:" in text
    assert "nrefs:" not in capfd.readouterr().err
    assert "tok:13a" in text
    assert list((run / "tensorboard").glob("events.*"))
    for name in ("last", "best", "averaged"):
        model, tokenizer = load_model(run / name), Tokenizer.load(run / name)
        actual = greedy(model, *collate_sources(tokenizer.encode(["one red dogs."])))
        assert set(tokenizer.decode([actual[0].tokens])[0].strip(".").split()) <= set(words.values())
    assert logging.getLogger("regard.training").handlers == []


@pytest.mark.parametrize("resume", [False, True])
def test_each_data_file_is_hashed_once_per_start(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    if resume:
        train(make_recipe(apply_overrides(keys, ["--trainer.max_steps=10"])))
    hashed: list[str] = []
    original = token_dataset.hash_file
    monkeypatch.setattr(token_dataset, "hash_file", lambda path: hashed.append(Path(path).name) or original(path))
    train(make_recipe(keys), resume=resume)
    assert sorted(name for name in hashed if name.endswith(".tsv")) == ["train.tsv", "valid.tsv"]


def test_the_state_is_plain_data(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys))
    folder = tmp_path / "run" / "state" / "step-000000030"
    assert json.loads((folder / "state.json").read_text())["step"] == 30
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_skipped_pairs_are_counted_in_the_log(tmp_path: Path, keys: dict[str, Any]) -> None:
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("\tleer\nempty\t \n" + "one " * 99 + "\teins\n")
    keys["data"]["max_length"] = 60
    train(make_recipe(keys, "--trainer.max_steps=2"))
    assert "training: 400 pairs (skipped: 2 empty, 1 too long)" in (tmp_path / "run" / "train.log").read_text()


def test_a_run_without_validation_has_no_best(tmp_path: Path, keys: dict[str, Any]) -> None:
    outcome = train(make_recipe(keys, "--data.valid=null"))
    assert outcome.best_metric is None
    assert not (tmp_path / "run" / "best").exists()
    assert (tmp_path / "run" / "last").exists()


def test_early_stopping(tmp_path: Path, keys: dict[str, Any]) -> None:
    overrides = ["--optimizer.learning_rate=1e-12", "--validation.patience=2", "--validation.monitor=bleu"]
    outcome = train(make_recipe(keys, *overrides, "--trainer.max_steps=1000"))
    assert outcome.step == 30  # the first at 10, then two that are no better
    again = train(make_recipe(keys, *overrides, "--trainer.max_steps=1000"), resume=True)
    assert (again.step, again.signal) == (30, None)
    text = (tmp_path / "run" / "train.log").read_text()
    reason = r"bleu was not better than [\d.]+ in the last 2 validations; validation\.patience=2"
    assert re.search(rf"stopped early at step 30: ({reason})", text)
    assert "already finished at step 30; to continue, raise validation.patience" in text
    patient = make_recipe(keys, *overrides, "--trainer.max_steps=1000", "--validation.patience=3")
    assert train(patient, resume=True).step == 40


def test_a_finished_run_is_continued_by_more_steps(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["validation"]["patience"] = 100
    for resume in (False, True):
        train(make_recipe(keys, "--trainer.max_steps=2"), resume=resume)
    text = (tmp_path / "run" / "train.log").read_text()
    assert "already finished at step 2; to continue, raise trainer.max_steps" in text
    assert "stopped early" not in text


def test_more_processes_than_cpus_are_refused(keys: dict[str, Any]) -> None:
    words = rf"trainer\.devices: expected at most {os.cpu_count()}, the number of CPUs of this machine, got 999"
    with pytest.raises(InvalidRecipe, match=words):
        train(make_recipe(keys, "--trainer.devices=999"))


def test_bfloat16_trains(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.precision=bf16-mixed"))
    losses = [float(row["loss"]) for row in rows(tmp_path / "run") if row["loss"]]
    assert losses[-1] < losses[0]
    assert all(
        weight.dtype == torch.float32 for weight in load_file(tmp_path / "run" / "last" / "model.safetensors").values()
    )


def test_aligned_files_train_as_the_tsv_does(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["trainer"]["max_steps"] = 8
    pairs = [line.split("\t") for line in (tmp_path / "train.tsv").read_text().splitlines()]
    for side in (0, 1):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"train.{side}.gz").write_bytes(gzip.compress(text.encode()))
    train(make_recipe({**keys, "output_dir": str(tmp_path / "tsv")}))
    keys["data"]["train"] = ["train.0.gz", "train.1.gz"]
    train(make_recipe({**keys, "output_dir": str(tmp_path / "aligned")}))
    assert bytes_of(tmp_path / "aligned") == bytes_of(tmp_path / "tsv")


def test_a_terminal_shows_a_bar(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    module = sys.modules["regard.training.run_log"]
    monkeypatch.setattr(module, "Console", lambda **options: Console(file=screen, force_terminal=True, width=150))
    train(make_recipe(keys))
    last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r"step 30/30 .*━.* \d:\d\d:\d\d epoch 0, loss [\d.]+, [\d,]+ tokens/s", last)


def test_the_loss_is_shown_before_the_first_row(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--trainer.log_every_n_steps=1000", "--trainer.max_steps=2", "--data.valid=null"]
    train(make_recipe(keys, *options, "--output_dir", str(tmp_path / "lines")))
    text = (tmp_path / "lines" / "train.log").read_text()
    assert re.search(r"step 1/2: epoch 0, loss [\d.]+, [\d,]+ tokens/s", text)
    assert "step 2/2" not in text
    screen = io.StringIO()
    module = sys.modules["regard.training.run_log"]
    monkeypatch.setattr(module, "Console", lambda **options: Console(file=screen, force_terminal=True, width=150))
    train(make_recipe(keys, *options, "--output_dir", str(tmp_path / "bar")))
    assert re.search(r"epoch 0, loss [\d.]+, [\d,]+ tokens/s", screen.getvalue())


def interrupt_at(run: Path, step: int, number: signal.Signals = signal.SIGINT) -> threading.Thread:
    """Press Ctrl-C, or send another signal, when the log has come to a step."""

    def watch() -> None:
        while True:
            path = run / "metrics.csv"
            if path.exists() and f"\n{step}," in path.read_text():
                os.kill(os.getpid(), number)
                return
            time.sleep(0.001)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_resumed_after_ctrl_c_equals_an_uninterrupted_one(
    tmp_path: Path, keys: dict[str, Any], number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    keys["trainer"]["max_steps"] = 60
    full, stopped = ({**keys, "output_dir": str(tmp_path / name)} for name in ("whole", "stopped"))
    train(make_recipe(full))
    before = signal.getsignal(number)
    thread = interrupt_at(tmp_path / "stopped", 15, number)
    outcome = train(make_recipe(stopped))
    thread.join()
    assert outcome.signal == number
    assert 15 <= outcome.step < 60
    assert signal.getsignal(number) is before
    assert outcome.signal is number
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    log = tmp_path / "stopped" / "train.log"
    assert f"stopped by {name}; --resume continues from step {outcome.step}" in log.read_text()
    stop_now = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
    assert f"stopping after this step; {stop_now} to stop now" in capfd.readouterr().err
    again = train(make_recipe(stopped), resume=True)
    assert f"resuming at step {outcome.step}" in log.read_text()
    assert (again.step, again.signal) == (60, None)
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


def test_an_interrupted_validation_is_repeated(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys["checkpoint"]["every_n_steps"] = 5  # a state is due at each validation, too
    full, cut = ({**keys, "output_dir": str(tmp_path / name)} for name in ("whole", "cut"))
    train(make_recipe(full))
    validate = _Run.validate

    def dies(run: _Run) -> None:
        if run.step == 20:
            raise RuntimeError("the power is out")
        validate(run)

    monkeypatch.setattr(_Run, "validate", dies)
    with pytest.raises(RuntimeError, match="the power is out"):
        train(make_recipe(cut))
    monkeypatch.undo()
    train(make_recipe(cut), resume=True)
    columns = ("step", "loss", "valid_loss", "bleu", "chrf")
    assert [[row[name] for name in columns] for row in rows(tmp_path / "cut")] == [
        [row[name] for name in columns] for row in rows(tmp_path / "whole")
    ]
    assert bytes_of(tmp_path / "cut", "best") == bytes_of(tmp_path / "whole", "best")


def test_a_finished_run_can_be_extended(tmp_path: Path, keys: dict[str, Any]) -> None:
    full, extended = ({**keys, "output_dir": str(tmp_path / name)} for name in ("whole", "extended"))
    train(make_recipe(full))
    train(make_recipe(extended, "--trainer.max_steps=20"))
    assert train(make_recipe(extended), resume=True).step == 30
    assert bytes_of(tmp_path / "extended") == bytes_of(tmp_path / "whole")
    assert train(make_recipe(extended), resume=True).step == 30  # nothing left to do
    assert [row["loss"] for row in rows(tmp_path / "extended")] == [row["loss"] for row in rows(tmp_path / "whole")]


def test_what_changes_when_a_run_is_resumed_is_logged(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=3", "--trainer.strategy=fsdp"))
    log = tmp_path / "run" / "train.log"
    assert "one process stores the whole model, so fsdp changes nothing" in log.read_text()
    train(make_recipe(keys, "--trainer.max_steps=3", "--trainer.strategy=fsdp"), resume=True)
    assert "with other keys" not in log.read_text()
    train(make_recipe(keys, "--trainer.max_steps=4", "--trainer.precision=bf16-true"), resume=True)
    changes = "trainer.max_steps from 3 to 4, trainer.precision from '32' to 'bf16-true', trainer.strategy from 'fsdp'"
    assert f"resumed with other keys: {changes}" in log.read_text()


def test_a_full_disk_ends_training_with_one_message_and_a_complete_state(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = tmp_path / "run"
    train(make_recipe(keys, "--trainer.max_steps=8"))
    size = max(path.stat().st_size for path in (run / "state").rglob("*"))
    folder = run / "state" / "step-000000014"
    message = re.escape(f"{folder}: could not be saved (File too large); the state of step 8 is complete")
    with pytest.raises(InvalidFile, match=f"^{message}$"), full_disk(size - 1):
        train(make_recipe(keys), resume=True)
    assert [path.name for path in (run / "state").iterdir()] == ["step-000000008"]
    assert train(make_recipe(keys), resume=True).step == 30


def test_bad_data_is_refused_before_anything_is_trained(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "train.tsv").write_text("a\tb\nno tab\n")
    with pytest.raises(InvalidFile, match=r"train\.tsv, line 2: expected source, tab, target"):
        train(make_recipe(keys))
    assert not (tmp_path / "run" / "last").exists()
    with pytest.raises(
        InvalidFile, match=r"^data\.train: no such file: .*missing\.tsv; .* or data\.folder, which is /"
    ):
        train(make_recipe(keys, "--data.train=missing.tsv"))
    assert not (tmp_path / "run").exists()


def test_the_weights_of_the_last_step_are_validated(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=12"))
    assert [int(row["step"]) for row in rows(tmp_path / "run") if row["bleu"]] == [10, 12]
    assert train(make_recipe(keys), resume=True).step == 30
    assert [int(row["step"]) for row in rows(tmp_path / "run") if row["bleu"]] == [10, 12, 20, 30]
    train(make_recipe({**keys, "output_dir": str(tmp_path / "whole")}))
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def test_a_first_attempts_vocabulary_is_not_used_with_another_size(tmp_path: Path, keys: dict[str, Any]) -> None:
    (tmp_path / "run").mkdir()
    for size in (300, 310):
        prepare_data(make_recipe(keys, f"--tokenizer.vocab_size={size}").build_task())
        assert Tokenizer.load(tmp_path / "run" / "data").vocab_size == size


def test_a_run_resumes_with_moved_data_but_not_with_other_data(tmp_path: Path, keys: dict[str, Any]) -> None:
    train(make_recipe(keys, "--trainer.max_steps=3"))
    (tmp_path / "train.tsv").rename(tmp_path / "moved.tsv")
    moved = apply_overrides(keys, ["--data.train=moved.tsv", "--trainer.max_steps=5"])
    assert train(make_recipe(moved), resume=True).step == 5
    other = apply_overrides(keys, ["--data.train=valid.tsv", "--data.valid=null", "--validation.monitor=bleu"])
    for _ in range(2):
        with pytest.raises(InvalidRecipe) as error:
            train(make_recipe(other), resume=True)
        for key, got in {"data.train": f"other data in {tmp_path}/valid.tsv", "data.valid": "none"}.items():
            assert f"{key}: expected the data that the run began with, got {got}" in str(error.value)
        assert load_recipe(tmp_path / "run" / "recipe.yaml").data.train == (Path("moved.tsv"),)


def test_a_device_that_is_not_there_is_refused(keys: dict[str, Any]) -> None:
    missing = "mps" if torch.cuda.is_available() else "gpu"
    with pytest.raises(
        InvalidRecipe,
        match=f"^trainer.accelerator: expected an available device, got '{missing}' with trainer.devices 'auto'",
    ):
        train(make_recipe(keys, f"--trainer.accelerator={missing}"))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_sentences_longer_than_the_model_are_not_translated(
    tmp_path: Path, keys: dict[str, Any], positions: str
) -> None:
    long = "one two three four red blue cats dogs birds and see like " * 4
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write(f"{long}.\t{long}.\n")
    keys["model"] |= {"positions": positions, "max_seq_len": 70}
    keys["data"]["max_length"] = 60
    keys["validation"] |= {"bleu_sentences": 1000, "every_n_steps": 2}
    train(make_recipe(keys, "--trainer.max_steps=2"))
    assert "BLEU: 1 validation sentences of more than 69 tokens skipped" in (tmp_path / "run" / "train.log").read_text()


def test_ctrl_c_before_the_first_step_stops_at_once(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "train_translation_bpe", lambda *_: signal.raise_signal(signal.SIGINT))
    outcome = train(make_recipe(keys))
    assert (outcome.step, outcome.signal) == (0, signal.SIGINT)
    assert "stopped by Ctrl-C; nothing was saved" in (tmp_path / "run" / "train.log").read_text()


def test_a_second_ctrl_c_stops_within_the_step(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    take_step = _Run.take_step
    pressed = []

    def presses_twice(run: _Run, batches: Any) -> None:
        if run.step == 16:
            for _ in range(2):
                pressed.append(run.step)
                signal.raise_signal(signal.SIGINT)
        take_step(run, batches)

    monkeypatch.setattr(_Run, "take_step", presses_twice)
    outcome = train(make_recipe(keys))
    assert pressed == [16, 16]
    assert (outcome.step, outcome.signal) == (14, signal.SIGINT)
    assert "stopping after this step; press Ctrl-C again to stop now" in capfd.readouterr().err


def test_a_full_disk_after_the_state_names_its_step(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = tmp_path / "run"
    save = "regard.training.saving.save_model"
    with pytest.MonkeyPatch.context() as patch:

        def fail(folder: Path, *args: Any, **options: Any) -> None:
            if folder.name == "last":
                raise OSError(28, "No space left on device")

        patch.setattr(save, fail)
        with pytest.raises(InvalidFile, match=r"last: could not be saved .*; the state of step 7 is complete"):
            train(make_recipe(keys, "--trainer.max_steps=8", "--data.valid=null", "--checkpoint.average_last=0"))
    state = find_state(run)
    assert state is not None
    assert state.step == 7


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_unequal_batches_of_a_step_count_by_their_tokens(tmp_path: Path, keys: dict[str, Any], precision: str) -> None:
    pairs = [("one two.", "eins zwei."), ("red cats.", "rot Katzen."), (f"{'see ' * 40}.", f"{'sehen ' * 40}.")]
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    keys["model"]["dropout"] = 0.0
    # with a large eps, the first step of Adam is nearly proportional to the gradient
    keys["optimizer"] = {"learning_rate": 1.0, "warmup_steps": 0, "lr_schedule": "constant", "eps": 1.0}
    keys["trainer"] |= {"max_steps": 1, "precision": precision}
    keys["data"] |= {"valid": None, "max_tokens_per_batch": 1000}
    train(make_recipe(keys))
    keys["data"] |= {"max_tokens_per_batch": 100, "max_length": 90}  # the long pair, and the other two
    run = train(
        make_recipe(keys, "--output_dir", str(tmp_path / "two"), "--trainer.accumulate_grad_batches=2")
    ).output_dir
    assert "batches: 2 per epoch" in (run / "train.log").read_text()
    one, two = (load_file(folder / "last" / "model.safetensors") for folder in (tmp_path / "run", run))
    tolerance = 1e-5 if precision == "32" else 1e-2
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=tolerance)


def test_a_configured_root_logger_prints_no_line_again(keys: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    train(make_recipe(keys, "--trainer.max_steps=2"))
    assert not [record for record in caplog.records if record.name.startswith("regard")]
    assert logging.getLogger("regard.training").propagate
