"""A call that breaks the graph of a compiled program. Its own module, because importing it loads torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


call: Any = torch.compiler.disable(_call)
"""``function(*args)``, outside the compiled program."""
