"""What a watch attaches to a model and to torch, and how it is undone, whatever interrupted it."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.hooks import RemovableHandle

from regard.errors import InvalidArgument
from regard.watching import registry

if TYPE_CHECKING:
    from regard.watching.block import WatchBlock
    from regard.watching.torch_attention import SdpaInterceptor

BEFORE, AFTER = "_forward_pre_hooks", "_forward_hooks"
"""Where a module has its hooks, by number."""
FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")
"""What a module knows about its hooks, by number: that they take keyword arguments, and run after an error, too."""
BEFORE_FLAG = "_forward_pre_hooks_with_kwargs"
"""The same of the hooks before: that they take keyword arguments."""


class Hook:
    """A hook that calls a method of a listener. It does not keep the listener alive, and does nothing without it."""

    def __init__(self, listener: WatchBlock, method: Callable[..., None]) -> None:
        self._listener, self._method = ref(listener), method
        self.number = RemovableHandle(OrderedDict()).id  # which no other hook has

    def __call__(self, *args: Any) -> None:
        listener = self._listener()
        if listener is not None:
            self._method(listener, *args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        listener = self._listener()
        name = "the model" if listener is None else type(listener.model).__name__
        raise InvalidArgument(f"{name} is being watched; copy or save it after the watch")


class Attachment:
    """All that a watch changes outside itself: hooks in modules, the mode of torch's functions, and the registry.

    Undoing it removes what may be there instead of remembering what was done, so it can be interrupted at any point and
    done again. That is why hooks are written to the tables of a module by a number that is known before, and without a
    handle for each. It does not keep the listener alive: when a `with` block ends without calling `__exit__`, as an
    interrupt at its first instruction makes it, the listener is freed, and that undoes it, too.

    Args:
        listener: The listener.
        modules: The modules with hooks.
        mode: What intercepts torch's functions while the model runs, if anything does.
    """

    def __init__(self, listener: WatchBlock, modules: Iterable[nn.Module], mode: SdpaInterceptor | None) -> None:
        self._listener, self._mode = ref(listener), mode
        self._modules = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]  # no hooks
        self._before = Hook(listener, type(listener).before_forward)
        self._after = Hook(listener, type(listener).after_forward)

    def attach(self, listener: WatchBlock) -> None:
        """Install everything."""
        registry.activate(listener)
        before, after = self._before, self._after
        for module in self._modules:
            state = vars(module)
            for flag in FLAGS:
                state[flag][after.number] = True
            state[BEFORE_FLAG][before.number] = True
            state[BEFORE][before.number] = before
            state[AFTER][after.number] = after

    def detach(self) -> None:
        """Undo everything that is installed, if anything is."""
        registry.deactivate(self._listener)
        before, after = self._before.number, self._after.number
        for module in self._modules:
            state = vars(module)
            state[BEFORE].pop(before, None)
            state[AFTER].pop(after, None)
            for flag in FLAGS:
                state[flag].pop(after, None)
            state[BEFORE_FLAG].pop(before, None)
        self.leave_mode()

    def enter_mode(self) -> None:
        """Intercept torch's functions."""
        if self._mode is not None:
            self._mode.__enter__()

    def leave_mode(self) -> None:
        """Stop intercepting torch's functions. Modes that were entered later stay."""
        others = []
        while self._mode is not None and self._mode in _get_current_function_mode_stack():
            top = _get_current_function_mode_stack()[-1]
            top.__exit__(None, None, None)
            others += [] if top is self._mode else [top]
        for other in reversed(others):
            other.__enter__()


def is_abandoned(listener: WatchBlock) -> bool:
    """Whether the block of an active watch is gone: an interrupt ended `__exit__`, and a traceback holds it."""
    running: set[int] = set()  # ids, because this frame is among them and would hold itself
    for frame in sys._current_frames().values():
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
    code = type(listener).__exit__.__code__
    ended = (each for each in gc.get_referrers(listener) if isinstance(each, FrameType) and id(each) not in running)
    return any(frame.f_code is code for frame in ended)
