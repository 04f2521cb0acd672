"""Grouped-query attention: several query heads may share one head of keys or values."""

from __future__ import annotations

from torch import Tensor

from regard.ops.matmul import product


def kv_heads_of(heads: slice, of: int, kv_heads: int) -> slice:
    """The heads of keys or values that a slice of query heads uses: one each, or one for all of them.

    Args:
        heads: Query heads, which lie within one group wherever heads are shared.
        of: How many query heads there are in all.
        kv_heads: How many heads of keys or values there are.
    """
    group = of // kv_heads
    return heads if group == 1 else slice(heads.start // group, heads.start // group + 1)


def grouped_matmul(left: Tensor, right: Tensor, often: bool = False) -> Tensor:
    """The matrix product by head, where one right head may serve all left heads.

    Args:
        left: (batch, heads, rows, inner).
        right: (batch, heads or 1, inner, columns), or (batch, heads or 1, rows, inner, columns) where each row has its
            own.
        often: Whether many products have these shapes.

    Returns:
        (batch, heads, rows, columns).
    """
    if right.ndim == 5:
        if right.shape[1] != left.shape[1]:
            return (left.transpose(1, 2) @ right[:, 0]).transpose(1, 2)
        return (left[..., None, :] @ right)[..., 0, :]
    batch, heads, rows, inner = left.shape
    if right.shape[1] == heads:
        return product(left, right, often)
    # Broadcasting would copy the right side for each head; as rows of one product they share it.
    return product(left.reshape(batch, 1, heads * rows, inner), right, often).view(batch, heads, rows, -1)


def grouped_matmul_grad(left: Tensor, right: Tensor, like: Tensor, often: bool = False) -> Tensor:
    """The gradient of `multiply` with respect to its right side: summed over rows, and over heads that share.

    Args:
        left: (batch, heads, rows, inner).
        right: (batch, heads, rows, columns).
        like: The right side of `multiply`.
        often: Whether many products have these shapes.

    Returns:
        The shape of `like`.
    """
    batch, heads, rows, _ = left.shape
    if like.ndim == 5:
        outer = left[..., None] * right[..., None, :]
        return outer if like.shape[1] == heads else outer.sum(1, keepdim=True)
    if like.shape[1] == heads:
        return product(left.mT, right, often)
    return product(left.reshape(batch, 1, heads * rows, -1).mT, right.reshape(batch, 1, heads * rows, -1), often)
