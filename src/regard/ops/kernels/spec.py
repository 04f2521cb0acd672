"""A job as text, tensors and numbers, so that a compiler and an exported program can hold it as one node.

The text is an expression, as ``KernelInputs(request=AttentionRequest(query=T0, offset=N0, ...), ...)``; ``T0`` is the first
tensor, ``N0`` the first number, in whose place a compiler may hold a symbol. It is read as data and never run, and
knows the classes of this library alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.ops import masks, measures, scores
from regard.ops.indexing import SelectCells
from regard.ops.kernels.base import KernelInputs
from regard.ops.request import AttentionRequest
from regard.ops.scores import base as _scores_base

NUMBERS = int, float, torch.SymInt, torch.SymFloat
"""The latter two are what the former are while a program is exported."""

Number = int | float | torch.SymInt | torch.SymFloat
Given = tuple[Sequence[Tensor], Sequence[Number]]
Make = Callable[[Given], Any]

CLASSES: Mapping[str, type] = {
    cls.__name__: cls
    for cls in (
        KernelInputs,
        AttentionRequest,
        SelectCells,
        _scores_base.Sum,
        scores.ScoreOfHeads,
        measures.TransposedProduct,
        *scores.SCORES.values(),
        *measures.MEASURES.values(),
        *(getattr(masks, name) for name in ("And", "Causal", "DenseMask", "Documents", "Neighbours", "Not", "Or")),
        *(masks.MaskOfHeads, masks.Padding, masks.Prefix, masks.Spans, masks.Window),
    )
}
"""Classes whose fields say all about them."""


def is_known(thing: Any) -> bool:
    """Whether a thing is made of known classes, tensors and plain values alone."""
    if thing is None or isinstance(thing, (bool, str, Tensor, *NUMBERS)):
        return True
    if isinstance(thing, slice):
        return True
    if isinstance(thing, (tuple, list)):
        return all(is_known(part) for part in thing)
    if isinstance(thing, dict):
        return all(is_known(part) for part in thing.values())
    if not is_dataclass(thing) or CLASSES.get(type(thing).__name__) is not type(thing):
        return False
    return all(is_known(getattr(thing, field.name)) for field in fields(thing))


def describe(thing: Any, tensors: list[Tensor], numbers: list[Number]) -> str:
    """A known thing as an expression; its tensors and numbers are added to the lists."""
    if isinstance(thing, Tensor):
        tensors.append(thing)
        return f"T{len(tensors) - 1}"
    if isinstance(thing, NUMBERS) and not isinstance(thing, bool):
        numbers.append(thing)
        return f"N{len(numbers) - 1}"
    if thing is None or isinstance(thing, (bool, str)):
        return f"{thing!r}"
    if isinstance(thing, slice):
        ends = (describe(end, tensors, numbers) for end in (thing.start, thing.stop, thing.step))
        return f"slice({', '.join(ends)})"
    if isinstance(thing, (tuple, list)):
        return "(" + "".join(f"{describe(part, tensors, numbers)}, " for part in thing) + ")"
    if isinstance(thing, dict):
        return "{" + "".join(f"{name!r}: {describe(part, tensors, numbers)}, " for name, part in thing.items()) + "}"
    parts = [f"{field.name}={describe(getattr(thing, field.name), tensors, numbers)}" for field in fields(thing)]
    return f"{type(thing).__name__}({', '.join(parts)})"


def restore(text: str, tensors: Sequence[Tensor], numbers: Sequence[Number]) -> Any:
    """The thing that an expression describes, with these tensors and numbers."""
    return _maker(text)((tensors, numbers))


@lru_cache(maxsize=256)
def _maker(text: str) -> Make:
    return _read(ast.parse(text, mode="eval").body)


def _read(node: ast.expr) -> Make:
    if isinstance(node, ast.Name):
        which, number = "TN".index(node.id[0]), int(node.id[1:])
        return lambda given: given[which][number]
    if isinstance(node, ast.Tuple):
        parts = [_read(part) for part in node.elts]
        return lambda given: tuple(part(given) for part in parts)
    if isinstance(node, ast.Dict):
        names = [ast.literal_eval(key) for key in node.keys if key is not None]
        values = [_read(value) for value in node.values]
        return lambda given: {name: value(given) for name, value in zip(names, values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "slice":
            ends = [_read(argument) for argument in node.args]
            return lambda given: slice(*(end(given) for end in ends))
        cls = CLASSES[node.func.id]
        of_fields = {keyword.arg or "": _read(keyword.value) for keyword in node.keywords}
        return lambda given: _made(cls, {name: part(given) for name, part in of_fields.items()})
    value = ast.literal_eval(node)
    return lambda given: value


def _made(cls: type, parts: Mapping[str, Any]) -> Any:
    """An instance as it was: what a constructor would check or compute was checked and computed."""
    made = object.__new__(cls)
    made.__dict__.update(parts)
    return made
