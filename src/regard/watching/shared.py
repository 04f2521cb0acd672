"""What several watches need at once, and all but the first find there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import Any


class Shared:
    """A context that is entered with the first who opens it, and left with the last, in whatever order they end.

    Args:
        make: Makes the context.

    Example:
        >>> from contextlib import nullcontext
        >>> shared = Shared(nullcontext)
        >>> with shared.open(), shared.open():
        ...     shared.users
        2
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._entered = make, Lock(), ExitStack()
        self.users = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Have the context until the end of the block, here or elsewhere."""
        with self._lock:
            if not self.users:
                self._entered.enter_context(self._make())
            self.users += 1
        try:
            yield
        finally:
            with self._lock:
                self.users -= 1
                if not self.users:
                    self._entered.close()
