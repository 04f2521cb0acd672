"""Ctrl-C and SIGTERM end a training after the current step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only

from regard.errors import RegardError

SIGNALS = signal.SIGINT, signal.SIGTERM  # Ctrl-C, and what a scheduler sends before it kills


class TrainingInterrupted(RegardError):
    """Ctrl-C was pressed, or the process received SIGTERM."""


class Interrupt(L.Callback):
    """Notes that a signal arrived; `Checkpoints` saves at the end of the step and stops the training.

    Before the first step, and at a second signal, the training stops at once.

    Attributes:
        signal: The signal that arrived.
        has_started: Whether the training has started.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.has_started = False

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """Handle signals in this block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Handle SIGTERM again, for which Lightning has just installed a handler that does not save."""
        self.has_started = True
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second, self.signal = self.signal is not None, signal.Signals(number)
        if is_second or not self.has_started:
            raise TrainingInterrupted  # not KeyboardInterrupt, for which Lightning exits with code 1
        if rank_zero_only.rank == 0:
            stop_now = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
            os.write(2, f"\nstopping after this step; {stop_now} to stop now\n".encode())  # print is not reentrant
