"""What the code of a module's class speaks of: whether it may compute attention where nobody hears it."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import CodeType

from torch import nn

SHARED = ("torch.", "transformers.modeling_utils", "transformers.generation")
"""The modules of Python whose classes are no model's own."""

PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "rmatmul"}
"""Functions that multiply matrices, as @ does."""

ATTENTION = re.compile("attention|attn", re.IGNORECASE)
"""How classes of attention are called."""


@cache
def calls_torch(kind: type[nn.Module]) -> bool:
    """Whether it calls torch's fused attention itself."""
    return "scaled_dot_product_attention" in _names(kind)


@cache
def has_weights(kind: type[nn.Module]) -> bool:
    """Whether it is called attention, and makes its weights itself unless it calls what is heard."""
    return ATTENTION.search(kind.__name__) is not None and not _names(kind).isdisjoint(
        {"softmax", "Softmax", "eager_attention_forward"}
    )


@cache
def may_have_weights(kind: type[nn.Module]) -> bool:
    """Whether it computes a softmax and at least two products of matrices, as of query and key, and weights and value.

    Whether these are attention shows where it computes: if a product takes what the softmax gave.
    """
    is_shared = kind.__module__.startswith(SHARED)
    has_softmax = not is_shared and not _names(kind).isdisjoint({"softmax", "Softmax"})
    return has_softmax and sum(map(_count_products, _code_of(kind))) >= 2


@cache
def may_attend(kind: type[nn.Module]) -> bool:
    """Whether anything in it speaks of attention, or of the function that makes weights."""
    return (
        names_attention(kind)
        or "softmax" in kind.__name__.lower()
        or any("softmax" in name.lower() or "attention_forward" in name for name in _names(kind))
        or calls_torch(kind)
    )


def names_attention(kind: type[nn.Module]) -> bool:
    """Whether it is called attention, and computes something."""
    return ATTENTION.search(kind.__name__) is not None and kind.forward is not nn.Module.forward


def _names(kind: type[nn.Module]) -> frozenset[str]:
    """All names in the methods of a class and of those that it inherits from, but for those that all models share."""
    return frozenset(name for code in _code_of(kind) for name in code.co_names)


def _code_of(kind: type[nn.Module]) -> Iterator[CodeType]:
    """The code of the methods of a class and of those that it inherits from, but for those that all models share."""
    for base in kind.__mro__:
        if issubclass(base, nn.Module) and not base.__module__.startswith(SHARED):
            for method in vars(base).values():
                if inspect.isfunction(method):
                    yield from _codes(inspect.unwrap(method).__code__)


def _count_products(code: CodeType) -> int:
    """How many products of matrices it computes."""
    return sum(
        each.argval in PRODUCTS
        or (each.opname.startswith("BINARY") and each.argrepr.startswith("@"))
        or each.opname == "BINARY_MATRIX_MULTIPLY"
        for each in dis.get_instructions(code)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A piece of code, and those within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
