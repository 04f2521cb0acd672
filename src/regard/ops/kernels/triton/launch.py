"""Launches of Triton's kernels that skip what is known from an earlier call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.checks import warn


class Function(NamedTuple):
    """What a rule does in a pass, without an import of Triton.

    Args:
        table: A table of functions, by its module and name in `jit`.
        name: The kind of step.
        constants: What follows its functions.
    """

    table: str
    name: str
    constants: tuple[Any, ...] = ()


COMPILER_OPTIONS: Mapping[str, Any] = MappingProxyType({"enable_fp_fusion": True})
"""Options of the compiler that are the same for all kernels; Triton 3.10 has another default."""


class CompilationFailed(Exception):
    """A kernel cannot be compiled or launched on this device."""


class Launcher:
    """Launches kernels, and keeps what Triton has compiled, and what it failed to compile.

    For a short call, Triton's search for the compiled kernel takes longer than the launch.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
        self._failed: dict[Any, str] = {}

    def __call__(self, kernel: Any, programs: int, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Launch a kernel.

        Args:
            kernel: A function with Triton's decorator, whose constants come last.
            programs: How many programs run.
            args: Its arguments, a tensor first.
            options: Its constants, and how it is compiled.

        Raises:
            CompilationFailed: If Triton cannot compile it; a second time, without trying again.
        """
        key = id(kernel), args[0].device, _specialization(args), tuple(options.values())
        found = self._compiled.get(key)
        if found is not None:
            compiled, constants = found
            compiled[programs, 1, 1](*args, *constants)
            return
        if key in self._failed:
            raise CompilationFailed(self._failed[key])
        options = {name: resolved(value) for name, value in options.items()}
        compiled = self._first_launch(key, kernel, programs, args, options)
        if (
            compiled is not None and torch.version.hip is None
        ):  # None: interpreted; ROCm distinguishes more than the key
            self._compiled[key] = compiled, tuple([options[name] for name in kernel.arg_names[len(args) :]])

    def _first_launch(self, key: Any, kernel: Any, programs: int, args: tuple[Any, ...], options: Any) -> Any:
        from triton import TritonError  # pyright: ignore[reportMissingTypeStubs]

        try:
            return kernel[(programs,)](*args, **options, **COMPILER_OPTIONS)
        except torch.OutOfMemoryError:
            raise
        except (TritonError, RuntimeError) as error:  # a RuntimeError is one of LLVM or of the driver
            message = str(error).strip().rpartition("\n")[2]
            self._failed[key] = f"{kernel.__name__}: {type(error).__name__}: {message}"
            device = args[0].device
            warn(
                f"kernel 'triton' cannot compile {self._failed[key]} (on {device}); other kernels serve this call and "
                "later ones like it"
            )
            raise CompilationFailed(self._failed[key]) from error


def resolved(value: Any) -> Any:
    """A constant with Triton's functions in the places of their names."""
    if isinstance(value, Function):
        functions = (*_functions(value.table, value.name), *map(_nested, value.constants))
        return functions[0] if len(functions) == 1 else functions
    return tuple(map(resolved, value)) if isinstance(value, tuple) else value


def _nested(value: Any) -> Any:
    """A constant within a constant, which the compiler, unlike the interpreter, knows by its type."""
    from triton import knobs, language  # pyright: ignore[reportMissingTypeStubs, reportAttributeAccessIssue]

    if knobs.runtime.interpret:
        return resolved(value)
    if isinstance(value, tuple) and not isinstance(value, Function):
        return language.constexpr(tuple(map(_nested, value)))
    return resolved(value) if isinstance(value, Function) else language.constexpr(value)


@cache  # as many as there are kinds of steps
def _functions(table: str, name: str) -> tuple[Any, ...]:
    from regard.ops.kernels.triton.jit import columns, masks, rows, scores

    modules = {"masks": masks, "scores": scores, "rows": rows, "columns": columns}
    module, _, attribute = table.partition(".")
    found = getattr(modules[module], attribute)[name]
    return found if isinstance(found, tuple) else (found,)


def _specialization(value: Any) -> tuple[Any, ...]:
    """What compiled code depends on: dtypes, whether numbers are 1 or divisible by 16, and whether they fit int32."""
    found: list[Any] = []
    _add_specialization(value, found)
    return tuple(found)


def _add_specialization(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is int:
        found.append((value == 1) + 2 * (value & 15 == 0) + 4 * (not -(2**31) <= value < 2**31))
    elif kind is tuple:
        found.append(len(value))
        for part in value:
            _add_specialization(part, found)
    elif isinstance(value, Tensor):
        found += value.dtype, value.data_ptr() & 15 == 0
    else:
        found.append(kind)
