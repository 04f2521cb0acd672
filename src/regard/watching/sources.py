"""By which door a module's attention passes, read from the source of its class, as transformers itself does."""

from __future__ import annotations

import inspect
from functools import lru_cache

from torch import nn

FUSED = "scaled_dot_product_attention("
DOORS = "get_interface(", "ALL_ATTENTION_FUNCTIONS[", FUSED


@lru_cache(maxsize=None)
def calls_torch(kind: type[nn.Module]) -> bool:
    """Whether it calls torch's fused attention itself."""
    return FUSED in _source(kind)


@lru_cache(maxsize=None)
def is_its_own(kind: type[nn.Module]) -> bool:
    """Whether it is attention that passes through no door, so that nobody hears of its weights."""
    if "attention" not in kind.__name__.lower() or kind.__module__.startswith("torch."):
        return False
    source = _source(kind)
    own = "softmax(" in source.lower() or "eager_attention_forward" in source
    return own and not any(door in source for door in DOORS)


def _source(kind: type[nn.Module]) -> str:
    """Of the class and of those that it inherits from, but for torch's."""
    found = []
    for base in kind.__mro__:
        if issubclass(base, nn.Module) and not base.__module__.startswith("torch."):
            try:
                found.append(inspect.getsource(base))
            except (OSError, TypeError):  # typed in by hand
                continue
    return "\n".join(found)
