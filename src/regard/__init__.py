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
    from regard import analysis, explore, generation, models, nn, ops, text, training
    from regard.ops.attend import Attended, attend, weights
    from regard.ops.masks import Causal, Padding, Window
    from regard.ops.matrix import WeightMatrix
    from regard.ops.measures import Entropy, Lse, Received, TopK

__version__ = "0.1.0.dev0"

_HOMES = {
    "Attended": "regard.ops.attend",
    "Causal": "regard.ops.masks",
    "Entropy": "regard.ops.measures",
    "Lse": "regard.ops.measures",
    "Padding": "regard.ops.masks",
    "Received": "regard.ops.measures",
    "TopK": "regard.ops.measures",
    "WeightMatrix": "regard.ops.matrix",
    "Window": "regard.ops.masks",
    "attend": "regard.ops.attend",
    "weights": "regard.ops.attend",
}
_MODULES = ("analysis", "explore", "generation", "models", "nn", "ops", "text", "training")

__all__ = [
    "Attended",
    "Causal",
    "Entropy",
    "Lse",
    "Padding",
    "Received",
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
    "text",
    "training",
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
