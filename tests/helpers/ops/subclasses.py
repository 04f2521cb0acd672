"""Subclasses of the library's rules that override the rule itself, and a comparison with the dense definition."""

from __future__ import annotations

from dataclasses import make_dataclass
from inspect import getattr_static

import torch

from helpers.ops.cases import kernels
from helpers.ops.dense_reference import definition
from regard.diagnostics.calls import Call, difference, parts_of, with_gradients
from regard.ops.masks import Mask
from regard.ops.measures import Measure, as_measures
from regard.ops.scores import Score
from regard.ops.tile import KeyRange, Tile

BATCH, HEADS, QUERIES, KEYS = SHAPE = 2, 2, 9, 12
OFFSET = KEYS - QUERIES
WHOLE = Tile(slice(0, BATCH), slice(0, HEADS), slice(0, QUERIES), KeyRange(0, KEYS), OFFSET, torch.device("cpu"))


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TENSORS = [numbers(BATCH, HEADS, tokens, 4, seed=i).requires_grad_() for i, tokens in enumerate((QUERIES, KEYS, KEYS))]

HINTS = {
    "allowed": ("key_range", "full_key_range", "depends_on_query", "steps"),
    "__call__": ("is_fresh_and_finite", "steps"),
    "compute": ("needs_all_keys", "steps"),
}
BASES = {"allowed": Mask, "__call__": Score, "compute": Measure}
WAYS = (
    "in a subclass",
    "in a mixin",
    "in a mixin that is a rule",
    "in a parent of the subclass",
    "in a subclass of one with hints",
)


def subclass(rule, method, override, way="in a subclass", **stored):
    """The same rule as a subclass of its class; `override` gets the parent's result and the arguments of the call."""
    kind = type(rule)

    def overridden(self, *arguments):
        return override(self, getattr(kind, method)(self, *arguments), *arguments)

    methods = {method: overridden}
    if way == "in a mixin":
        cls = type("Mine", (type("Mixin", (), methods), kind), {})
    elif way == "in a mixin that is a rule":
        cls = type("Mine", (type("Mixin", (BASES[method],), methods), kind), {})
    elif way == "in a subclass of one with hints":
        hints = {hint: getattr_static(kind, hint) for hint in HINTS[method]}
        cls = type("Mine", (type("Hinted", (kind,), hints),), methods)
    else:
        cls = type("Mine", (kind,), methods)
    if way == "in a parent of the subclass":
        cls = type("Mine", (cls,), {})
    if stored:
        cls = make_dataclass("Mine", stored, bases=(cls,), kw_only=True, eq=False)
    instance = object.__new__(cls)
    vars(instance).update(vars(rule) | stored)
    return instance


def compare_kernels(define, measures, leaves=(), **rules):
    """Compare every kernel that supports the call with the definition; return the names of these kernels.

    `define` returns the output and, by name, a tensor or a tuple of tensors for each measure.
    """
    tensors = dict(zip(("query", "key", "value"), TENSORS, strict=True)) | {
        f"leaf {i}": x for i, x in enumerate(leaves)
    }
    full_call, kernel_names = Call(tensors, lambda _: rules, measures), []
    for kernel in kernels(rows=5):
        call = full_call.with_measures_of(kernel)
        if not any(kernel.unsupported_reasons(call.inputs())):
            output, measured = define()
            expected = {"output": output} | parts_of({name: measured[name] for name in call.measures})
            instance = call.results(kernel)
            for name, exact in with_gradients(expected, tensors).items():
                assert difference(instance[name], exact) <= 1e-9, (kernel.name, name)
            kernel_names.append(kernel.name)
    return kernel_names


def check(cells, formula=None, sinks=None, leaves=(), **rules):
    """Compare with the definition for these cells and scores."""

    def define():
        output, _, _, measured = definition(*TENSORS, cells, OFFSET, formula, sinks)
        return output, {name: parts[0] for name, parts in measured.items()}

    return compare_kernels(define, as_measures(("entropy", "received", "mean_distance")), leaves, **rules)
