"""Self-attention at fused speed, with a weight matrix that you can ask anything and never store.

The names below are loaded when they are first used (PEP 562): ``import regard`` is cheap and imports no torch.

Example:
    >>> import regard, torch
    >>> query, key, value = torch.randn(3, 1, 8, 256, 64).unbind()
    >>> attended = regard.attend(query, key, value, mask=regard.Causal(), measure=["entropy"])
    >>> attended.output.shape, attended.measured["entropy"].shape
    (torch.Size([1, 8, 256, 64]), torch.Size([1, 8, 256]))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard import analysis, explore, generation, models, nn, ops, text, watching
    from regard import training as training  # no part of __all__, see _MODULES
    from regard.analysis.recording import open as open  # noqa: A004 - no part of __all__, where it would hide Python's own
    from regard.analysis.trace import trace
    from regard.ops.attend import Attended, attend, weights
    from regard.ops.masks import Causal, Documents, IndexRule, Neighbours, Padding, Prefix, Window
    from regard.ops.matrix import WeightMatrix
    from regard.ops.measures import (
        BlockMean,
        ByDistance,
        Diagonal,
        Entropy,
        Grouped,
        Lse,
        Mass,
        Max,
        MeanDistance,
        Measure,
        Received,
        TopK,
    )
    from regard.ops.rotary import rotary
    from regard.ops.scores import Additive, Alibi, Bias, Buckets, General, Relative, ScaledDot, Sinks, SoftCap
    from regard.watching import watch

__version__ = "0.1.0.dev0"

_HOMES = {
    "Additive": "regard.ops.scores",
    "Alibi": "regard.ops.scores",
    "Attended": "regard.ops.attend",
    "Bias": "regard.ops.scores",
    "BlockMean": "regard.ops.measures",
    "Buckets": "regard.ops.scores",
    "ByDistance": "regard.ops.measures",
    "Causal": "regard.ops.masks",
    "Diagonal": "regard.ops.measures",
    "Documents": "regard.ops.masks",
    "Entropy": "regard.ops.measures",
    "General": "regard.ops.scores",
    "Grouped": "regard.ops.measures",
    "IndexRule": "regard.ops.masks",
    "Lse": "regard.ops.measures",
    "Max": "regard.ops.measures",
    "Mass": "regard.ops.measures",
    "MeanDistance": "regard.ops.measures",
    "Measure": "regard.ops.measures",
    "Neighbours": "regard.ops.masks",
    "Padding": "regard.ops.masks",
    "Prefix": "regard.ops.masks",
    "Received": "regard.ops.measures",
    "Relative": "regard.ops.scores",
    "ScaledDot": "regard.ops.scores",
    "Sinks": "regard.ops.scores",
    "SoftCap": "regard.ops.scores",
    "TopK": "regard.ops.measures",
    "WeightMatrix": "regard.ops.matrix",
    "Window": "regard.ops.masks",
    "attend": "regard.ops.attend",
    "open": "regard.analysis.recording",
    "rotary": "regard.ops.rotary",
    "trace": "regard.analysis.trace",
    "watch": "regard.watching",
    "weights": "regard.ops.attend",
}
# training is no part of `from regard import *`, which must work where its extra is not installed
_MODULES = ("analysis", "explore", "generation", "models", "nn", "ops", "text", "training", "watching")

__all__ = [
    "Additive",
    "Alibi",
    "Attended",
    "Bias",
    "BlockMean",
    "Buckets",
    "ByDistance",
    "Causal",
    "Diagonal",
    "Documents",
    "Entropy",
    "General",
    "Grouped",
    "IndexRule",
    "Lse",
    "Mass",
    "Max",
    "MeanDistance",
    "Measure",
    "Neighbours",
    "Padding",
    "Prefix",
    "Received",
    "Relative",
    "ScaledDot",
    "Sinks",
    "SoftCap",
    "TopK",
    "WeightMatrix",
    "Window",
    "__version__",
    "analysis",
    "attend",
    "explore",
    "generation",
    "models",
    "nn",
    "ops",
    "rotary",
    "text",
    "trace",
    "watch",
    "watching",
    "weights",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"regard.{name}")
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found  # the next use finds it without coming here
        return found
    raise AttributeError(f"module 'regard' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
