"""How many sequences a model reads in one call, as far as its inputs and its output say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from regard.errors import InvalidArgument
from regard.watching.module_inspection import is_of_transformers

LIBRARIES = ("torch.", "regard.")
"""Packages whose modules say by `batch_first` which axis of their input is the batch."""


def batch_axis_of(model: nn.Module) -> int | None:
    """The axis of the first input of a module of torch or of this library that is the batch.

    None for others, and for one that has parts of somebody else or of both kinds.
    """
    modules = [*model.modules()] if type(model).__module__.startswith(LIBRARIES) else []
    if not modules or not all(type(module).__module__.startswith(LIBRARIES) for module in modules):
        return None
    axes = {0 if module.batch_first else 1 for module in modules if isinstance(module, nn.MultiheadAttention)}
    return None if len(axes) > 1 else next(iter(axes), 0)


def check_batch_axis(axis: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if the first input of a call has no such axis."""
    first = _first_tensor((*args, *kwargs.values()))
    if first is None or axis >= first.ndim:
        found = "no tensor with two axes" if first is None else str(tuple(first.shape))
        raise InvalidArgument(
            f"batch_axis: expected an axis of the model's first input, {found}, got {axis}; leave it out if none of "
            "them counts the sequences"
        )


def num_sequences(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, axis: int | None
) -> set[int]:
    """The possible numbers of sequences in a call of a model: one, or 1 besides if the input may have no batch.

    A model of transformers has as many as the first axis of its output or, where that has no tensor, of its input. Of
    others, the first axis of the first input counts them, unless the input may be (tokens, batch) or (tokens, batch,
    width): its second axis is the first of the output, or divides the first axis, which may count blocks of that many
    sequences.

    Args:
        model: The model.
        args: What it was called with.
        kwargs: The same by name.
        output: What it returned.
        axis: The axis of the first input that counts the sequences, if that is known.
    """
    first = _first_tensor((*args, *kwargs.values()))
    if axis is not None and first is not None:
        return {first.shape[axis]}
    parts = output if isinstance(output, (tuple, list, Mapping)) else (output,)
    parts = parts.values() if isinstance(parts, Mapping) else parts
    result = next((part for part in parts if isinstance(part, Tensor) and part.ndim > 1), None)
    if is_of_transformers(model):
        result = first if result is None else result
        return {1} if result is None else {result.shape[0]}
    if first is None:
        return {1}
    more = {1} if first.ndim == 2 and first.is_floating_point() else set[int]()  # (tokens, width)
    axis = batch_axis_of(model)
    if axis is not None:
        return {first.shape[axis], *more}
    count, other = first.shape[:2]
    has_tokens_first = first.ndim < 4 and 1 < count != other
    has_tokens_first &= (0 < other < count and not count % other) or (result is not None and result.shape[0] == other)
    return more if has_tokens_first else {count, *more}


def _first_tensor(values: Iterable[Any]) -> Tensor | None:
    """The first tensor with a batch and another axis, also in a mapping."""
    for value in values.values() if isinstance(values, Mapping) else values:
        found = _first_tensor(value) if isinstance(value, Mapping) else value
        if isinstance(found, Tensor) and found.ndim > 1:
            return found
    return None
