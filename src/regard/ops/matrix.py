"""Lazy matrices over a request: shape, selection and entries, before softmax (`ScoreMatrix`) and after."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.checks import Checks
from regard.ops.indexing import (
    SelectCells,
    Selection,
    Source,
    columns_by_row,
    rectangle,
    rectangles,
    resolve_index,
    similar_rows,
    split_index,
)
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.dispatch import prepare
from regard.ops.measures.base import Measure
from regard.ops.request import AttentionRequest
from regard.ops.row_blocks import ComparisonMatrix, RowBlocks
from regard.ops.tensor_functions import DENSE_LIMIT, check_cells, format_bytes
from regard.ops.tree import TensorVersions, map_float_tensors, map_tensors, tensors_in


class Matrix(RowBlocks):
    """What the matrices before and after softmax share; subclasses say which of the two they show."""

    _source: Source
    _made_of = "query, key, mask and score"

    def __init__(
        self,
        request: AttentionRequest,
        valid_queries: Bool[Tensor, "batch queries"] | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.request, self.kernel = request, kernel
        self.valid_queries = valid_queries
        """(batch, queries) False where a query is padding; None if none is known to be."""
        # The indices that `at` selected are copies, which nobody changes.
        self._versions = TensorVersions((request.query, request.key, request.mask, request.score))

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size(self.request.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the entries: float64 for float64, else float32."""
        return self.request.dtype

    @property
    def device(self) -> torch.device:
        """Device of query and key."""
        return self.request.query.device

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors it holds: query, key, and those of mask and score."""
        return sum(tensor.nbytes for tensor in tensors_in(self.request))

    def __repr__(self) -> str:
        request = self.request
        parts = [f"{axis}={size}" for axis, size in zip(("batch", "heads", "queries", "keys"), self.shape, strict=True)]
        parts += [f"mask={request.mask!r}"] if request.mask is not None else []
        parts += [str(self.dtype).removeprefix("torch."), str(self.device)]
        parts += [
            f"holds {format_bytes(self.nbytes)} instead of {format_bytes(prod(self.shape) * self.dtype.itemsize)}"
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        """Select a part of the matrix, as lazy as the whole, still with four axes.

        Args:
            batch: An int, several, bools or a slice; None keeps all.
            heads: The same, for heads.
            queries: The same, for queries; each keeps its position.

        Raises:
            InvalidArgument: If an index is out of range or nothing is selected.
            InvalidType: If it is not an index.

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(2, 8, 50, 16), torch.randn(2, 8, 50, 16))
            >>> W.at(batch=0, heads=[3, 5], queries=slice(10)).shape
            torch.Size([1, 2, 10, 50])
        """
        checks = Checks()
        axes = zip(("batch", "heads", "queries"), (batch, heads, queries), self.shape, strict=False)
        selected = [
            None if index is None else resolve_index(checks, name, index, size, self.device)
            for name, index, size in axes
        ]
        checks.raise_problems()
        self._check_unchanged()
        valid = self.valid_queries
        if valid is not None:
            rows = [slice(None) if index is None else index for index in (selected[0], selected[2])]
            valid = valid[rows[0]][:, rows[1]]
        return type(self)(self.request.at(*selected), valid, self.kernel)

    def to(self, *args: Any, **options: Any) -> Any:
        self._check_unchanged()
        return super().to(*args, **options)

    def on_device(self, device: torch.device) -> Self:
        request, valid = map_tensors((self.request, self.valid_queries), lambda tensor: tensor.to(device))
        return type(self)(request, valid, self.kernel)

    def detach(self) -> Self:
        """The same matrix, detached from the graph of its tensors."""
        self._check_unchanged()
        return type(self)(map_float_tensors(self.request, Tensor.detach), self.valid_queries, self.kernel)

    def dense(self, limit: int = DENSE_LIMIT) -> Float[Tensor, "batch heads queries keys"]:
        """The whole matrix, (batch, heads, queries, keys).

        Args:
            limit: Largest number of cells; 2**28 by default, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are more.

        Memory:
            O(batch * heads * queries * keys).
        """
        self._check_unchanged()
        check_cells(prod(self.shape), limit, self.dtype)
        return self._evaluate(self.request, {"cells": SelectCells(self._source, slice(None))})["cells"]

    def in_dtype_of_sums(self) -> Self:
        """The same matrix, in whose gradients those of several calls are added up before they are rounded."""
        self._check_unchanged()
        return type(self)(self.request.in_dtype_of_sums(), self.valid_queries, self.kernel)

    @property
    def requires_grad(self) -> bool:
        """Whether query, key, mask or score require a gradient."""
        return any(tensor.requires_grad for tensor in tensors_in(self.request))

    def __getitem__(self, index: Any) -> Float[Tensor, "..."]:
        """`dense()[index]` for every index that torch takes, computing only the rows that it needs.

        Raises:
            IndexError: As torch does.
            InvalidArgument: If the result has more cells than `dense` computes by default.

        Memory:
            O(cells of the result + queries + keys).
        """
        self._check_unchanged()
        shape = self.request.shape
        if isinstance(index, ComparisonMatrix):
            index = index.true_cells(self.shape)
        split = split_index(index, shape[3])
        if split is not None:
            row_index, keys, rest = split
            entries = rectangle(row_index, shape)
            if entries is not None:
                cells = self._rectangle(entries, keys)
                sizes = [
                    len(selected) for part, selected in zip(row_index, entries, strict=True) if type(part) is slice
                ]
                cells = cells.view(*sizes, cells.shape[3])
                return cells if rest == (slice(None),) else cells[(..., *rest)]
            return self._rows(self._row_numbers()[row_index], DENSE_LIMIT, keys)[(..., *rest)]
        rows = self._row_numbers()
        check_cells(self._cells_in(index), DENSE_LIMIT, self.dtype)
        # Expanded views with the shape of the matrix and the memory of one axis: torch itself resolves the index.
        keys = torch.arange(self.shape[3], device=self.device)
        return self._cells(rows[..., None].expand(self.shape)[index], keys.expand(self.shape)[index])

    def _cells_in(self, index: Any) -> int:
        """The number of cells that an index selects; 0 if it is not an index, about which torch will complain."""
        try:
            return torch.empty(self.shape, device="meta")[index].numel()
        except (IndexError, RuntimeError, TypeError, ValueError):
            return 0

    def _row_numbers(self) -> Tensor:
        """(batch, heads, queries): a number for each row of the matrix."""
        return torch.arange(prod(self.shape[:3]), device=self.device).view(self.shape[:3])

    def _rectangle(self, entries: list[range], keys: slice) -> Tensor:
        """A range of keys for these batch entries, heads and queries, (batch, heads, queries, keys)."""
        *sizes, num_keys = self.request.shape
        check_cells(prod(map(len, entries)) * len(range(*keys.indices(num_keys))), DENSE_LIMIT, self.dtype)
        selected = [None if len(part) == size else part for part, size in zip(entries, sizes, strict=True)]
        return self._evaluate(self.request.at(*selected), {"cells": SelectCells(self._source, keys)})["cells"]

    def _rows(self, numbers: Tensor, limit: int, keys: slice = slice(None)) -> Tensor:
        """Rows by their numbers, (*numbers.shape, keys)."""
        width = len(range(*keys.indices(self.shape[3])))
        check_cells(numbers.numel() * width, limit, self.dtype)
        unique, place = numbers.unique(return_inverse=True)
        in_order, request = torch.arange(len(unique), device=self.device), self.request.in_dtype_of_sums()
        if len(unique) == numbers.numel() and torch.equal(place.flatten(), in_order):
            return self._unique_rows(request, unique, keys, width).view(*numbers.shape, width)
        return self._unique_rows(request, unique, keys, width)[place]

    def _cells(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Cells by the numbers of their rows and by their keys, two tensors of one shape."""
        check_cells(rows.numel(), DENSE_LIMIT, self.dtype)
        if rows.numel() == 0:
            return torch.empty(rows.shape, dtype=self.dtype, device=self.device)
        flat_rows, flat_keys = rows.flatten(), keys.flatten()
        groups, request = similar_rows(flat_rows), self.request.in_dtype_of_sums()
        parts: list[Tensor] = []
        for cells in groups:
            unique, columns, place = columns_by_row(flat_rows[cells], flat_keys[cells])
            parts.append(self._unique_rows(request, unique, columns, columns.shape[1])[place])
        values = parts[0] if len(parts) == 1 else torch.cat(parts)[torch.cat(groups).argsort()]
        return values.view(rows.shape)

    def _unique_rows(self, whole: AttentionRequest, unique: Tensor, keys: slice | Tensor, width: int) -> Tensor:
        """These keys of different rows, (rows, width)."""
        parts = [torch.empty(0, width, dtype=self.dtype, device=self.device)]
        for axes, part in rectangles(unique, whole.shape) if len(unique) else ():
            request = whole.at(*axes)
            selected = keys if isinstance(keys, slice) else keys[part].view(*request.shape[:3], width)
            cells = self._evaluate(request, {"cells": SelectCells(self._source, selected)})["cells"]
            parts.append(cells.flatten(0, 2))
        return torch.cat(parts) if len(parts) > 2 else parts[-1]

    def _evaluate(self, request: AttentionRequest, measures: Mapping[str, Measure]) -> dict[str, Any]:
        """Compute measures of this matrix, or of a part of it, in one pass."""
        inputs = KernelInputs(None, request, measures)
        return prepare(inputs, self.kernel).run(inputs)[1]

    def _check_unchanged(self) -> None:
        """Raise if query, key or rules have been changed in place."""
        self._versions.check(f"this is a view of {self._made_of}")


class ScoreMatrix(Matrix):
    """The input of the softmax: the scores with scale, −∞ where masked."""

    _source = "scores"
