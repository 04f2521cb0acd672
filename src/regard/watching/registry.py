"""The listeners that are active, and what the first of them installs and the last one removes."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from threading import RLock
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from regard.watching.listener import Listener

_active: list[Listener] = []
_installed = ExitStack()
_lock = RLock()


def activate(listener: Listener) -> None:
    """Add a listener. With the first one, compiled code runs eagerly and transformers' functions are wrapped."""
    with _lock:
        if not _active:
            _installed.enter_context(torch.compiler.set_stance("force_eager"))  # hooks do not run in compiled code
        if sys.modules.get("transformers"):  # otherwise there are no models of it
            from regard.watching.transformers_attention import install

            install(_installed, listener.classes)
        _active.append(listener)


def deactivate(listener: Listener) -> None:
    """Remove a listener, in whatever order they end, and with the last one what was installed."""
    with _lock:
        if listener in _active:
            _active.remove(listener)
        if not _active:
            _installed.close()


def listener_for(module: nn.Module) -> Listener | None:
    """The listener of the model that a module is in."""
    return next((listener for listener in _active if id(module) in listener.module_names), None)


def active_listeners() -> tuple[Listener, ...]:
    """All of them."""
    return tuple(_active)
