"""Find and load the library for this processor, and call it.

The structures are those of `csrc/call.h`; keep them in step.
"""

from __future__ import annotations

import ctypes
import os
import sys
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVELS = ("baseline", "avx2", "avx512", "avx512bf16", "amx")
"""Instruction sets, by what `regard_level` returns."""

MIN_WORK_PER_THREAD = 2**17
"""Multiply-adds for which a second thread pays off, about ten microseconds."""

MIN_ELEMENTS_PER_THREAD = 2**15
"""Elements of an activation for which a second thread pays off, about ten microseconds."""

MAX_WORK = 2**33
"""Multiply-adds after which Python can notice Ctrl-C: less than a second on one core."""


MaskKind = IntEnum(
    "MaskKind",
    """
    WINDOW RANGES SAME_DOCUMENT DENSE
    AND OR NOT
    """,
    start=0,
)
"""Steps of a mask, as in csrc/call.h."""

ScoreKind = IntEnum("ScoreKind", "ADD_BIAS ADD_DISTANCES ADD_RELATIVE_KEY ADD_RELATIVE_QUERY SOFT_CAP", start=0)
"""Steps of a score, as in csrc/call.h."""

MeasureKind = IntEnum(
    "MeasureKind",
    """
    ENTROPY LSE MAX MEAN_DISTANCE MASS DIAGONAL HISTOGRAM TOPK DIVERGENCE SELECT RECEIVED TRANSPOSED BLOCK_MEAN
    GROUP_POOL
    """,
    start=0,
)
"""Measures, as in csrc/measures/all.h."""

KINDS = " ".join(kind.name for kinds in (MaskKind, ScoreKind, MeasureKind) for kind in kinds)
"""The names of all kinds by their numbers, as `regard_kinds` returns them."""

INT, POINTER = ctypes.c_int64, ctypes.c_void_p


class Strided(ctypes.Structure):
    """A tensor of up to four axes, with 0 as the stride of axes along which it is broadcast."""

    _fields_ = [("data", POINTER), *((name, INT) for name in ("batch", "head", "row", "column", "dtype"))]


class MaskStep(ctypes.Structure):
    """A step of a mask."""

    _fields_ = [*((name, INT) for name in ("kind", "left", "right")), ("first", Strided), ("second", Strided)]


class MaskSteps(ctypes.Structure):
    """A mask."""

    _fields_ = [("count", INT), ("steps", ctypes.POINTER(MaskStep))]


class ScoreStep(ctypes.Structure):
    """A step that changes scores."""

    _fields_ = [
        ("kind", INT),
        ("cap", ctypes.c_float),
        ("shift", INT),
        ("values", Strided),
        ("gradient", POINTER),
        ("gradient_batch", INT),
        ("gradient_head", INT),
    ]


