"""AttentionMonitor: what each head attends to in a training step, and QK-clip after it."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.listener import Listener
from regard.watching.qk_clip import qk_clip
from regard.watching.registry import listener_for
from regard.watching.watch import watch


class HeadStatistics(NamedTuple):
    """What the heads of a layer attended to in a training step, each (heads,), over all rows that are not padding."""

    max_logit: Float[Tensor, " heads"]
    """The highest score before softmax."""
    entropy: Float[Tensor, " heads"]
    """The mean entropy of the rows, in nats."""
    sink_mass: Float[Tensor, " heads"]
    """The mean weight on the first key, and on sinks that the model has learned."""
    max_received: Float[Tensor, " heads"]
    """The largest share of the rows' weight that one key receives."""
    gradient: Float[Tensor, " heads"] | None
    """The norm of the gradient of the loss with respect to the head's output; None if it is not measured."""


class AttentionMonitor:
    """Measures every n-th training step, and can limit the scores by QK-clip.

    Each ``with`` block is a step, with its forward, backward and optimizer step.

    Args:
        model: A model that `regard.watch` takes.
        every_n_steps: Steps between two measurements; the other steps cost nothing without `clip_threshold`.
        gradients: Whether to measure the gradients that heads receive; queries, keys and values are then kept in a
            measured step.
        clip_threshold: The threshold τ of `qk_clip` after each step. All steps are then watched for their highest
            scores. Default: no clipping.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If a number is out of range; within a step as `regard.watch` and, with `clip_threshold`, after
            it as `qk_clip`.

    Examples:
        >>> import regard, torch
        >>> model = torch.nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=16, batch_first=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = regard.watching.AttentionMonitor(model, every_n_steps=2)
        >>> for step in range(3):
        ...     with monitor:
        ...         loss = model(torch.randn(4, 9, 16)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        >>> monitor.heads["self_attn"].entropy.shape, sorted(monitor.metrics)[0]
        (torch.Size([2]), 'attention/self_attn/entropy')
    """

    def __init__(
        self,
        model: nn.Module,
        every_n_steps: int = 100,
        *,
        gradients: bool = False,
        clip_threshold: float | None = None,
    ) -> None:
        check_options(every_n_steps, gradients, clip_threshold)
        self.model, self.every_n_steps, self.gradients = model, every_n_steps, gradients
        self.clip_threshold = clip_threshold
        self.step = 0
        """How many steps have begun."""
        self.heads: dict[str, HeadStatistics] = {}
        """By the name of each attention module, what was measured last."""
        self.metrics: dict[str, float] = {}
        """The same for each layer: ``attention/LAYER/entropy`` and so on, means or, of ``max``, maxima over heads."""
        self.clipped: dict[str, Tensor] = {}
        """By the name of each attention module, γ of each head in the last step, (heads,); see `qk_clip`."""
        self._logits: dict[str, Tensor] = {}
        self._listener: Listener | None = None
        self._is_measured = False

    def __enter__(self) -> Self:
        self.begin(self.step % self.every_n_steps == 0)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.end()
        else:
            self.cancel(error)

    def begin(self, is_measured: bool = True) -> None:
        """Begin a step: what the ``with`` block does, for loops that call functions before and after a step."""
        self.step += 1
        self._is_measured = is_measured
        if not is_measured and self.clip_threshold is None:
            return
        measures = ("entropy", "max", "received") if is_measured else ("max",)
        gradients = self.gradients and is_measured
        listener = watch(self.model, measures, keep_qk=gradients, weight_gradients=gradients)
        assert isinstance(listener, Listener)
        listener.preemptible = True  # the loop may fail within a step, so another watch may end it
        listener.__enter__()
        self._listener = listener

    def end(self, has_stepped: bool = True) -> bool:
        """End a step: read what was measured, and clip. Returns whether it was measured.

        Args:
            has_stepped: Whether the optimizer has stepped. If not, clipping waits for the end of another batch.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return False
        listener.__exit__(None, None, None)
        layers: dict[str, list[LayerRecorder]] = {}
        for recording in listener.result._recordings:
            for recorder in recording.values():
                layers.setdefault(recorder.name, []).append(recorder)
        with torch.no_grad():
            if self._is_measured:
                self.heads = {name: _statistics(recorders) for name, recorders in layers.items()}
                self.metrics = _metrics(self.heads)
            if self.clip_threshold is not None:
                self._collect_logits(layers)
                if has_stepped:
                    self.clipped = qk_clip(self.model, self._logits, self.clip_threshold)
                    self._logits = {}
        return self._is_measured

    def cancel(self, error: BaseException | None = None) -> None:
        """End a step that has failed: nothing is measured."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.__exit__(None if error is None else type(error), error, None)

    def _collect_logits(self, layers: dict[str, list[LayerRecorder]]) -> None:
        """Add the highest scores of a batch to those of the step."""
        for name, recorders in layers.items():
            module = name.partition("#")[0]  # which may be called several times
            if any(recorder.may_have_bias for recorder in recorders):
                raise InvalidArgument(
                    f"clip_threshold: the scores of {module} are or may be more than products of queries and keys, as "
                    "with a bias, so that the scale of these does not bound them; leave clip_threshold out"
                )
            parts = [_max_logit(recorder) for recorder in recorders]
            parts += [self._logits[module]] if module in self._logits else []
            self._logits[module] = torch.stack(parts).amax(0)


