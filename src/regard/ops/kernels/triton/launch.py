"""Launches of Triton's kernels that skip what is known from an earlier call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Launcher:
    """Launches kernels, and keeps what Triton has compiled.

    For a short call, Triton's search for the compiled kernel takes longer than the launch.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, kernel: Any, programs: int, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Launch a kernel.

        Args:
            kernel: A function with Triton's decorator, whose constants come last.
            programs: How many programs run.
            args: Its arguments, a tensor first.
            options: Its constants, and how it is compiled.
        """
        constants = [tuple(map(id, value)) if isinstance(value, tuple) else value for value in options.values()]
        key = id(kernel), args[0].device, _specialization(args), tuple(constants)  # rules hash slowly
        found = self._compiled.get(key)
        if found is not None:
            compiled, constants = found
            compiled[programs, 1, 1](*args, *constants)
            return
        compiled = kernel[(programs,)](*args, **options)
        if (
            compiled is not None and torch.version.hip is None
        ):  # None: interpreted; ROCm distinguishes more than the key
            self._compiled[key] = compiled, tuple([options[name] for name in kernel.arg_names[len(args) :]])


def _specialization(value: Any) -> Any:
    """What compiled code depends on: dtypes, whether numbers are 1 or divisible by 16, and whether they fit int32."""
    if isinstance(value, int):
        return value == 1, value % 16 == 0, -(2**31) <= value < 2**31
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple([_specialization(part) for part in value])
    return type(value)
