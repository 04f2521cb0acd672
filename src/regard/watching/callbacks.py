"""What a model attends to while it is trained, as numbers in the log of its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import MissingExtra, count_problems, raise_problems
from regard.watching.hugging_face import WATCHES
from regard.watching.listening import Watch
from regard.watching.seen import Seen
from regard.watching.watch import watch

if TYPE_CHECKING:
    from lightning import Callback
    from transformers import TrainerCallback

MEASURES = ("entropy", "max", "received")


def trainer_callback(every: int = 100) -> TrainerCallback:
    """A callback for transformers' ``Trainer`` that logs what each layer attends to.

    For each layer, called by its module: ``entropy``, the mean over rows in nats; ``score``, the highest before
    softmax, which grows where a training becomes unstable; ``received``, the largest share of the rows' weight that one
    key receives. Padding is left out, where transformers or ``nn.MultiheadAttention`` is told of it.

    They stand beside the loss in the Trainer's history, and where it prints it. Loggers that it asks before its
    callbacks, as TensorBoard's, see them once this one is first: ``trainer.callback_handler.callbacks.insert(0, ...)``.

    Args:
        every: Steps between two looks; the others cost nothing.

    Raises:
        InvalidArgument: If there are no steps between.
        MissingExtra: If transformers is not installed.

    Example:
        >>> import regard
        >>> callback = regard.watching.trainer_callback(every=50)  # Trainer(..., callbacks=[callback])
    """
    raise_problems(count_problems(every=every))
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise MissingExtra("trainer_callback needs transformers: `pip install 'regard[hf]'`") from None

    class AttentionCallback(TrainerCallback):
        """Looks at a step, and tells it at the next log."""

        seen: Watch | None = None
        numbers: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            end_stale(given["model"])  # of a training that failed within a step

        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step % every == 0:
                self.seen = begun(given["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.seen is not None:
                self.numbers, self.seen = numbers_of(self.seen), None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
            if logs is not None and "loss" in logs:
                logs.update(self.numbers)
                state.log_history[-1].update(self.numbers)
                self.numbers = {}  # each is told once

    return AttentionCallback()


def lightning_callback(every: int = 100) -> Callback:
    """A callback for lightning's ``Trainer`` that logs what each layer attends to, as `trainer_callback` does.

    Args:
        every: Steps between two looks; the others cost nothing.

    Raises:
        InvalidArgument: If there are no steps between.
        MissingExtra: If lightning is not installed.

    Example:
        >>> import regard
        >>> callback = regard.watching.lightning_callback(every=50)  # lightning.Trainer(..., callbacks=[callback])
    """
    raise_problems(count_problems(every=every))
    try:
        from lightning import Callback
    except ImportError:
        raise MissingExtra("lightning_callback needs lightning: `pip install 'regard[train]'`") from None

    class AttentionCallback(Callback):
        """Looks at a batch, and logs it."""

        seen: Watch | None = None
        last = -1

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step % every == 0 and self.seen is None and trainer.global_step != self.last:
                self.seen, self.last = begun(pl_module), trainer.global_step  # one batch of those that are accumulated

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.seen is not None:
                found, self.seen = numbers_of(self.seen), None
                pl_module.log_dict(found)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            if self.seen is not None:
                self.seen.__exit__(type(exception), exception, None)

    return AttentionCallback()


def begun(model: nn.Module) -> Watch:
    """A watch that is on, and keeps what is logged."""
    end_stale(model)
    seen = watch(model, MEASURES, keep="measures")
    seen.ends_for_another = True  # its trainer may fail within a step, and has no way to tell
    return seen.__enter__()


def end_stale(model: nn.Module) -> None:
    """End the watch of a trainer that failed."""
    seen = WATCHES.get(id(model))
    if seen is not None and seen.ends_for_another:
        seen.__exit__(InterruptedError)


def numbers_of(seen: Watch) -> dict[str, float]:
    """End a watch, and give the numbers of each of its layers, over all passes."""
    seen.__exit__(None, None, None)
    found: dict[str, float] = {}
    layers: dict[str, list[Seen]] = {}
    for each in seen.passes:
        for layer in each:
            layers.setdefault(layer.name, []).append(layer)
    for name, of_name in layers.items():
        rows = sum(_rows(layer) for layer in of_name)
        entropy = sum(float(_real(layer, layer.measured["entropy"]).sum()) for layer in of_name)
        found[f"attention/{name}/entropy"] = entropy / max(rows, 1)
        found[f"attention/{name}/score"] = max(_score(layer) for layer in of_name)
        found[f"attention/{name}/received"] = max(_share(layer) for layer in of_name)
    return found


def _real(layer: Seen, answer: Tensor) -> Tensor:
    """An answer by rows, (batch, heads, rows), 0 where a row is padding; float64, to be summed up."""
    answer = answer.detach().double()
    return answer if layer.real is None else answer * layer.real[:, None]


def _score(layer: Seen) -> float:
    """The highest score of a row that is no padding."""
    score = layer.measured["max"].score.detach()
    return float((score if layer.real is None else score.masked_fill(~layer.real[:, None], -torch.inf)).max())


def _rows(layer: Seen) -> int:
    batch, heads, rows = layer.measured["entropy"].shape
    return heads * (batch * rows if layer.real is None else int(layer.real.sum()))


def _share(layer: Seen) -> float:
    """The largest share of the weight of a sequence's rows that one of its keys receives."""
    received = layer.measured["received"].detach()
    rows = received.new_full((len(received),), layer.measured["entropy"].shape[2])
    rows = rows if layer.real is None else layer.real.sum(1).to(rows.dtype)
    return float((received.amax((1, 2)) / rows.clamp(min=1)).max())
