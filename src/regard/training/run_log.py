"""The log of a run: lines on the console and in ``train.log``."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console
from rich.logging import RichHandler

from regard.errors import RegardError
from regard.files import naming

log = logging.getLogger("regard.training")
LOG_FILE = "train.log"


@contextmanager
def logging_to(folder: Path) -> Iterator[Console]:
    """Log to the console and to ``train.log`` on rank 0, with the error that ends the run; silence Fabric's INFO."""
    console = Console(stderr=True)
    handlers: list[logging.Handler] = []
    if rank_zero_only.rank == 0:
        bar = RichHandler(console=console, show_level=False, show_path=False) if console.is_terminal else None
        with naming(folder / LOG_FILE):
            handlers = [bar or logging.StreamHandler(), _LogFile(folder / LOG_FILE, encoding="utf-8")]
        handlers[0].setLevel(logging.INFO)
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    fabric = logging.getLogger("lightning_fabric")
    level, propagate, fabric_level = log.level, log.propagate, fabric.level
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.DEBUG)  # debug messages are in the file only
    log.propagate = False  # a configured root logger would print each line again
    fabric.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # what replaces it needs torch 2.13
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a state is saved also by one process
            yield console
    except Exception as error:
        reason = str(error) if isinstance(error, RegardError) else f"{type(error).__name__}: {error}"
        with suppress(RegardError):  # the disk may be full
            log.debug("ended by an error: %s", reason)
        raise
    finally:
        log.setLevel(level)
        log.propagate = propagate
        fabric.setLevel(fabric_level)
        for handler in handlers:
            log.removeHandler(handler)
            with naming(folder / LOG_FILE):  # what could not be written is tried again
                handler.close()


class _LogFile(logging.FileHandler):
    """A log that raises an `InvalidFile` when it cannot be written; logging prints a traceback and goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a method of logging
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        with naming(self.baseFilename):
            raise error
