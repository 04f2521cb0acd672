"""Attention at fused speed, with a weight matrix that is computed on demand and never stored.

The public names are listed in ``__init__.pyi`` and loaded when they are first used: ``import regard`` imports no torch.

Examples:
    >>> import regard, torch
    >>> query, key, value = torch.randn(3, 1, 8, 256, 64).unbind()
    >>> att = regard.attend(query, key, value, mask=regard.Causal(), measure=["entropy"])
    >>> att.output.shape, att.measured["entropy"].shape
    (torch.Size([1, 8, 256, 64]), torch.Size([1, 8, 256]))
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# `from regard import *` must work where the extra of training is not installed.
__all__.remove("training")  # pyright: ignore[reportUnsupportedDunderAll]
