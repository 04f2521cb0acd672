"""The matrices of several layers as one tensor, computed on demand: what `torch.stack` and `torch.cat` return."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from regard.ops.tensor_functions import DENSE_LIMIT, TensorFunctions, check_cells


def join(name: str, matrices: Any, dim: int = 0, **options: Any) -> MatrixStack | None:
    """The result of ``torch.stack`` or ``torch.cat``; None if it is not one of lazy matrices of one shape.

    Args:
        name: ``"stack"``, or one of the names of ``cat``.
        matrices: What is joined.
        dim: The new axis, or the one along which they follow each other.
        options: ``axis`` instead of it, as in NumPy. With ``out`` the result is dense.
    """
    parts, dim = list(matrices), options.pop("axis", dim)
    if options or not all(isinstance(part, TensorFunctions) for part in parts):
        return None
    first, is_new = parts[0], name == "stack"
    ndim = first.ndim + is_new
    same = all((part.shape, part.dtype, part.device) == (first.shape, first.dtype, first.device) for part in parts)
    if not same or not -ndim <= dim < ndim:
        return None  # torch says why, if it is an error
    return MatrixStack(parts, dim % ndim, is_new=is_new)


class MatrixStack(TensorFunctions):
    """Matrices of one shape along an axis. It holds them, and computes what is read from it.

    Args:
        matrices: The matrices, such as those of all layers.
        dim: The axis along which they are joined.
        is_new: Whether that axis is a new one, as in ``torch.stack``; else it is one of theirs, as in ``torch.cat``.

    Examples:
        >>> import regard, torch
        >>> layers = [regard.weights(*torch.randn(2, 1, 8, 50, 16).unbind(0)) for _ in range(3)]
        >>> torch.stack(layers)
        MatrixStack(3 × WeightMatrix, shape=(3, 1, 8, 50, 50))
        >>> torch.stack(layers).mean((1, 2)).shape
        torch.Size([3, 50, 50])
    """

    join = staticmethod(join)

    def __init__(self, matrices: Sequence[TensorFunctions], dim: int, *, is_new: bool) -> None:
        self.matrices, self.join_dim, self.is_new = list(matrices), dim, is_new

    @property
    def shape(self) -> torch.Size:
        """That of what is joined."""
        shape = list(self.matrices[0].shape)
        if self.is_new:
            shape.insert(self.join_dim, len(self.matrices))
        else:
            shape[self.join_dim] *= len(self.matrices)
        return torch.Size(shape)

    @property
    def dtype(self) -> torch.dtype:
        """That of the matrices."""
        return self.matrices[0].dtype

    @property
    def device(self) -> torch.device:
        """That of the matrices."""
        return self.matrices[0].device

    def __repr__(self) -> str:
        count, kind = len(self.matrices), type(self.matrices[0]).__name__
        return f"{type(self).__name__}({count} × {kind}, shape={tuple(self.shape)})"

    @property
    def requires_grad(self) -> bool:
        return any(matrix.requires_grad for matrix in self.matrices)

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """All cells as a tensor.

        Args:
            limit: Largest number of cells; 2**28 by default, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are more.
        """
        check_cells(prod(self.shape), limit, self.dtype)
        return self._join([matrix.dense(limit) for matrix in self.matrices])

    def __getitem__(self, index: Any) -> Any:
        """`dense()[index]`, computing only the rows that it needs; a matrix itself, where the index says only which."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if not self.is_new or not all(part is Ellipsis or type(part) in (int, slice) for part in parts):
            return super().__getitem__(index)
        missing = self.ndim - len(parts) + (Ellipsis in parts)
        place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
        parts[place : place + 1] = [slice(None)] * missing
        if len(parts) != self.ndim:
            return super().__getitem__(index)
        own = parts.pop(self.join_dim)
        is_whole = all(part == slice(None) for part in parts)
        if isinstance(own, int):
            matrix = self.matrices[own]
            return matrix if is_whole else matrix[tuple(parts)]
        selected = self.matrices[own]
        if is_whole and selected:
            return MatrixStack(selected, self.join_dim, is_new=True)
        if not selected:
            return super().__getitem__(index)
        axis = sum(isinstance(part, slice) for part in parts[: self.join_dim])
        return torch.stack([matrix[tuple(parts)] for matrix in selected], axis)

    def to(self, *args: Any, **options: Any) -> Any:
        """Each matrix, as its own `to` returns it."""
        parts = [matrix.to(*args, **options) for matrix in self.matrices]
        lazy = all(isinstance(part, TensorFunctions) for part in parts)
        return MatrixStack(parts, self.join_dim, is_new=self.is_new) if lazy else self._join(parts)

    def detach(self) -> MatrixStack:
        """The same matrices, detached from the graph of their tensors."""
        return MatrixStack([matrix.detach() for matrix in self.matrices], self.join_dim, is_new=self.is_new)

    def _join(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, self.join_dim) if self.is_new else torch.cat(parts, self.join_dim)

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        of_each = dims
        if self.is_new:
            of_each = tuple(dim - (dim > self.join_dim) for dim in dims if dim != self.join_dim)
        parts = [matrix.reduce_axes(name, of_each) if of_each else matrix.dense() for matrix in self.matrices]
        joined = self._join(parts)
        return getattr(torch, name)(joined, self.join_dim, keepdim=True) if self.join_dim in dims else joined
