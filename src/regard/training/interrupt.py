"""Ctrl-C and SIGTERM end a training after the current step."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from regard.errors import RegardError

SIGNALS = signal.SIGINT, signal.SIGTERM  # Ctrl-C, and what a scheduler sends before it kills


class TrainingInterrupted(RegardError):
    """Ctrl-C was pressed, or the process received SIGTERM."""


class Interrupt:
    """Notes that a signal arrived; the loop saves at the end of the step and stops.

    Before the first step, and at a second signal, the training stops at once.

    Args:
        is_first: Whether this is process 0, which says that it stops.

    Attributes:
        signal: The signal that arrived.
        has_started: Whether the training has started.
        is_immediate: Whether the training stops at once, which the other processes do not know.
    """

    def __init__(self, *, is_first: bool = True) -> None:
        self.is_first = is_first
        self.signal: signal.Signals | None = None
        self.has_started = self.is_immediate = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second, self.signal = self.signal is not None, signal.Signals(number)
        self.is_immediate = is_second or not self.has_started
        if self.is_immediate:
            raise TrainingInterrupted
        if self.is_first:
            stop_now = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
            os.write(2, f"\nstopping after this step; {stop_now} to stop now\n".encode())  # print is not reentrant
