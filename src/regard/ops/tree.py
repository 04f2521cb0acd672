"""Requests and rules as trees of tensors: list the tensors, replace them, encode the rest, notice in-place changes.

A tree is a tensor, a mapping, a list, a tuple, a rule or a dataclass of trees; everything else is a leaf. Of rules and
dataclasses the parts are their ``__dict__``, so it does not matter how a rule holds a tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.errors import StaleView

Tree = TypeVar("Tree")
Number = int | float | torch.SymInt | torch.SymFloat


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in the order of `map_tensors`; a tensor that occurs twice is listed twice."""
    return walk(tree)[0]


def walk(tree: Any) -> tuple[list[Tensor], list[Any]]:
    """The tensors of a tree, as `tensors_in` lists them, and the trees that are not tensors."""
    tensors: list[Tensor] = []
    trees: list[Any] = []
    levels: list[Iterator[Any]] = [iter([tree])]
    parents: list[int] = []
    while levels:
        for part in levels[-1]:
            cls = type(part)
            if cls in _LEAVES:  # as most parts are; this is the cheapest test
                continue
            if isinstance(part, Tensor):
                tensors.append(part)
            elif id(part) not in parents:  # a rule that holds itself is listed once
                kind = object if getattr(cls, "is_tree_node", False) else _KINDS.get(cls) or _find_kind(cls)
                if kind is not None:
                    parts = part.__dict__.values() if kind is object else part.values() if kind is Mapping else part
                    trees.append(part)
                    levels.append(iter([*parts]))
                    parents.append(id(part))
                    break
        else:
            levels.pop()
            del parents[-1:]
    return tensors, trees


def map_tensors(tree: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """The tree with ``fn(tensor)`` for each tensor; parts in which nothing changes stay the same objects."""
    mapped: Any = fn(tree) if isinstance(tree, Tensor) else _map_tensors(tree, fn, {})
    return mapped


def _map_tensors(tree: Any, fn: Callable[[Tensor], Tensor], parents: dict[int, Any]) -> Any:
    """The mapped tree; `parents` maps the `id` of each tree around it to what will replace that one."""
    cls = type(tree)
    kind = object if getattr(cls, "is_tree_node", False) else _KINDS.get(cls) or _find_kind(cls)
    if kind is None:
        return tree
    if id(tree) in parents:  # a rule that holds itself
        return parents[id(tree)]
    parts: Any = tree.__dict__ if kind is object else tree
    if not parts:
        return tree
    new: Any = object.__new__(cls) if kind is object else tree
    parents[id(tree)] = new
    mapped: dict[Any, Any] = {}
    changed = False
    for name, part in enumerate(parts) if kind is Sequence else parts.items():
        if type(part) in _LEAVES:
            mapped[name] = part
            continue
        mapped[name] = fn(part) if isinstance(part, Tensor) else _map_tensors(part, fn, parents)
        changed = changed or mapped[name] is not part
    del parents[id(tree)]
    if not changed:
        return tree
    if kind is object:
        new.__dict__.update(mapped)
        return new
    if kind is Mapping:
        if cls is dict or not isinstance(tree, MutableMapping):
            return mapped
        new = copy(tree)
        new.update(mapped)
        return new
    make: Any = getattr(cls, "_make", cls)  # a named tuple takes its parts one by one
    return make(list(mapped.values()))


def subtrees(tree: Any) -> list[Any]:
    """The tree and every rule, dataclass and container within it, without tensors; each once."""
    todo: list[Any] = [tree]
    found: dict[int, Any] = {}
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor) or id(part) in found:
            continue
        found[id(part)] = part
        cls = type(part)
        if cls in _LEAVES:
            continue
        kind = object if getattr(cls, "is_tree_node", False) else _KINDS.get(cls) or _find_kind(cls)
        if kind is not None:
            todo += part.__dict__.values() if kind is object else part.values() if kind is Mapping else part
    return list(found.values())


