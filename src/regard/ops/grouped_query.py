"""Grouped-query attention: matrix products in which several query heads share one head of keys or values."""

from __future__ import annotations

from torch import Tensor


def kv_heads_of(heads: slice, num_heads: int, num_kv_heads: int) -> slice:
    """The key or value heads of a slice of query heads (within one group where heads are shared): one each, or one."""
    group = num_heads // num_kv_heads
    return heads if group == 1 else slice(heads.start // group, heads.start // group + 1)


def grouped_matmul(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product per head, (batch, heads, rows, columns), where one right head may serve all left heads.

    Left is (batch, heads, rows, inner), right (batch, heads or 1, inner, columns), or (batch, heads or 1, rows, inner,
    columns) where each row has its own.
    """
    if right.ndim == 5:
        if right.shape[1] != left.shape[1]:
            return (left.transpose(1, 2) @ right[:, 0]).transpose(1, 2)
        return (left[..., None, :] @ right)[..., 0, :]
    batch, heads, rows, inner = left.shape
    if right.shape[1] == heads:
        return left @ right
    # Broadcasting would copy the right side for each head; as rows of one product the heads share it.
    return (left.reshape(batch, 1, heads * rows, inner) @ right).view(batch, heads, rows, -1)


def grouped_matmul_grad(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """The gradient of `grouped_matmul` for its right side, `like`: summed over rows, and over heads that share it.

    Left is (batch, heads, rows, inner), right, the incoming gradient, (batch, heads, rows, columns).
    """
    batch, heads, rows, _ = left.shape
    if like.ndim == 5:
        outer = left[..., None] * right[..., None, :]
        return outer if like.shape[1] == heads else outer.sum(1, keepdim=True)
    if like.shape[1] == heads:
        return left.mT @ right
    rows = heads * rows
    return left.reshape(batch, 1, rows, -1).mT @ right.reshape(batch, 1, rows, -1)
