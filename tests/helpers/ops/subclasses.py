"""Subclasses of the library's rules that override the rule itself, and a comparison with the dense definition."""

from __future__ import annotations

from dataclasses import make_dataclass
from inspect import getattr_static

import torch

from helpers.ops.cases import kernels
from helpers.ops.dense_reference import definition
from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.masks import Mask
from regard.ops.measures import Measure, as_measures
from regard.ops.request import make_request
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
    """The same rule as a subclass of its class; `override` gets the parent's answer and the arguments of the call."""
    kind = type(rule)

    def overridden(self, *arguments):
        return override(self, getattr(kind, method)(self, *arguments), *arguments)

    own = {method: overridden}
    if way == "in a mixin":
        cls = type("Mine", (type("Mixin", (), own), kind), {})
    elif way == "in a mixin that is a rule":
        cls = type("Mine", (type("Mixin", (BASES[method],), own), kind), {})
    elif way == "in a subclass of one with hints":
        hints = {hint: getattr_static(kind, hint) for hint in HINTS[method]}
        cls = type("Mine", (type("Hinted", (kind,), hints),), own)
    else:
        cls = type("Mine", (kind,), own)
    if way == "in a parent of the subclass":
        cls = type("Mine", (cls,), {})
    if stored:
        cls = make_dataclass("Mine", stored, bases=(cls,), kw_only=True, eq=False)
    mine = object.__new__(cls)
    vars(mine).update(vars(rule) | stored)
    return mine


def answers(output, measured, leaves):
    """The output, the measurements, and the gradients of a loss that depends on every finite entry of both."""
    parts = [output, *(part for answer in measured for part in (answer if isinstance(answer, tuple) else (answer,)))]
    finite = [part.where(part.isfinite(), 0.0) for part in parts if part.is_floating_point()]
    loss = sum((part * torch.linspace(0.5, 1.5, part.numel()).view_as(part)).sum() for part in finite)
    return *parts, *torch.autograd.grad(loss, leaves, None, True, allow_unused=True, materialize_grads=True)


def check(cells, formula=None, sinks=None, leaves=(), **rules):
    """Compare every kernel that serves the call with the definition; return the names of these kernels."""
    leaves, kernel_names = [*TENSORS, *leaves], []
    output, _, _, expected_measures = definition(*TENSORS, cells, OFFSET, formula, sinks)
    expected = {
        requested: answers(output, [expected_measures[name][0] for name in requested], leaves)
        for requested in ((), ("entropy", "received", "mean_distance"))
    }
    for kernel in kernels(rows=5):
        requested = () if kernel.measures == frozenset() else ("entropy", "received", "mean_distance")
        job = KernelInputs(TENSORS[2], make_request(*TENSORS[:2], **rules), as_measures(requested))
        if not any(kernel.unsupported_reasons(job)):
            att = attend(*TENSORS, **rules, measure=requested, kernel=kernel)
            actual = answers(att.output, att.measured.values(), leaves)
            for mine, truth in zip(actual, expected[requested], strict=True):
                torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9, msg=f"{kernel.name}: {{}}".format)
            kernel_names.append(kernel.name)
    return kernel_names
