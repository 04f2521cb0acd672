"""Two machines on one: network namespaces with a cable between them, or the loopback where these are not allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
"""Where ``torchrun`` and ``regard`` are."""


@dataclass(frozen=True)
class Machine:
    """Where commands run.

    Args:
        folder: The working directory.
        address: The address at which the other machine finds it.
        prefix: What runs a command on it.
        environment: Variables of its own.
    """

    folder: Path
    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def two_machines(first: Path, second: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with their working directories, which can be the same: a shared one."""
    names = [f"regard-{os.getpid()}-{number}" for number in range(2)]
    if not _are_namespaces_allowed(names[0]):
        yield Machine(first), Machine(second)
        return
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        machines: list[Machine] = []
        for number, (name, folder) in enumerate(zip(names, (first, second), strict=True), start=1):
            address = f"10.77.0.{number}"
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            prefix = ("ip", "netns", "exec", name)
            # the name of the host is that of the real machine
            machines.append(Machine(folder, address, prefix, {"GLOO_SOCKET_IFNAME": "eth0"}))
        yield machines[0], machines[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run_on(machines: Sequence[Machine], commands: Sequence[Sequence[str]], **environment: str) -> list[tuple[int, str]]:
    """Run a command on each machine at once; return their exit codes and outputs."""
    processes: list[subprocess.Popen[str]] = []
    for machine, command in zip(machines, commands, strict=True):
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        processes.append(
            subprocess.Popen(
                [*machine.prefix, *command],
                cwd=machine.folder,
                env={**os.environ, "PATH": path, **machine.environment, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def _are_namespaces_allowed(name: str) -> bool:
    if shutil.which("ip") is None:
        return False
    allowed = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if allowed:
        _ip("netns", "del", name)
    return allowed


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
