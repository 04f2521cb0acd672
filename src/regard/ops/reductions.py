"""Reductions over the axes of a lazy matrix, with the signatures of torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor

from regard.errors import short_repr

Dims = int | Sequence[int] | None


class Reductions:
    """Base of lazy matrices with sums, means and extremes; what has no form of its own is computed from `dense_for`.

    Subclasses have `shape`, `dense_for` and `reduce_axes`.
    """

    @property
    def shape(self) -> torch.Size:
        """The size of each axis."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def dense_for(self, name: str) -> Tensor:
        """The dense matrix that a function needs."""
        raise NotImplementedError

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """The ``sum``, ``amax`` or ``amin`` over some axes, which stay with size 1."""
        raise NotImplementedError

    def sum(
        self,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        axis: Dims = None,
        out: None = None,
    ) -> Any:
        """The sum over axes, as ``dense().sum(dim)``, in memory linear in what it returns."""
        return self._reduced("sum", dim if axis is None else axis, keepdim, dtype)

    def mean(
        self,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        axis: Dims = None,
        out: None = None,
    ) -> Any:
        """The mean over axes, as ``dense().mean(dim)``, in memory linear in what it returns."""
        dims = self._dims(dim if axis is None else axis)
        return self._reduced("sum", dims, keepdim, dtype) / prod(self.shape[each] for each in dims)

    def amax(self, dim: Dims = None, keepdim: bool = False) -> Any:
        """The largest cell over axes, as ``dense().amax(dim)``."""
        return self._reduced("amax", dim, keepdim)

    def amin(self, dim: Dims = None, keepdim: bool = False) -> Any:
        """The smallest cell over axes, as ``dense().amin(dim)``."""
        return self._reduced("amin", dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False, *, axis: Dims = None, out: None = None) -> Any:
        """The largest cell; with an axis, the largest cells and their indices, as ``dense().max(dim)``."""
        if dim is None:
            return self.amax(axis)
        return self.dense_for("max").max(dim, *([] if isinstance(dim, Tensor) else [keepdim]))

    def min(self, dim: Any = None, keepdim: bool = False, *, axis: Dims = None, out: None = None) -> Any:
        """The smallest cell; with an axis, the smallest cells and their indices, as ``dense().min(dim)``."""
        if dim is None:
            return self.amin(axis)
        return self.dense_for("min").min(dim, *([] if isinstance(dim, Tensor) else [keepdim]))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the largest cell, as ``dense().argmax(dim)``."""
        if dim is None:
            return self.dense_for("argmax").argmax()
        return self.max(dim, keepdim).indices

    def topk(self, k: int, dim: int = -1, largest: bool = True, *rest: bool, **options: bool) -> Any:
        """The k largest cells and their indices, as ``dense().topk(k, dim)``."""
        return self.dense_for("topk").topk(k, dim, largest, *rest, **options)

    def _reduced(self, name: str, dim: Dims, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor:
        if not isinstance(keepdim, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - as two axes in a row
            raise TypeError(f"keepdim: expected a bool, got {short_repr(keepdim)}; pass several axes as a tuple")
        dims = self._dims(dim)
        result = self.reduce_axes(name, dims)
        result = result if keepdim else result.squeeze(dims)
        return result if dtype is None else result.to(dtype)

    def _dims(self, dim: Dims) -> tuple[int, ...]:
        """Axes by number; None and no axes are all.

        Raises:
            IndexError: As torch does.
        """
        given = range(self.ndim) if dim is None else dim if isinstance(dim, Sequence) else [index(dim)]
        for each in given:
            if not -self.ndim <= each < self.ndim:
                raise IndexError(f"dim: expected {-self.ndim} to {self.ndim - 1}, got {each}")
        dims = tuple(each % self.ndim for each in given) or tuple(range(self.ndim))
        if len({*dims}) < len(dims):
            raise RuntimeError(f"dim: expected each axis once, got {tuple(given)}")
        return dims
