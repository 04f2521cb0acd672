"""The second-level cache of this processor, as the operating system reports it."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

DEFAULT_BYTES = 2**20
"""Where the operating system does not say."""
MIN_BYTES, MAX_BYTES = 2**17, 2**23
"""Virtual machines report anything."""

SYSFS = Path("/sys/devices/system/cpu/cpu0")


@lru_cache(maxsize=1)
def second_level_bytes() -> int:
    """The share of a core in the second-level cache."""
    found = {"linux": linux_bytes, "darwin": macos_bytes}.get(sys.platform, lambda: None)()
    return min(max(found or DEFAULT_BYTES, MIN_BYTES), MAX_BYTES)


def linux_bytes(cpu: Path = SYSFS) -> int | None:
    """From the files of a processor in sysfs; None if they are missing or not as documented."""
    try:
        threads = _count((cpu / "topology" / "thread_siblings_list").read_text())
        for cache in sorted(cpu.glob("cache/index*")):
            level, kind, size, sharing = (
                (cache / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
            )
            if level == "2" and kind != "Instruction":
                units = {"K": 2**10, "M": 2**20}
                total = int(size.rstrip("KM")) * units.get(size[-1:], 1)
                return total * threads // max(_count(sharing), threads)
    except (OSError, ValueError):
        pass
    return None


def _count(cpus: str) -> int:
    """How many processors a list such as ``0-3,8`` names."""
    ends = [part.split("-") for part in cpus.strip().split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def macos_bytes() -> int | None:
    """From sysctl: Apple's fast cores share a cache in clusters. None if it does not say."""
    size = _sysctl("hw.perflevel0.l2cachesize") or _sysctl("hw.l2cachesize")
    cores = _sysctl("hw.perflevel0.cpusperl2") or 1
    return None if size is None else size // cores


def _sysctl(name: str) -> int | None:
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)  # names of 32 bits fill the lower half
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed or value.value <= 0 else value.value