class NativeMatrix(ctypes.Structure):
    """The tensors and rules of a weight matrix; `Matrix` in ``csrc/call.h``."""

    _fields_ = [
        *((name, INT) for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")),
        *(("query", Strided), ("key", Strided), ("scale", ctypes.c_float), ("offset", INT)),
        *((name, POINTER) for name in ("batch_index", "head_index", "row_index")),
        *(("mask", MaskSteps), ("score_steps", INT), ("scores", ctypes.POINTER(ScoreStep)), ("sinks", POINTER)),
    ]


class MeasureCall(ctypes.Structure):
    """A measure, and where its results go."""

    _fields_ = [
        *((name, INT) for name in ("kind", "number", "height", "width")),
        *((name, Strided) for name in ("values", "row_groups", "key_groups")),
        *(("mask", MaskSteps), ("other", ctypes.POINTER(NativeMatrix))),
        *((name, POINTER) for name in ("result", "second", "by_chunk")),
        ("stride", INT),
        *((name, POINTER) for name in ("gradient", "second_gradient", "values_gradient")),
    ]


class NativeCall(ctypes.Structure):
    """One call of the kernel; `Call` in ``csrc/call.h``."""

    _fields_ = [
        *(("matrix", NativeMatrix), ("value_heads", INT), ("value_dim", INT), ("value", Strided), ("output", Strided)),
        *(("measure_count", INT), ("measures", ctypes.POINTER(MeasureCall))),
        *(("dropout", ctypes.c_double), ("seed", ctypes.c_uint64)),
        *((name, INT) for name in ("chunks", "chunk_rows", "cache_bytes", "sums_batch", "sums_heads")),
        *(("output_gradient", Strided), ("saved_lse", POINTER)),
        *((name, POINTER) for name in ("query_gradient", "key_gradient", "value_gradient", "sinks_gradient")),
        *((name, POINTER) for name in ("key_total", "value_total")),
    ]


class LinearCall(ctypes.Structure):
    """A product of a few rows with a matrix of weights."""

    _fields_ = [
        *((name, INT) for name in ("rows", "in_features", "out_features")),
        *((name, POINTER) for name in ("x", "weight", "bias", "y")),
        ("dtype", INT),
    ]


class GeluCall(ctypes.Structure):
    """A GELU with tanh, or its gradient."""

    _fields_ = [("count", INT), *((name, POINTER) for name in ("x", "gradient", "y")), ("dtype", INT)]


DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes of query, key and value, and their numbers."""


def strided(tensor: Tensor) -> Strided:
    """A tensor of four axes as the library sees it. The caller keeps it alive."""
    return Strided(tensor.data_ptr(), *tensor.stride(), DTYPES.get(tensor.dtype, 0))


class Library:
    """The library for an instruction set.

    Args:
        level: One of `LEVELS`.
    """

    def __init__(self, level: str) -> None:
        self.level = level
        loaded = _load(level)
        self._run: Any = loaded.regard_run
        self._linear: Any = loaded.regard_linear
        self._gelu: Any = loaded.regard_gelu
        self._parallel, self._process = _torch_parallel(), os.getpid()

    def run(self, call: NativeCall, backward: bool = False) -> None:
        """Compute a call, forward or backward.

        Raises:
            MemoryError: If there is not enough memory.
        """
        matrix = call.matrix
        heads_of_task = (matrix.batch if call.sums_batch else 1) * (matrix.heads if call.sums_heads else 1)
        tasks = matrix.batch * matrix.heads // max(heads_of_task, 1) * call.chunks
        work = heads_of_task * call.chunk_rows * matrix.keys * (matrix.head_dim + call.value_dim)  # of a task
        if work == 0:
            return
        threads = max(1, min(torch.get_num_threads(), tasks, int(tasks * work / MIN_WORK_PER_THREAD)))
        step = max(threads, int(MAX_WORK / work) // threads * threads)
        reference, parallel = ctypes.byref(call), self._team()
        for first in range(0, tasks, step):
            last = INT(min(first + step, tasks))
            if self._run(reference, int(backward), INT(first), last, threads, parallel):
                raise MemoryError(
                    f"attention of {matrix.queries} queries and {matrix.keys} keys: not enough memory for a block"
                )

    def run_linear(self, call: LinearCall) -> None:
        """Compute the product of a few rows with a matrix of weights.

        Raises:
            MemoryError: If there is not enough memory.
        """
        work = call.rows * call.in_features * call.out_features
        threads = max(1, min(torch.get_num_threads(), work // MIN_WORK_PER_THREAD))
        if self._linear(ctypes.byref(call), threads, self._team()):
            raise MemoryError(
                f"{call.rows} rows and {call.out_features} x {call.in_features} weights: not enough memory"
            )

    def run_gelu(self, call: GeluCall) -> None:
        """Compute a GELU or its gradient."""
        threads = max(1, min(torch.get_num_threads(), call.count // MIN_ELEMENTS_PER_THREAD))
        self._gelu(ctypes.byref(call), threads, self._team())

    def _team(self) -> ctypes.c_void_p | None:
        """The function that runs tasks on torch's threads; None in a fork, which has none of them."""
        return self._parallel if os.getpid() == self._process else None


@lru_cache(maxsize=len(LEVELS) + 1)
def library(level: str | None = None) -> Library | str:
    """The library for this processor, or why there is none; the level or `REGARD_ISA` names a lower instruction set."""
    try:
        best = LEVELS[: _load("baseline").regard_level() + 1]
    except OSError as error:
        advice = "there is none for Windows"
        if sys.platform != "win32":
            advice = "`pip install .` in a clone builds it, which needs a C++ compiler"
        return f"its library cannot be loaded ({error}); {advice}"
    name = level or os.environ.get("REGARD_ISA") or best[-1]
    if name not in best:
        known = ", ".join(best)
        if level is not None:
            return f"level={level!r}, but this processor has {known}; choose one of these"
        return f"REGARD_ISA={name}, but this processor has {known}; choose one of these or unset it"
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
        loaded.regard_kinds.restype = ctypes.c_char_p
        is_current = (
            loaded.regard_call_bytes() == sum(map(ctypes.sizeof, (NativeCall, LinearCall, GeluCall)))
            and loaded.regard_kinds().decode().split() == KINDS.split()
        )
    except AttributeError:
        is_current = False
    if not is_current:
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
