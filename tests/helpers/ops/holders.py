"""User-defined rules that hold a tensor, in every way that Python allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.scores import Score

OUTSIDE = {}


class Scaled(Score):
    """The dot product times a number for each head; a subclass decides where the numbers are kept."""

    def __call__(self, query, key, scale, tile):
        return query @ key.mT * scale * self.stored()[tile.heads, None, None]


class Squares(Measure):
    """The sum of the squared weights times a number for each head."""

    def compute(self, block):
        return block.weights.square().sum(-1) * self.stored()[block.tile.heads, None]


class Below(Mask):
    """The keys below a number for each head."""

    def allowed(self, tile):
        return tile.kv_idx < self.stored()[tile.heads, None, None]


@dataclass
class Parcel:
    """A dataclass that is not a rule."""

    content: Any


class Named(NamedTuple):
    name: str
    content: Any


def itself(content):
    return content


def in_field(base, content, find=itself):
    class Holder(base):
        content: Any

        def stored(self):
            return find(self.content)

    return Holder(content)


def in_attribute(base, content, find=itself):
    class Holder(base):
        def __init__(self):
            self.content = content

        def stored(self):
            return find(self.content)

    return Holder()


def in_attribute_of_a_dataclass(base, tensor):
    @dataclass(eq=False)
    class Holder(base):
        name: str = "rule"

        def __post_init__(self):
            self.content = tensor

        def stored(self):
            return self.content

    return Holder()


def in_slot(base, tensor):
    holder = type("Holder", (base,), {"__slots__": ("content",), "stored": lambda self: self.content})()
    holder.content = tensor
    return holder


def in_class(base, tensor):
    return type("Holder", (base,), {"content": tensor, "stored": lambda self: self.content})()


def in_scope(base, tensor):
    return type("Holder", (base,), {"stored": lambda self: tensor})()


def in_global(base, tensor):
    OUTSIDE["tensor"] = tensor
    return type("Holder", (base,), {"stored": lambda self: OUTSIDE["tensor"]})()


def in_cycle(base, tensor):
    holder = in_attribute(base, tensor)
    holder.itself = holder
    return holder


def _module(tensor):
    module = nn.Module()
    module.content = tensor
    return module


def _ways(kinds):
    """Every kind of container, as a field of a dataclass and as an attribute of an ordinary class."""
    return {
        f"{name} in {kind}": lambda base, tensor, hold=hold, put=put, find=find: hold(base, put(base, tensor), find)
        for kind, hold in (("field", in_field), ("attribute", in_attribute))
        for name, (put, find) in kinds.items()
    }


SUPPORTED = _ways({
    "tensor": (lambda base, tensor: tensor, itself),
    "list": (lambda base, tensor: [tensor], lambda content: content[0]),
    "tuple": (lambda base, tensor: (None, tensor), lambda content: content[1]),
    "named tuple": (lambda base, tensor: Named("tensor", tensor), lambda content: content.content),
    "dict": (lambda base, tensor: {"tensor": tensor}, lambda content: content["tensor"]),
    "containers": (lambda base, tensor: {"a": [(1, {"b": tensor})]}, lambda content: content["a"][0][1]["b"]),
    "dataclass": (lambda base, tensor: Parcel(tensor), lambda content: content.content),
    "list of dataclasses": (lambda base, tensor: [Parcel([tensor])], lambda content: content[0].content[0]),
    "rule with an attribute": (in_attribute, lambda content: content.stored()),
    "dict of rules with fields": (
        lambda base, tensor: {"rule": in_field(base, tensor)},
        lambda content: content["rule"].stored(),
    ),
})  # fmt: skip
"""Where a tensor must get its gradient: functions of a base class and the tensor."""

OTHERS = _ways({
    "namespace": (lambda base, tensor: SimpleNamespace(content=tensor), lambda content: content.content),
    "module": (lambda base, tensor: _module(tensor), lambda content: content.content),
    "closure": (lambda base, tensor: lambda: tensor, lambda content: content()),
    "partial": (lambda base, tensor: partial(torch.mul, tensor), lambda content: content(1)),
    "rule with a scope": (in_scope, lambda content: content.stored()),
}) | {
    "attribute of a dataclass": in_attribute_of_a_dataclass,
    "slot": in_slot,
    "class": in_class,
    "scope": in_scope,
    "global": in_global,
    "cycle": in_cycle,
}  # fmt: skip
"""Where the call may be refused instead."""

HOLDERS = SUPPORTED | OTHERS
