"""Callbacks that log what a model attends to while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import require
from regard.watching.monitor import AttentionMonitor, check_options, stop_stale_watch

if TYPE_CHECKING:
    from lightning import Callback
    from transformers import TrainerCallback


def trainer_callback(
    every_n_steps: int = 100, *, gradients: bool = False, clip_threshold: float | None = None
) -> TrainerCallback:
    """A callback for transformers' ``Trainer`` that logs what each layer attends to, and can limit its scores.

    For each layer, by the name of its module: ``entropy``, the mean over rows in nats; ``max_logit``, the highest score
    before the softmax, which grows when training becomes unstable; ``sink_mass``, the mean weight on the first key;
    ``max_received``, the largest share of the rows' weight that one key receives. Padding does not count where
    transformers or ``nn.MultiheadAttention`` knows it. Those of each head are in ``callback.monitor.heads``.

    The numbers are in the Trainer's history and output with the loss. Loggers that run before this callback, such as
    TensorBoard's, only see them if it comes first: ``trainer.callback_handler.callbacks.insert(0, callback)``.

    Args:
        every_n_steps: Steps between two measurements; the other steps cost nothing.
        gradients: As for `AttentionMonitor`: ``gradient`` is logged, too.
        clip_threshold: As for `AttentionMonitor`: QK-clip after each step.

    Raises:
        InvalidArgument: If a number is out of range.
        InvalidType: If an argument has a wrong type.
        MissingExtra: If transformers is not installed.

    Examples:
        >>> import regard
        >>> callback = regard.watching.trainer_callback(every_n_steps=50)  # Trainer(..., callbacks=[callback])
    """
    check_options(every_n_steps, gradients, clip_threshold)
    transformers = require("transformers", extra="hf", needed_by="trainer_callback")

    class AttentionCallback(transformers.TrainerCallback):
        """Measures a step, and adds the results to the next log."""

        monitor: AttentionMonitor | None = None
        metrics: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed

        def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            stop_stale_watch(options["model"])  # of a training that failed within a step
            self.monitor = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if self.monitor is None:
                self.monitor = AttentionMonitor(
                    options["model"], every_n_steps, gradients=gradients, clip_threshold=clip_threshold
                )
            self.monitor.begin(state.global_step % every_n_steps == 0)

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if self.monitor is not None and self.monitor.end():
                self.metrics = self.monitor.metrics

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
            if logs is not None and "loss" in logs:
                logs.update(self.metrics)
                state.log_history[-1].update(self.metrics)
                self.metrics = {}  # each is logged once

    return AttentionCallback()


def lightning_callback(
    every_n_steps: int = 100, *, gradients: bool = False, clip_threshold: float | None = None
) -> Callback:
    """A callback for Lightning's ``Trainer`` that logs what each layer attends to, as `trainer_callback` does.

    Args:
        every_n_steps: Optimizer steps between two measurements; the other steps cost nothing.
        gradients: As for `AttentionMonitor`: ``gradient`` is logged, too.
        clip_threshold: As for `AttentionMonitor`: QK-clip after each step.

    Raises:
        InvalidArgument: If a number is out of range.
        InvalidType: If an argument has a wrong type.
        MissingExtra: If PyTorch Lightning is not installed.

    Examples:
        >>> import regard
        >>> callback = regard.watching.lightning_callback(every_n_steps=50)  # Trainer(..., callbacks=[callback])
    """
    check_options(every_n_steps, gradients, clip_threshold)
    lightning = require("lightning", extra="lightning", needed_by="lightning_callback")

    class AttentionCallback(lightning.Callback):
        """Measures a batch, and logs the results."""

        monitor: AttentionMonitor | None = None
        last_step = -1

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if self.monitor is None:
                self.monitor = AttentionMonitor(
                    pl_module, every_n_steps, gradients=gradients, clip_threshold=clip_threshold
                )
            step = trainer.global_step
            self.monitor.begin(step % every_n_steps == 0 and step != self.last_step)  # the first of accumulated batches
            self.last_step = step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.monitor is not None and self.monitor.end(trainer.global_step > self.last_step):
                pl_module.log_dict(self.monitor.metrics)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if self.monitor is not None:
                self.monitor.cancel(exception)

    return AttentionCallback()
