"""A disk that is full: files cannot grow beyond a number of bytes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let the operating system refuse to make a file of this process larger than a size, with ``File too large``.

    It is a real failure in the middle of a write, also of code that is not Python, and needs no disk of its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
