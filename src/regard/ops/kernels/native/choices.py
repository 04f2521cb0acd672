"""Where SDPA computes the output alone faster than the native kernel: a table that ``benchmarks/native.py`` writes.

By instruction set, bytes of the second-level cache and dtype, alone or as ``"float32, backward"`` for both passes, the
table lists ``[work, kernel]``, by rising work: from so much work on, this kernel is faster. Work is the number of
multiply-adds of the forward pass for a sequence.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import log
from pathlib import Path

from regard.native.library import LEVELS

FILE = Path(__file__).with_name("choices.json")

Steps = list[tuple[float, str]]
"""From how much work on a kernel is faster."""
Choices = dict[str, dict[str, dict[str, Steps]]]
"""Steps by instruction set, bytes of the second-level cache, and dtype."""


@lru_cache(maxsize=1)
def read_choices() -> Choices:
    """The table in the package."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def steps_for(level: str, cache_bytes: int, dtype: str, has_gradients: bool = False) -> Steps:
    """The steps in the package's table for a processor, as `similar_steps` returns them.

    Args:
        level: The instruction set.
        cache_bytes: Bytes of the second-level cache.
        dtype: Name of the dtype.
        has_gradients: Whether a backward pass follows. Where none was measured, the forward pass decides.
    """
    both = similar_steps(read_choices(), level, cache_bytes, f"{dtype}, backward") if has_gradients else []
    return both or similar_steps(read_choices(), level, cache_bytes, dtype)


def similar_steps(choices: Choices, level: str, cache_bytes: int, dtype: str) -> Steps:
    """The steps of the measured processor that is most like this one.

    It has the same instruction set, or the best lower one that was measured, and of these the most similar cache.
    """
    for name in reversed(LEVELS[: LEVELS.index(level) + 1]):
        measured = {int(size): by_dtype[dtype] for size, by_dtype in choices.get(name, {}).items() if dtype in by_dtype}
        if measured:
            return measured[min(measured, key=lambda size: abs(log(size / cache_bytes)))]
    return []


def is_sdpa_faster(steps: Steps, work: float) -> bool:
    """Whether SDPA computes the output alone faster.

    Args:
        steps: Those of a processor and a dtype.
        work: Multiply-adds for a sequence.
    """
    kernel = "native"
    for start, faster in steps:
        if work >= start:
            kernel = faster
    return kernel == "sdpa"
