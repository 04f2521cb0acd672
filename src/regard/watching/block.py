"""WatchBlock: the `with` block of a watch, which can be interrupted at any point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import finalize

from torch import nn

from regard.errors import InvalidArgument
from regard.watching import registry
from regard.watching.hooks import Attachment, is_abandoned
from regard.watching.result import WatchResult
from regard.watching.torch_attention import SdpaInterceptor
from regard.watching.unsupported import label


class WatchBlock(ABC):
    """Opens and closes a watch. Ctrl-C while it does so leaves nothing behind.

    Args:
        model: The model.
    """

    preemptible = False
    """Whether another watch of the model ends this one instead of being refused."""

    result: WatchResult

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.module_names: Mapping[int, str] = {}  # by id; while the watch is open
        self.classes: set[type[nn.Module]] = set()
        self._is_active = False
        self._attachment: Attachment | None = None
        self._finalizer: finalize[..., Any] | None = None

    @abstractmethod
    def _open(self) -> None:
        """Start to record: set `result`, `module_names` and `classes`, and attach."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the result of a block that ended without an error."""

    @abstractmethod
    def _abort_forward(self) -> None:
        """End a forward pass that an interrupt ended."""

    @abstractmethod
    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The hook before a module runs."""

    @abstractmethod
    def after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The hook after a module ran."""

    def __enter__(self) -> WatchResult:
        self._refuse_second_watch()
        try:
            self._open()
            return self.result
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self._close()
        except BaseException:  # Ctrl-C: what it interrupted is done again
            self._close()
            raise
        if kind is None:
            self._finish()

    def _refuse_second_watch(self) -> None:
        """Refuse to watch a model that is watched, but end a watch that may be ended or whose block is gone."""
        for name, module in self.model.named_modules() if registry.active_listeners() else ():
            other = registry.listener_for(module)
            if other is not None and (other.preemptible or is_abandoned(other)):
                other.end()
            elif other is not None:
                place = other.module_names[id(module)]
                where = f", as {place} of {type(other.model).__name__}" if place else ""
                del other  # which the error's traceback would keep alive
                raise InvalidArgument(
                    f"model: {label(name, module)} is being watched already{where}; end that watch, or all of them "
                    "with regard.watching.end_all()"
                )

    def _attach(self, modules: Iterable[nn.Module], mode: SdpaInterceptor | None) -> None:
        """Install hooks in modules, and what all watches need."""
        self._attachment = Attachment(self, modules, mode)
        self._finalizer = finalize(self, self._attachment.detach)  # if the block ends without `__exit__`
        self._finalizer.atexit = False
        self._is_active = True
        self._attachment.attach(self)

    def _close(self) -> None:
        """Undo what opening did; done again, it does no harm."""
        if self._attachment is None:
            return
        self._attachment.detach()
        self._is_active = False
        if self._finalizer is not None:
            self._finalizer.detach()
        self._abort_forward()

    def end(self) -> None:
        """End the watch, whatever its block still does."""
        self.__exit__(InterruptedError)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._is_active:  # the model's hooks hold it
            raise InvalidArgument(f"{type(self.model).__name__} is being watched; copy or save it after the watch")
        return super().__reduce_ex__(protocol)

    @property
    def _attached(self) -> Attachment:
        assert self._attachment is not None  # hooks call this
        return self._attachment
