"""Which axes of scores are those of queries and which those of keys.

The product of queries and keys says it: its roles are a string with a letter for each axis of its result, "l" if only
the left operand has the axis, "r" if only the right one, "s" if both share it, and "?" if it is not known. They are
followed through the functions that a module calls until a softmax, and from there with its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from regard.watching.matrix_products import without_broadcast

PERMUTATIONS = {"transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint"}
TRANSPOSED = Tensor.mT, Tensor.T, Tensor.mH, Tensor.H
RESHAPES = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"}


def permutes(name: str, func: Any) -> bool:
    """Whether a function puts the axes of its argument in another order."""
    return name in PERMUTATIONS or any(getattr(func, "__self__", None) is each for each in TRANSPOSED)


def order_after(permute: Callable[[Tensor], Tensor], ndim: int) -> list[int]:
    """The axes of a tensor in the order that a permutation gives them."""
    return [size - 2 for size in permute(torch.empty(*range(2, ndim + 2), device="meta")).shape]


def roles_of_product(terms: tuple[str, str, str], operands: Sequence[Tensor]) -> str:
    """The roles of the result of a product. An axis that one operand is broadcast along is the other's alone."""
    (left, right, output), (one, other) = terms, operands
    of_left, of_right = without_broadcast(left, one, right, other), without_broadcast(right, other, left, one)
    return "".join("s" if axis in of_left and axis in of_right else "l" if axis in of_left else "r" for axis in output)


def moved_roles(
    name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], roles: str | None, before: Tensor, result: Tensor
) -> str | None:
    """The roles of the axes of the result of a function; None if they are not known.

    Args:
        name: The name of the function.
        func: The function.
        args: Its arguments, the tensor first if it rearranges it.
        kwargs: Its arguments by name.
        roles: Those of the tensor.
        before: The tensor.
        result: The result.
    """
    if roles is None:
        return None
    if permutes(name, func):
        order = order_after(lambda tensor: func(tensor, *args[1:], **kwargs), before.ndim)
        return "".join(roles[axis] for axis in order)
    if name in RESHAPES:
        return regrouped(before.shape, roles, result.shape)
    if result.ndim >= len(roles) and name != "getitem":  # it is broadcast
        return "?" * (result.ndim - len(roles)) + roles
    return roles if result.ndim == len(roles) else None


def regrouped(before: Sequence[int], roles: str, after: Sequence[int]) -> str:
    """The letters of the axes of a tensor that is reshaped: axes that are merged or divided keep one they all have."""
    found, old, new = ["?"] * len(after), 0, 0
    while old < len(before) and new < len(after):
        if before[old] == 1 != after[new]:
            old += 1
            continue
        if after[new] == 1 != before[old]:
            new += 1
            continue
        first, start, count, target = old, new, before[old], after[new]
        while count != target and (old if count < target else new) + 1 < len(before if count < target else after):
            if count < target:
                old += 1
                count *= before[old]
            else:
                new += 1
                target *= after[new]
        old, new = old + 1, new + 1
        merged = {
            role for role, size in zip(roles[first:old], before[first:old], strict=True) if size > 1 or old == first + 1
        }
        if len(merged) == 1:
            found[start:new] = [*merged] * (new - start)
        else:
            found[start:new] = (
                _part_of(before, roles, prod(after[axis + 1 :]), after[axis]) for axis in range(start, new)
            )
    return "".join(found)


def _part_of(before: Sequence[int], roles: str, stride: int, size: int) -> str:
    """The role of the only axis that a new one of a tensor in order is a part of, "?" if it is part of several."""
    for axis, count in enumerate(before):
        own = prod(before[axis + 1 :])
        if count > 1 < size and stride % own == 0 and (own * count) % (stride * size) == 0:
            return roles[axis]
    return "?"
