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
    from regard.analysis.recording import load
    from regard.analysis.trace import trace
    from regard.ops.attend import AttentionOutput, attend, weights
    from regard.ops.masks import Causal, Documents, MaskMod, Neighbours, Padding, Prefix, Window
    from regard.ops.measures import (
        BlockMean,
        Diagonal,
        DistanceHistogram,
        Entropy,
        GroupPool,
        LogSumExp,
        Mass,
        Max,
        MeanDistance,
        Measure,
        Received,
        TopK,
    )
    from regard.ops.rotary import rotary
    from regard.ops.scores import (
        Additive,
        Alibi,
        Bias,
        Bilinear,
        RelativeKey,
        ScaledDotProduct,
        Sinks,
        SoftCap,
        T5RelativeBias,
    )
    from regard.ops.weight_matrix import WeightMatrix
    from regard.watching import watch

__version__ = "0.1.0.dev0"

_HOMES = {
    "Additive": "regard.ops.scores",
    "Alibi": "regard.ops.scores",
    "AttentionOutput": "regard.ops.attend",
    "Bias": "regard.ops.scores",
    "BlockMean": "regard.ops.measures",
    "T5RelativeBias": "regard.ops.scores",
    "DistanceHistogram": "regard.ops.measures",
    "Causal": "regard.ops.masks",
    "Diagonal": "regard.ops.measures",
    "Documents": "regard.ops.masks",
    "Entropy": "regard.ops.measures",
    "Bilinear": "regard.ops.scores",
    "GroupPool": "regard.ops.measures",
    "MaskMod": "regard.ops.masks",
    "LogSumExp": "regard.ops.measures",
    "Max": "regard.ops.measures",
    "Mass": "regard.ops.measures",
    "MeanDistance": "regard.ops.measures",
    "Measure": "regard.ops.measures",
    "Neighbours": "regard.ops.masks",
    "Padding": "regard.ops.masks",
    "Prefix": "regard.ops.masks",
    "Received": "regard.ops.measures",
    "RelativeKey": "regard.ops.scores",
    "ScaledDotProduct": "regard.ops.scores",
    "Sinks": "regard.ops.scores",
    "SoftCap": "regard.ops.scores",
    "TopK": "regard.ops.measures",
    "WeightMatrix": "regard.ops.weight_matrix",
    "Window": "regard.ops.masks",
    "attend": "regard.ops.attend",
    "load": "regard.analysis.recording",
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
    "AttentionOutput",
    "Bias",
    "Bilinear",
    "BlockMean",
    "Causal",
    "Diagonal",
    "DistanceHistogram",
    "Documents",
    "Entropy",
    "GroupPool",
    "LogSumExp",
    "MaskMod",
    "Mass",
    "Max",
    "MeanDistance",
    "Measure",
    "Neighbours",
    "Padding",
    "Prefix",
    "Received",
    "RelativeKey",
    "ScaledDotProduct",
    "Sinks",
    "SoftCap",
    "T5RelativeBias",
    "TopK",
    "WeightMatrix",
    "Window",
    "__version__",
    "analysis",
    "attend",
    "explore",
    "generation",
    "load",
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