def check_options(every_n_steps: int, gradients: bool, clip_threshold: float | None) -> None:
    """Check the arguments of `AttentionMonitor`."""
    with Checks() as checks:
        checks.integer("every_n_steps", every_n_steps, low=1)
        checks.number("clip_threshold", clip_threshold, above=0, optional=True)
        if not isinstance(gradients, bool):
            checks.fail_type(f"gradients: expected True or False, got {short_repr(gradients)}")


def stop_stale_watch(model: nn.Module) -> None:
    """End the watch of a training that failed."""
    listener = listener_for(model)
    if listener is not None and listener.preemptible:
        listener.end()


def _rows(recorder: LayerRecorder) -> Tensor:
    """Which rows are not padding, (batch, 1, queries)."""
    score, valid = recorder.measured["max"].score, recorder.valid_queries
    return torch.ones_like(score[:, :1], dtype=torch.bool) if valid is None else valid[:, None]


def _max_logit(recorder: LayerRecorder) -> Tensor:
    """(heads,) the highest score."""
    return recorder.measured["max"].score.detach().masked_fill(~_rows(recorder), -torch.inf).amax((0, 2))


def _statistics(recorders: list[LayerRecorder]) -> HeadStatistics:
    """Those of all calls of a layer: means over their rows, and maxima."""
    count: Any = 0
    entropy: Any = 0
    sink: Any = 0
    logits: list[Tensor] = []
    shares: list[Tensor] = []
    gradients: list[Tensor] = []
    for recorder in recorders:
        rows, measured = _rows(recorder), recorder.measured
        lengths = rows.sum(2)  # (batch, 1)
        received = measured["received"].detach().double()  # (batch, heads, keys)
        first = rows.int().argmax(2, keepdim=True) if rows.shape[2] == received.shape[2] else rows.new_zeros(1, 1, 1)
        on_first = received.gather(2, first.long().expand(*received.shape[:2], 1))[..., 0]
        count = count + lengths.sum()
        entropy = entropy + (measured["entropy"].detach().double() * rows).sum((0, 2))
        sink = sink + (lengths - received.sum(2) + on_first).sum(0)
        logits.append(_max_logit(recorder))
        shares.append((received.amax(2) / lengths.clamp(min=1)).amax(0))
        gradients += [each.total for each in recorder.output_gradients if each.total is not None]
    norms = [each.detach().double().square().sum((0, 2, 3)) for each in gradients]
    return HeadStatistics(
        torch.stack(logits).amax(0),
        entropy / max(count, 1),
        sink / max(count, 1),
        torch.stack(shares).amax(0),
        torch.stack(norms).sum(0).sqrt() if norms else None,
    )


def _metrics(heads: dict[str, HeadStatistics]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, statistics in heads.items():
        for field, value in statistics._asdict().items():
            if value is not None:
                reduced = value.max() if field.startswith("max") else value.mean()
                metrics[f"attention/{name}/{field}"] = float(reduced)
    return metrics
