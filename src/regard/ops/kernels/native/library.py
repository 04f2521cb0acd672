"""Find and load the library for this processor, and call it.

The structures are those of `csrc/call.h`; keep them in step.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVELS = ("baseline", "avx2", "avx512")
"""Instruction sets, by what `regard_level` returns."""

MIN_WORK_PER_THREAD = 2**17
"""Multiply-adds for which a second thread pays off, about ten microseconds."""

MAX_WORK = 2**35
"""Multiply-adds after which Python can notice Ctrl-C, less than a second."""


class Strided(ctypes.Structure):
    """A tensor of up to four axes, with 0 as the stride of axes along which it is broadcast."""

    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "row", "column"))]


class MaskStep(ctypes.Structure):
    """A step of a mask."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("kind", "left", "right")),
        ("first", Strided),
        ("second", Strided),
    ]


class ScoreStep(ctypes.Structure):
    """A step that changes scores."""

    _fields_ = [("kind", ctypes.c_int64), ("cap", ctypes.c_float), ("shift", ctypes.c_int64), ("values", Strided)]


class ColumnSums(ctypes.Structure):
    """Sums over the rows of each head."""

    _fields_ = [("weights", Strided), ("sums", ctypes.c_void_p), ("by_chunk", ctypes.c_void_p)]


class Call(ctypes.Structure):
    """One call."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                *("batch", "heads", "kv_heads", "value_heads", "queries", "keys", "head_dim", "value_dim"),
                "dtype",
            )
        ),
        *((name, Strided) for name in ("query", "key", "value", "output")),
        ("scale", ctypes.c_float),
        ("offset", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("batch_index", "head_index", "row_index")),
        *((name, ctypes.c_int64) for name in ("mask_steps", "score_steps")),
        ("mask", ctypes.POINTER(MaskStep)),
        ("scores", ctypes.POINTER(ScoreStep)),
        *((name, ctypes.c_void_p) for name in ("sinks", "lse", "entropy")),
        ("column_sums", ctypes.c_int64),
        ("columns", ctypes.POINTER(ColumnSums)),
        *((name, ctypes.c_int64) for name in ("chunks", "cache_bytes")),
    ]


def strided(tensor: Tensor) -> Strided:
    """A tensor of four axes as the library sees it. The caller keeps it alive."""
    return Strided(tensor.data_ptr(), *tensor.stride())


class Library:
    """The library for an instruction set.

    Args:
        level: One of `LEVELS`.
    """

    def __init__(self, level: str) -> None:
        self.level = level
        self._run: Any = _load(level).regard_run
        self._run.restype = ctypes.c_int
        self._parallel, self._process = _torch_parallel(), os.getpid()

    def run(self, call: Call) -> None:
        """Compute a call.

        Raises:
            MemoryError: If there is not enough memory.
        """
        tasks = call.batch * call.heads * call.chunks
        work = call.queries * call.keys * (call.head_dim + call.value_dim) / call.chunks  # of a task
        threads = max(1, min(torch.get_num_threads(), tasks, int(tasks * work / MIN_WORK_PER_THREAD)))
        step = max(threads, int(MAX_WORK / work) // threads * threads)
        reference = ctypes.byref(call)
        parallel = self._parallel if os.getpid() == self._process else None  # a fork has none of OpenMP's threads
        for first in range(0, tasks, step):
            last = ctypes.c_int64(min(first + step, tasks))
            if self._run(reference, ctypes.c_int64(first), last, threads, parallel):
                raise MemoryError(f"attention of {call.queries} queries and {call.keys} keys: not enough memory")


@lru_cache(maxsize=1)
def library() -> Library | str:
    """The library for this processor, or why there is none; `REGARD_ISA` names a lower instruction set."""
    try:
        best = LEVELS[: _load("baseline").regard_level() + 1]
    except OSError as error:
        return (
            f"its library cannot be loaded ({error}); `pip install .` in a clone builds it, which needs a C++ compiler"
        )
    name = os.environ.get("REGARD_ISA") or best[-1]
    if name not in best:
        return f"REGARD_ISA={name}, but this processor has {', '.join(best)}; choose one of these or unset it"
    try:
        return Library(name)
    except OSError as error:
        return f"its library for {name} cannot be loaded ({error}); build it, or set REGARD_ISA=baseline"


def _load(level: str) -> ctypes.CDLL:
    path = Path(__file__).with_name("lib") / f"{level}.so"
    if not path.exists():
        raise OSError(f"{path.name} was not built")
    loaded = ctypes.CDLL(str(path))
    try:
        call_bytes = loaded.regard_call_bytes()
    except AttributeError:
        call_bytes = None
    if call_bytes != ctypes.sizeof(Call):
        raise OSError(f"{path.name} was built from other sources")
    return loaded


def _torch_parallel() -> ctypes.c_void_p | None:
    """GNU OpenMP's entry point in the library that torch has loaded, so that both use the same threads."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None
