"""The listeners that are active, and what the first of them installs and the last one removes."""

from __future__ import annotations

import sys
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import nn

if TYPE_CHECKING:
    from regard.watching.block import WatchBlock
    from regard.watching.listener import Listener

_active: list[ref[Any]] = []
_lock = RLock()


class _Installed:
    """What is installed for all watches. Installing and removing can be interrupted at any point and done again."""

    def __init__(self) -> None:
        self._stance: Any = None
        self._interfaces: dict[int, Any] = {}  # of transformers, by id

    def install(self, listener: WatchBlock) -> None:
        """Run compiled code eagerly, because it calls no hooks, and wrap transformers' functions for a model."""
        import torch._dynamo

        stance = torch._dynamo.set_stance
        if self._stance is None:
            self._stance = stance.__new__(stance)  # held before it takes effect, since it holds the stance before
        if hasattr(self._stance, "prev"):
            self._stance.__enter__()
        else:
            self._stance.__init__("force_eager")
        if sys.modules.get("transformers"):  # otherwise there are no models of it
            from regard.watching.transformers_attention import wrap_interfaces

            wrap_interfaces(self._interfaces, listener.classes)

    def remove(self) -> None:
        """Restore what was there."""
        if self._interfaces:
            from regard.watching.transformers_attention import unwrap_interfaces

            unwrap_interfaces(self._interfaces)
        if hasattr(self._stance, "prev"):
            self._stance.__exit__(None, None, None)
        self._stance = None


_installed = _Installed()


def activate(listener: WatchBlock) -> None:
    """Add a listener. With the first one, compiled code runs eagerly and transformers' functions are wrapped."""
    with _lock:
        _active.append(ref(listener))
        _installed.install(listener)


def deactivate(listener: ref[WatchBlock]) -> None:
    """Remove a listener, in whatever order they end, and with the last one what was installed."""
    with _lock:
        _active[:] = [each for each in _active if each is not listener]
        remove_leftovers()


def remove_leftovers() -> None:
    """Remove what is installed if there are no listeners, as after removing it was interrupted."""
    with _lock:
        _active[:] = [each for each in _active if each() is not None]
        if not _active:
            _installed.remove()


def listener_for(module: nn.Module) -> Listener | None:
    """The listener of the model that a module is in."""
    for each in _active:
        listener = each()
        if listener is not None and id(module) in listener.module_names:
            return listener
    return None


def active_listeners() -> list[Listener]:
    """All of them."""
    return [listener for each in _active if (listener := each()) is not None]