def map_float_tensors(tree: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """`map_tensors` for floating-point tensors, the ones that can have a gradient."""
    return map_tensors(tree, lambda tensor: fn(tensor) if tensor.is_floating_point() else tensor)


def rebuild(cls: type[Tree], parts: Mapping[str, Any]) -> Tree:
    """An instance with these attributes; what its constructor would check or compute has been checked and computed."""
    instance = object.__new__(cls)
    instance.__dict__.update(parts)
    return instance


_LEAVES = frozenset((type(None), bool, int, float, str, slice, torch.device, torch.dtype))
_HASHABLE = _LEAVES - {slice}
_KINDS: dict[type, Any] = {tuple: Sequence, list: Sequence, dict: Mapping}
"""What `_find_kind` finds for the most frequent containers."""


def _find_kind(cls: type) -> Any:
    """How the parts of instances are found: as those of a `Mapping`, a `Sequence` or an `object`; None for leaves."""
    if is_dataclass(cls) and cls.__dictoffset__:
        return object
    if issubclass(cls, (tuple, list)):
        return Sequence
    return Mapping if issubclass(cls, Mapping) else None


def structure(tree: Any) -> Any:
    """A tree of built-in rules and plain data as a hashable value, equal for trees whose classes and leaves are equal.

    Raises:
        TypeError: If it holds anything else, such as a tensor.
    """
    cls = type(tree)
    if getattr(cls, "builtin", False) or cls is dict:
        parts: Any = tree if cls is dict else tree.__dict__
        if not parts:
            return cls
        return cls, *parts, *[part if type(part) in _HASHABLE else structure(part) for part in parts.values()]
    if cls is tuple or cls is list:
        return cls, *map(structure, tree)
    if cls is slice:  # hashable from Python 3.12 on
        return cls, tree.start, tree.stop, tree.step
    if cls not in _HASHABLE:
        raise TypeError(f"expected built-in rules and plain data, got {cls.__name__}")
    return tree


class TreeEncoder:
    """Write a tree as a Python literal, with its tensors, integers and floats in separate lists.

    A compiled or exported program can hold that as the arguments of one operator. A number is kept apart because it may
    be a symbol while a program is traced.

    Examples:
        >>> import torch
        >>> encoder = TreeEncoder()
        >>> encoder.encode({"a": torch.ones(2), "b": (1.5, None)})
        "{'a': ('tensor', 0), 'b': ('tuple', (('float', 0), None, ))}"
        >>> decode(_, *encoder.lists, {})
        {'a': tensor([1., 1.]), 'b': (1.5, None)}
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.integers: list[int | torch.SymInt] = []
        self.floats: list[float | torch.SymFloat] = []  # apart, because `torch.export.save` takes no mixed list

    @property
    def lists(self) -> tuple[list[Tensor], list[int | torch.SymInt], list[float | torch.SymFloat]]:
        """What the literal refers to, as `decode` takes it."""
        return self.tensors, self.integers, self.floats

    def encode(self, tree: Any) -> str:
        """The literal of a tree whose objects are dataclasses or rules; see `decode`."""
        if isinstance(tree, Tensor):
            self.tensors.append(tree)
            return f"('tensor', {len(self.tensors) - 1})"
        if isinstance(tree, np.generic):  # a number that a rule was made with
            tree = tree.item()
        if tree is None or isinstance(tree, (bool, str)):
            return repr(tree)
        if isinstance(tree, (int, torch.SymInt)):
            self.integers.append(tree)
            return f"('integer', {len(self.integers) - 1})"
        if isinstance(tree, (float, torch.SymFloat)):
            self.floats.append(tree)
            return f"('float', {len(self.floats) - 1})"
        if isinstance(tree, slice):
            return f"('slice', {self._items((tree.start, tree.stop, tree.step))})"
        if isinstance(tree, (tuple, list)):
            return f"('tuple', {self._items(tree)})"
        if isinstance(tree, dict):
            return self._parts(tree)
        return f"({type(tree).__name__!r}, {self._parts(vars(tree))})"

    def _items(self, items: Iterable[Any]) -> str:
        return "(" + "".join(f"{self.encode(item)}, " for item in items) + ")"

    def _parts(self, parts: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{name!r}: {self.encode(part)}" for name, part in parts.items()) + "}"


def decode(
    text: str,
    tensors: Sequence[Tensor],
    integers: Sequence[Number],
    floats: Sequence[Number],
    classes: Mapping[str, type],
) -> Any:
    """The tree that `TreeEncoder` wrote; only these classes are made, and no code is run."""
    lists: dict[str, Sequence[Any]] = {"tensor": tensors, "integer": integers, "float": floats}

    def build(node: Any) -> Any:
        if not isinstance(node, (tuple, dict)):
            return node
        if isinstance(node, dict):
            return {name: build(part) for name, part in node.items()}
        kind, content = node
        if kind in lists:
            return lists[kind][content]
        if kind == "tuple":
            return tuple([build(item) for item in content])
        if kind == "slice":
            return slice(*(build(item) for item in content))
        return rebuild(classes[kind], build(content))

    return build(_parse(text))


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    return ast.literal_eval(text)


class TensorVersions:
    """Notice that a tensor of a tree is changed in place.

    Tensors of inference mode count no changes and are not watched; nor are any in compiled code.
    """

    def __init__(self, tree: Any) -> None:
        watched = () if torch.compiler.is_compiling() else walk(tree)[0]
        self._versions = [(tensor, tensor._version) for tensor in watched if not tensor.is_inference()]

    def __getstate__(self) -> dict[str, list[Tensor]]:
        return {"tensors": [tensor for tensor, _ in self._versions]}

    def __setstate__(self, state: dict[str, list[Tensor]]) -> None:
        """A copy, in memory or from a file, watches tensors of its own, whose versions start again."""
        self.__init__(state["tensors"])

    def check(self, what: str) -> None:
        """Raise if a tensor has changed.

        Raises:
            StaleView: Naming what the tensors are.
        """
        for tensor, version in self._versions:
            if tensor._version != version:
                raise StaleView(
                    f"{what}: the tensor of shape {tuple(tensor.shape)} was changed in place; compute what you "
                    "need before changing it, or clone it first"
                )
