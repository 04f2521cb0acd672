"""The numbers that callbacks log against those of dense attention."""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import regard
from helpers.model_zoo.families import SMALL, eager
from regard.errors import InvalidArgument
from regard.watching import AttentionMonitor

LENGTHS = torch.tensor([9, 6, 9, 4])


def rows():
    torch.manual_seed(0)
    ids = torch.randint(3, 90, (4, 9))
    mask = (torch.arange(9) < LENGTHS[:, None]).long()
    return [{"input_ids": i, "attention_mask": m, "labels": i[0] % 2} for i, m in zip(ids, mask, strict=True)]


def model():
    torch.manual_seed(0)
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(**SMALL, **options))


def expected():
    """The numbers of the first step, by dense attention."""
    batch = {name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        dense = eager(model())(**batch, output_attentions=True).attentions
    numbers = {}
    for number, weights in enumerate(dense):
        real = batch["attention_mask"][:, None, :, None].double()
        name = f"attention/bert.encoder.layer.{number}.attention.self"
        total = (torch.special.entr(weights) * real).sum()
        numbers[f"{name}/entropy"] = float(total / (real.sum() * weights.shape[1]))
        received = (weights * real).sum(2).amax((1, 2)) / LENGTHS
        numbers[f"{name}/max_received"] = float(received.max())
        numbers[f"{name}/sink_mass"] = float((weights * real)[..., 0].sum() / (real.sum() * weights.shape[1]))
    return numbers


def test_the_trainer_of_transformers_logs_them(tmp_path):
    arguments = TrainingArguments(
        tmp_path, max_steps=3, per_device_train_batch_size=4, logging_steps=1, report_to=[], disable_tqdm=True,
        save_strategy="no", use_cpu=True, learning_rate=1e-3,
    )  # fmt: skip
    trainer = Trainer(
        model(), arguments, train_dataset=rows(), callbacks=[regard.watching.trainer_callback(every_n_steps=2)]
    )
    trainer.train()
    logged = trainer.state.log_history
    for name, number in expected().items():
        assert logged[0][name] == pytest.approx(number, abs=1e-5)
        assert name not in logged[1]  # each is logged once
        assert logged[2][name] != logged[0][name]
    assert logged[0]["attention/bert.encoder.layer.0.attention.self/max_logit"] > 0


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model()

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated", "ignore:The 'train_dataloader' does not have many")
def test_lightning_logs_them(tmp_path):
    callback = regard.watching.lightning_callback(every_n_steps=1)
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(rows(), batch_size=4))
    for name, number in expected().items():
        logged = trainer.logged_metrics[name.replace("attention/", "attention/model.", 1)]
        assert float(logged) == pytest.approx(number, abs=1e-5)


def highest(model):
    """The highest score in the rows, by layer."""
    batch = {name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "attention_mask")}
    with regard.watch(model) as result, torch.no_grad():
        model(**batch)
    real = batch["attention_mask"][:, None, :, None] == 1
    return torch.stack([layer.weights.scores.dense().where(real, -torch.inf).max() for layer in result.layers])


def test_the_trainer_of_transformers_clips_after_each_step(tmp_path):
    """With a learning rate of 0 nothing else changes the scores; dropout of weights does not count."""
    arguments = TrainingArguments(
        tmp_path, max_steps=1, per_device_train_batch_size=4, report_to=[], disable_tqdm=True, save_strategy="no",
        use_cpu=True, learning_rate=0.0,
    )  # fmt: skip
    trained = model()
    threshold = float(highest(trained)[0]) / 2
    callback = regard.watching.trainer_callback(gradients=True, clip_threshold=threshold)
    trainer = Trainer(trained, arguments, train_dataset=rows(), callbacks=[callback])
    trainer.train()
    assert float(highest(trained)[0]) == pytest.approx(threshold, rel=1e-4)
    assert all(each.gradient.min() > 0 for each in callback.monitor.heads.values())


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated", "ignore:The 'train_dataloader' does not have many")
def test_lightning_clips_after_each_optimizer_step(tmp_path):
    module = Module()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), 0.0)
    threshold = float(highest(module.model)[0]) / 2
    trainer = L.Trainer(
        max_steps=1, accumulate_grad_batches=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[regard.watching.lightning_callback(clip_threshold=threshold)],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=1))
    assert float(highest(module.model)[0]) == pytest.approx(threshold, rel=1e-4)


@pytest.mark.parametrize("make", [regard.watching.trainer_callback, regard.watching.lightning_callback])
def test_no_steps_between_are_refused(make):
    with pytest.raises(InvalidArgument, match="every_n_steps: expected an int of at least 1, got 0"):
        make(0)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated", "ignore:The 'train_dataloader' does not have many")
def test_lightning_counts_steps_and_not_batches(tmp_path, monkeypatch):
    looks = []
    begin = AttentionMonitor.begin

    def note(monitor, is_measured):
        looks.extend([trainer.global_step] * is_measured)
        begin(monitor, is_measured)

    monkeypatch.setattr(AttentionMonitor, "begin", note)
    trainer = L.Trainer(
        max_epochs=3, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[regard.watching.lightning_callback(every_n_steps=3)],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(rows(), batch_size=1))
    assert looks == list(range(0, trainer.global_step, 3))


def test_a_training_that_failed_within_a_step_logs_nothing_later():
    callback, failed = regard.watching.trainer_callback(every_n_steps=2), model()
    callback.on_step_begin(None, SimpleNamespace(global_step=0), None, model=failed)
    failed(**{name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "attention_mask")})
    callback.on_train_begin(None, None, None, model=failed)
    callback.on_step_end(None, SimpleNamespace(global_step=1), None)
    assert callback.metrics == {}
    with regard.watch(failed):  # the watch of the step has ended
        failed(torch.randint(3, 90, (1, 5)))
