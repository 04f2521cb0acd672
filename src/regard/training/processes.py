"""The processes of a training: what one raises, all raise, and a process that is lost is named by the others."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import distributed
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    ProcessGroup,
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.rendezvous import rendezvous

from regard.errors import InvalidRecipe, ProcessLost, RegardError, raise_problems, short_repr
from regard.training.interrupt import TrainingInterrupted
from regard.training.launch import find_launched, meeting_address

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # takes seconds to load, and a wrong recipe is refused before

PERIOD, SILENCE, GRACE = 1.0, 15.0, 10.0
"""Seconds between signs of life, until a process without one counts as lost, and until one that waits for it ends."""
POLL, PRINT = 0.02, 0.5
"""Seconds between looks for a value of another process, and that process 0 gets to print an error."""


class Lost(NamedTuple):
    """The first process that has ended too early.

    Args:
        rank: Its number.
        reason: Its error, which process 0 prints; empty if it was killed, or has printed a traceback.
    """

    rank: int
    reason: str = ""


class Processes:
    """The processes of a training; one process alone needs nothing of this.

    Those of torchrun or Slurm meet at the beginning of the block, before files are read, so that whatever is wrong is
    one sentence of process 0. Those that Fabric starts meet in `start`.

    Each process counts in the store in which they met. Process 0 watches the counts of the others, and they watch that
    of process 0. A killed process closes its connections, which fails the collectives of its neighbors; a machine that
    is gone does not, and GPUs wait for either. So a process that still waits some seconds after one was lost is ended.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
        group: All processes, with a backend for the CPU, for what the main thread sends; None for one process, and
            before `start`.
        saving_group: The same, for the thread that saves: two threads must not send in one group.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.group: ProcessGroup | None = None
        self.saving_group: ProcessGroup | None = None
        self._store: Any = None
        self._num_gathered = 0
        self._lost: Lost | None = None
        self._seen: dict[int, tuple[int, float]] = {}
        self._has_lost, self._has_ended = threading.Event(), threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        launched = find_launched()
        if launched is not None and launched.size > 1:
            store, self.rank, self.size = next(rendezvous(meeting_address(launched)))
            number = (store.add("trainings", 1) - 1) // self.size  # those before have ended on all processes
            self._store = PrefixStore(f"training {number}", store)
        return self

    def start(self, fabric: Fabric) -> None:
        """Begin to watch the processes that Fabric has launched."""
        self.rank, self.size = fabric.global_rank, fabric.world_size
        if self.size == 1:
            return
        for thread in threading.enumerate():
            if thread.name == "child-process-observer":  # Lightning's, which kills process 0 without a message
                thread._child_processes = []  # pyright: ignore[reportAttributeAccessIssue]
        # a lost process is noticed, so that preparing data and slow disks may take their time
        groups: list[Any] = [distributed.new_group(backend="gloo", timeout=timedelta(days=365)) for _ in range(2)]
        self.group, self.saving_group = groups
        if self._store is None:
            store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
            self._store = PrefixStore(self.broadcast(secrets.token_hex(8)), store)
        self._store.set_timeout(timedelta(seconds=SILENCE))
        self._watcher = threading.Thread(target=self._watch, name="watching processes", daemon=True)
        self._watcher.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the other processes about an error.

        Raises:
            SystemExit: On other processes than 0, after an error that process 0 prints.
        """
        if self._store is None:
            return
        self._has_ended.set()
        is_first = self._lost is None
        if error is not None and is_first:
            self._report(Lost(self.rank, str(error) if isinstance(error, RegardError) else ""))
        if self._watcher is not None:
            self._watcher.join(2 * PERIOD)
        if not is_connection_error(error) and is_first and distributed.is_initialized():
            distributed.destroy_process_group()  # threads of gloo that run when a process exits can abort it
        if self.rank == 0 and error is not None:
            with suppress(RuntimeError):
                self._store.set("printed", "1")  # in a moment
        prints = self._lost is not None and (self._lost.reason or isinstance(error, SystemExit))  # process 0
        if self.rank and prints and isinstance(error, (RegardError, SystemExit)):
            self._wait_for_print()
            raise SystemExit(2) from error

    def raise_lost(self, error: RuntimeError) -> None:
        """Raise the reason for the error of a broken connection, if another process is the reason.

        Raises:
            ProcessLost: If another process has ended or does not answer, or found that this one did not.
        """
        if self._watcher is None or not is_connection_error(error):
            return
        self._has_lost.wait(2 * SILENCE)
        if self._lost is not None:
            raise ProcessLost(self._describe()) from error

    def stop(self, reason: str) -> None:
        """Say why this process ends, without waiting for the others."""
        if self._watcher is not None:
            self._report(Lost(self.rank, reason))
            if self.rank:
                self._wait_for_print()

    def broadcast(self, value: Any) -> Any:
        """The value of process 0."""
        if self.group is None:
            return self.gather(value)[0]
        values = [value]
        distributed.broadcast_object_list(values, group=self.group)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes."""
        if self._store is None and self.group is None:
            return [value]
        if self.group is None:
            return self._gather_in_store(value)
        values = [value] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        return values

    @contextmanager
    def together(self) -> Generator[None, None, None]:
        """Run a block on all processes; if it fails on one, process 0 raises the error and the others exit.

        Raises:
            RegardError: Of the type of the first error, with those of all processes.
            SystemExit: On the other processes, after an error.
        """
        own: RegardError | None = None
        try:
            yield
        except (TrainingInterrupted, ProcessLost):
            raise
        except RegardError as error:
            own = error
        errors = self.gather(own and (type(own), str(own)))
        failed = {rank: error for rank, error in enumerate(errors) if error is not None}
        if not failed:
            return
        if self.rank:
            raise SystemExit(2)
        if own is not None and set(failed.values()) == {(type(own), str(own))}:
            raise own
        kind, _ = next(iter(failed.values()))
        problems = [f"process {rank}: {message}" for rank, (_, message) in failed.items()]
        raise_problems(problems, kind)

    def check_same(self, values: Mapping[str, Any], what: str) -> None:
        """Check that all processes have the values of process 0.

        Args:
            values: The values by their keys.
            what: What messages call their source.

        Raises:
            InvalidRecipe: With every key whose value differs.
        """
        expected = self.broadcast(dict(values))
        with self.together():
            problems = [
                f"{key}: expected {short_repr(expected.get(key))} as on process 0, got {short_repr(values.get(key))}; "
                f"start all processes with the same {what}"
                for key in dict.fromkeys((*expected, *values))
                if expected.get(key) != values.get(key)
            ]
            raise_problems(problems, InvalidRecipe)

    def _gather_in_store(self, value: Any) -> list[Any]:
        """The values of all processes before they have a group."""
        self._num_gathered += 1
        name = f"gathered {self._num_gathered}"
        try:
            self._store.set(f"{name} {self.rank}", pickle.dumps(value))
            values = [pickle.loads(self._wait(f"{name} {rank}")) for rank in range(self.size)]
            if self._store.add(name, 1) == self.size:
                self._store.set(f"{name} by all", "1")
            if self.rank == 0:  # the store can be in this process
                self._wait(f"{name} by all")
        except RuntimeError as error:
            self._lost = Lost(0)
            raise ProcessLost(self._describe()) from error
        return values

    def _wait(self, key: str) -> bytes:
        while not self._store.check([key]):
            lost = self._find_lost()
            if lost is not None and not self._store.check([key]):  # it may have set the key and then ended
                self._lost = lost
                raise ProcessLost(self._describe())
            time.sleep(POLL)
        return self._store.get(key)

    def _watch(self) -> None:
        while not self._has_ended.wait(PERIOD):
            try:
                self._lost = self._look()
            except RuntimeError:  # the store is in process 0 or in what started it
                self._lost = Lost(0)
            if self._lost is not None:
                self._has_lost.set()
                if not self._has_ended.wait(GRACE):
                    if not (self.rank and self._lost.reason):
                        os.write(2, f"\nregard: {self._describe()}\n".encode())
                    os._exit(2)
                return

    def _look(self) -> Lost | None:
        """Give a sign of life, and return the lost process."""
        self._store.add(f"count {self.rank}", 1)
        now = time.monotonic()
        for other in [0] if self.rank else range(1, self.size):
            count = self._store.add(f"count {other}", 0)
            old, since = self._seen.get(other, (None, now))
            if count != old:
                self._seen[other] = count, now
            elif now - since > SILENCE:
                self._report(Lost(other))
        return self._find_lost()

    def _report(self, lost: Lost) -> None:
        """Report a process as lost, unless one was before."""
        with suppress(RuntimeError):  # the store can have ended, too
            self._store.compare_set("lost", "", json.dumps(lost))
            self._lost = self._find_lost()

    def _find_lost(self) -> Lost | None:
        return Lost(*json.loads(self._store.get("lost"))) if self._store.check(["lost"]) else None

    def _wait_for_print(self) -> None:
        """Wait until process 0 has printed the error: a launcher that sees this process end ends process 0, too."""
        end = time.monotonic() + GRACE
        with suppress(RuntimeError):
            while not self._store.check(["printed"]) and time.monotonic() < end:
                time.sleep(POLL)
            time.sleep(PRINT)

    def _describe(self) -> str:
        assert self._lost is not None
        if self._lost.rank == self.rank:
            return (
                f"process {self.rank} of {self.size} did not answer for {SILENCE:.0f} seconds, so the others have "
                "ended; --resume continues from the last complete state"
            )
        if self._lost.reason:
            return f"process {self._lost.rank}: {self._lost.reason}"
        return (
            f"process {self._lost.rank} of {self.size} has ended or does not answer, so process {self.rank} ends; its "
            "own messages say why; --resume continues from the last complete state"
        )


def is_connection_error(error: BaseException | None) -> bool:
    """Whether an error can be one of torch's about a connection to another process."""
    return isinstance(error, RuntimeError) and not isinstance(error, (RegardError, torch.OutOfMemoryError))
