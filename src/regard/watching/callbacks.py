"""Callbacks that log what a model attends to while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.checks import Checks
from regard.errors import require
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.listener import Listener
from regard.watching.registry import listener_for
from regard.watching.watch import watch

if TYPE_CHECKING:
    from lightning import Callback
    from transformers import TrainerCallback

MEASURES = ("entropy", "max", "received")


def trainer_callback(every_n_steps: int = 100) -> TrainerCallback:
    """A callback for transformers' ``Trainer`` that logs what each layer attends to.

    For each layer, by the name of its module: ``entropy``, the mean over rows in nats; ``max_logit``, the highest score
    before the softmax, which grows when training becomes unstable; ``max_received``, the largest share of the rows'
    weight that one key receives. Padding does not count where transformers or ``nn.MultiheadAttention`` knows it.

    The numbers are in the Trainer's history and output with the loss. Loggers that run before this callback, such as
    TensorBoard's, only see them if it comes first: ``trainer.callback_handler.callbacks.insert(0, callback)``.

    Args:
        every_n_steps: Steps between two measurements; the other steps cost nothing.

    Raises:
        InvalidArgument: If it is below 1.
        MissingExtra: If transformers is not installed.

    Examples:
        >>> import regard
        >>> callback = regard.watching.trainer_callback(every_n_steps=50)  # Trainer(..., callbacks=[callback])
    """
    with Checks() as checks:
        checks.integer("every_n_steps", every_n_steps, low=1)
    transformers = require("transformers", extra="hf", needed_by="trainer_callback")

    class AttentionCallback(transformers.TrainerCallback):
        """Measures a step, and adds the results to the next log."""

        listener: Listener | None = None
        metrics: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed

        def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            stop_stale_watch(options["model"])  # of a training that failed within a step
            self.listener = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if state.global_step % every_n_steps == 0:
                self.listener = start_watch(options["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if self.listener is not None:
                self.metrics, self.listener = stop_watch(self.listener), None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
            if logs is not None and "loss" in logs:
                logs.update(self.metrics)
                state.log_history[-1].update(self.metrics)
                self.metrics = {}  # each is logged once

    return AttentionCallback()


def lightning_callback(every_n_steps: int = 100) -> Callback:
    """A callback for Lightning's ``Trainer`` that logs what each layer attends to, as `trainer_callback` does.

    Args:
        every_n_steps: Optimizer steps between two measurements; the other steps cost nothing.

    Raises:
        InvalidArgument: If it is below 1.
        MissingExtra: If PyTorch Lightning is not installed.

    Examples:
        >>> import regard
        >>> callback = regard.watching.lightning_callback(every_n_steps=50)  # Trainer(..., callbacks=[callback])
    """
    with Checks() as checks:
        checks.integer("every_n_steps", every_n_steps, low=1)
    lightning = require("lightning", extra="lightning", needed_by="lightning_callback")

    class AttentionCallback(lightning.Callback):
        """Measures a batch, and logs the results."""

        listener: Listener | None = None
        last_step = -1

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            step = trainer.global_step
            if step % every_n_steps == 0 and step != self.last_step:  # one of the batches that are accumulated
                self.listener, self.last_step = start_watch(pl_module), step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.listener is not None:
                metrics, self.listener = stop_watch(self.listener), None
                pl_module.log_dict(metrics)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if self.listener is not None:
                self.listener.__exit__(type(exception), exception, None)
                self.listener = None

    return AttentionCallback()


def start_watch(model: nn.Module) -> Listener:
    """Start a watch that keeps only what is logged. Its trainer may fail within a step, so another watch may end it."""
    listener = watch(model, MEASURES, keep_qk=False)
    assert isinstance(listener, Listener)
    listener.preemptible = True
    listener.__enter__()
    return listener


def stop_stale_watch(model: nn.Module) -> None:
    """End the watch of a trainer that failed."""
    listener = listener_for(model)
    if listener is not None and listener.preemptible:
        listener.end()


def stop_watch(listener: Listener) -> dict[str, float]:
    """End a watch, and return the metrics of each layer over all forward passes."""
    listener.__exit__(None, None, None)
    parts: dict[str, list[tuple[int, float, float, float]]] = {}
    for recording in listener.result._recordings:
        for recorder in recording.values():
            parts.setdefault(recorder.name, []).append(_metrics(recorder))
    metrics: dict[str, float] = {}
    for name, of_layer in parts.items():
        rows, entropy, logit, received = zip(*of_layer, strict=True)
        metrics[f"attention/{name}/entropy"] = sum(entropy) / max(sum(rows), 1)
        metrics[f"attention/{name}/max_logit"] = max(logit)
        metrics[f"attention/{name}/max_received"] = max(received)
    return metrics


def _metrics(recorder: LayerRecorder) -> tuple[int, float, float, float]:
    """Of rows that are not padding: their number, the sum of their entropies, the highest score, the largest share."""
    measured, valid = recorder.measured, recorder.valid_queries
    entropy, score = measured["entropy"].detach().double(), measured["max"].score.detach()
    batch, heads, queries = entropy.shape
    valid = entropy.new_ones(batch, queries, dtype=torch.bool) if valid is None else valid
    mask = valid[:, None]  # (batch, 1, queries)
    share = measured["received"].detach().amax((1, 2)) / valid.sum(1).clamp(min=1)
    rows = heads * int(valid.sum())
    return rows, float((entropy * mask).sum()), float(score.masked_fill(~mask, -torch.inf).max()), float(share.max())
