"""The weight matrix as a linear operator: its operands, and SciPy's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import InvalidArgument, InvalidType, require


def as_columns(
    product: str, x: Any, shape: Sequence[int], axis: int, device: torch.device, num_kv_heads: int = 1
) -> Tensor:
    """The right side of a product as (batch or 1, heads or 1, size, columns).

    The product, named so in errors, sums over `axis` of a matrix of `shape`. With `num_kv_heads` x may have that many
    heads, too, each for a group of the matrix's heads.

    Raises:
        InvalidArgument: If x does not fit.
        InvalidType: If it is not a floating-point tensor.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidType(f"{product}: expected a floating-point tensor, got {describe(x)}")
    batch, heads, size, name = *shape[:2], shape[axis], ("queries", "keys")[axis - 2]
    columns = x[:, None] if x.ndim == 1 else x
    lead = (1, 1, *columns.shape[:-2])[-2:]
    fits = 2 <= columns.ndim <= 4 and columns.shape[-2] == size
    fits = fits and lead[0] in (1, batch) and lead[1] in (1, heads, num_kv_heads)
    if not fits or x.device != device:
        head_counts = f"{heads} or {num_kv_heads}" if 1 < num_kv_heads < heads else heads
        raise InvalidArgument(
            f"{product}: expected shape ({name},), ({name}, columns) or (batch, heads, {name}, columns) with batch = "
            f"{batch}, heads = {head_counts}, {name} = {size} on {device}, got {tuple(x.shape)} on {x.device}"
        )
    return columns.reshape(*lead, *columns.shape[-2:])


def require_one_head(caller: str, shape: Sequence[int]) -> None:
    """Raise unless a matrix of this shape, (batch, heads, queries, keys), is one head of one batch entry.

    Raises:
        InvalidArgument: If it is more.
    """
    if tuple(shape[:2]) != (1, 1):
        raise InvalidArgument(
            f"{caller}: expected one head of one batch entry, got batch {shape[0]} and heads {shape[1]}; select it "
            "with W.at(batch=0, heads=3)"
        )


def linear_operator(
    matvec: Callable[[Tensor], Tensor],
    rmatvec: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """SciPy's `LinearOperator` of shape (rows, columns) from products with tensors, the second with the transpose.

    A product takes (columns,) or (columns, several) and returns (1, 1, rows, ...).

    Raises:
        MissingExtra: If SciPy is not installed.
    """
    linalg = require("scipy.sparse.linalg", extra="graph", needed_by="linear_operator")

    def on_arrays(product: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        def real(x: Any) -> Any:
            return product(torch.as_tensor(x, dtype=dtype, device=device))[0, 0].cpu().numpy()

        return lambda x: real(x.real) + 1j * real(x.imag) if x.dtype.kind == "c" else real(x)

    left, right = on_arrays(matvec), on_arrays(rmatvec)
    make: Any = linalg.LinearOperator  # SciPy types its constructor as that of its subclasses
    name = str(dtype).removeprefix("torch.")
    return make(tuple(shape), matvec=left, rmatvec=right, matmat=left, rmatmat=right, dtype=name)
