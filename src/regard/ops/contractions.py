"""Sums over the queries or keys of a weight matrix times a tensor: `torch.matmul` and `torch.einsum`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def matmul(left: Any, right: Any) -> Tensor | None:
    """A product with a matrix that has products of its own; None if neither side is one.

    It calls methods: a compiler would take the operator for torch's function, which calls this.
    """
    if getattr(left, "multiplies", False):
        return left.__matmul__(right)
    if getattr(right, "multiplies", False) and isinstance(left, Tensor) and left.ndim:
        multiply = right.mT.__matmul__
        return multiply(left) if left.ndim == 1 else multiply(left.mT).mT
    return None


def einsum(equation: Any, *operands: Any) -> Tensor | None:
    """A sum over the keys or the queries of a matrix times a tensor; None if the equation is another."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    terms, arrow, out = str(equation).replace(" ", "").partition("->")
    names = terms.split(",")
    if not arrow or "." in terms or not len(names) == len(operands) == 2:
        return None
    for (own, matrix), (other, x) in (pairs := [*zip(names, operands, strict=True)], pairs[::-1]):
        if not getattr(matrix, "multiplies", False) or not isinstance(x, Tensor):
            continue
        if not len({*own}) == 4 == len(own) or not len({*other}) == len(other) == x.ndim:
            continue
        for sides in (matrix, own), (matrix.mT, own[:2] + own[3] + own[2]):
            product = _sum_over_last(*sides, x, other, out)
            if product is not None:
                return product
    return None


def _sum_over_last(matrix: Any, own: str, x: Tensor, other: str, out: str) -> Tensor | None:
    """Σ over the last axis of a matrix, whose axes have these names, times x; None if it is not what `out` asks for."""
    *lead, kept, summed = own
    columns = [name for name in other if name not in own]
    if summed not in other or kept in other or summed in out or not {*out} <= {*lead, kept, *columns}:
        return None
    given = [name for name in lead if name in other]
    sizes = dict(zip(other, x.shape, strict=True))
    ordered = torch.einsum(f"{other}->{''.join([*given, summed, *columns])}", x)
    columns_of_heads = ordered.reshape(*(sizes.get(name, 1) for name in lead), sizes[summed], -1)
    product = matrix.__matmul__(columns_of_heads).unflatten(3, [sizes[name] for name in columns] or [1])
    return torch.einsum(f"{''.join([*lead, kept])}{''.join(columns) or summed}->{out}", product)
