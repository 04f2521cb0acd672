"""The weight matrix as a linear operator: what it may be multiplied with, and what SciPy's algorithms take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, MissingExtra


def as_columns(
    what: str, x: Tensor, shape: Sequence[int], axis: int, device: torch.device, kv_heads: int = 1
) -> Tensor:
    """The right side of a product as (batch or 1, heads or 1, size, columns).

    Args:
        what: The product, for an error.
        x: What a user gave.
        shape: (batch, heads, queries, keys) of the matrix that it is multiplied with.
        axis: The axis of the matrix that is summed over: 2 or 3.
        device: Where the matrix lies.
        kv_heads: How many heads x may have besides, each for a group of the matrix's.

    Raises:
        InvalidArgument: If x does not fit.
        InvalidType: If it is no tensor of floating-point numbers.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(
            f"{what}: expected a floating-point tensor, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}"
        )
    batch, heads, size, name = *shape[:2], shape[axis], ("queries", "keys")[axis - 2]
    columns = x[:, None] if x.ndim == 1 else x
    lead = (1, 1, *columns.shape[:-2])[-2:]
    fits = 2 <= columns.ndim <= 4 and columns.shape[-2] == size
    fits = fits and lead[0] in (1, batch) and lead[1] in (1, heads, kv_heads)
    if not fits or x.device != device:
        some = f"{heads} or {kv_heads}" if 1 < kv_heads < heads else heads
        raise InvalidArgument(
            f"{what}: expected ({name},), ({name}, columns) or (batch, heads, {name}, columns) with batch = {batch}, "
            f"heads = {some}, {name} = {size} on {device}; got {tuple(x.shape)} on {x.device}"
        )
    return columns.reshape(*lead, *columns.shape[-2:])


def require_one_head(what: str, shape: Sequence[int]) -> None:
    """Raise unless a matrix of this shape, (batch, heads, queries, keys), is one head of one sequence."""
    if tuple(shape[:2]) != (1, 1):
        raise InvalidArgument(
            f"{what}: expected one head of one sequence, W.at(batch=0, heads=3); this has batch {shape[0]} and heads "
            f"{shape[1]}"
        )


def linear_operator(
    ahead: Callable[[Tensor], Tensor],
    back: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """SciPy's `LinearOperator` of a product with tensors, and of the product with the transpose.

    Args:
        ahead: The product of one head's matrix, (1, 1, rows, ...), with (columns,) or (columns, several).
        back: The same of its transpose.
        shape: Of the matrix, (rows, columns).
        dtype: What is computed in.
        device: Where it is computed.

    Raises:
        MissingExtra: If SciPy is not installed.
    """
    try:
        from scipy.sparse.linalg import LinearOperator
    except ImportError:
        raise MissingExtra("linear_operator needs scipy: install it with `pip install 'regard[graph]'`") from None

    def on_arrays(product: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        def real(x: Any) -> Any:
            return product(torch.as_tensor(x, dtype=dtype, device=device))[0, 0].cpu().numpy()

        return lambda x: real(x.real) + 1j * real(x.imag) if x.dtype.kind == "c" else real(x)

    left, right = on_arrays(ahead), on_arrays(back)
    make: Any = LinearOperator  # whose constructor SciPy types as that of its subclasses
    name = str(dtype).removeprefix("torch.")
    return make(tuple(shape), matvec=left, rmatvec=right, matmat=left, rmatmat=right, dtype=name)
