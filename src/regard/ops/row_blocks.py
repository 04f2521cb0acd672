"""RowBlocks: what a lazy matrix computes from blocks of its rows; and what is computed from its cells, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.checks import as_device
from regard.ops.indexing import Selection
from regard.ops.linear_operator import as_columns
from regard.ops.matrix_stack import join
from regard.ops.matrix_sum import MatrixParts
from regard.ops.tensor_functions import DENSE_LIMIT, ROWS_AND_COLUMNS, MaxOverKeys, TensorFunctions, check_cells
from regard.ops.transposed import Transposed

SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


class RowBlocks(MatrixParts):
    """Base of lazy matrices (batch, heads, queries, keys), any rows of which can be computed."""

    join = staticmethod(join)

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        """Select a part of the matrix, as lazy as the whole, still with four axes."""
        raise NotImplementedError

    def detach(self) -> Self:
        """The same matrix, detached from the graph of its tensors."""
        raise NotImplementedError

    def on_device(self, device: torch.device) -> Self:
        """The same matrix on another device."""
        raise NotImplementedError

    def to(self, *args: Any, **options: Any) -> Any:
        """The same matrix on another device; in another dtype, the dense one.

        Args:
            args: As those of ``Tensor.to``: a device, a dtype, both, or a tensor that has them.
            options: The same.

        Raises:
            InvalidArgument: If there is no such device, or the dense matrix has too many cells.
        """
        if args and isinstance(args[0], str):
            args = as_device(args[0]), *args[1:]
        parse: Any = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
        device, dtype, *_ = parse(*args, **options)
        matrix = self if device in (None, self.device) else self.on_device(device)
        return matrix if dtype in (None, self.dtype) else matrix.dense_for("to").to(dtype)

    def query_blocks(self, max_cells: int = 2**22) -> Iterator[slice]:
        """Slices of the queries, in order, with at most so many cells each: blocks that can be dense, one at a time."""
        batch, heads, queries, keys = self.shape
        size = max(1, max_cells // (batch * heads * keys))
        return (slice(start, min(start + size, queries)) for start in range(0, queries, size))

    def in_dtype_of_sums(self) -> Self:
        """The same matrix, in whose gradients those of several blocks are added up before they are rounded."""
        return self

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """A diagonal, as ``dense().diagonal``; between queries and keys it computes only these cells."""
        if {dim1, dim2} not in ROWS_AND_COLUMNS:
            return self.dense_for("diagonal").diagonal(offset, dim1, dim2)
        offset = offset if dim1 % 4 == 2 else -offset
        queries, keys = self.shape[2:]
        first = max(0, -offset)
        rows = torch.arange(first, max(first, min(queries, keys - offset)), device=self.device)
        return self[:, :, rows, rows + offset]

    def by_blocks(self, compute: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
        """The results of a function of blocks of rows, (batch, heads, rows, ...) each, joined along the rows."""
        whole, queries = self.in_dtype_of_sums(), self.shape[2]
        if torch.is_grad_enabled() and self.requires_grad:
            parts = [_checkpointed(compute, whole, rows) for rows in self.query_blocks()]
            return [torch.cat(each, 2) for each in zip(*parts, strict=True)]
        # Small results between large blocks would keep the allocator from using the memory of a block again.
        results: list[Tensor] = []
        for rows in self.query_blocks():
            for number, part in enumerate(compute(whole[:, :, rows])):
                if number == len(results):
                    results.append(part.new_empty(*part.shape[:2], queries, *part.shape[3:]))
                results[number][:, :, rows] = part
        return results

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        reduce = getattr(torch, name)
        check_cells(prod(1 if axis in dims else size for axis, size in enumerate(self.shape)), DENSE_LIMIT, self.dtype)
        if 2 not in dims:
            return self.by_blocks(lambda block: [reduce(block, dims, keepdim=True)])[0]
        whole = self.in_dtype_of_sums()

        def sums(block: Tensor) -> Tensor:
            return reduce(block, dims, keepdim=True)

        parts = [_checkpointed(sums, whole, rows) for rows in self.query_blocks()]
        return reduce(torch.cat(parts, 2), 2, keepdim=True)

    def topk(self, k: int, dim: int = -1, largest: bool = True, *rest: bool, **options: bool) -> Any:
        """The k largest cells and their indices, as ``dense().topk(k, dim)``; over keys by blocks of rows."""
        if dim not in (3, -1):
            return super().topk(k, dim, largest, *rest, **options)
        check_cells(prod(self.shape[:3]) * k, DENSE_LIMIT, self.dtype)
        parts: Any = self.by_blocks(lambda block: block.topk(k, -1, largest, *rest, **options))
        return torch.return_types.topk(parts)

    def max(self, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
        """The largest cell; with an axis, the largest cells and their indices, as ``dense().max(dim)``."""
        if options or dim not in (3, -1):
            return super().max(dim, keepdim, **options)
        return MaxOverKeys(*self.by_blocks(lambda block: block.max(-1, keepdim)))

    def __matmul__(self, x: Tensor) -> Tensor:
        """The product with a vector or a matrix, as ``dense() @ x``.

        Args:
            x: (keys,), (keys, columns), or (..., keys, columns) broadcastable to batch and heads.

        Returns:
            (batch, heads, queries) or (batch, heads, queries, columns), in the dtype of x.

        Raises:
            InvalidArgument: If x does not fit.
            InvalidType: If it is not a floating-point tensor.
        """
        x = x.dense_for("matmul") if isinstance(x, TensorFunctions) else x
        columns = as_columns("W @ x", x, self.shape, 3, self.device)
        product = self.product(columns.to(self.dtype)).to(x.dtype)
        return product[..., 0] if x.ndim == 1 else product

    def compare(self, name: str, other: Any) -> ComparisonMatrix | None:
        return ComparisonMatrix(self, name, other) if isinstance(other, (int, float)) else None

    def times(self, other: Any) -> ProductMatrix | None:
        is_same = isinstance(other, RowBlocks) and (self.shape, self.device) == (other.shape, other.device)
        return ProductMatrix(self, other) if is_same else None

    def product(self, columns: Tensor) -> Tensor:
        """``dense() @ columns`` for (batch or 1, heads or 1, keys, columns): (batch, heads, queries, columns)."""
        return self.by_blocks(lambda block: [block @ columns])[0]

    def transposed_product(self, y: Tensor) -> Tensor:
        """``dense().mT @ y`` for y (batch or 1, heads or 1, queries, columns): (batch, heads, keys, columns)."""
        whole, y = self.in_dtype_of_sums(), y.to(self.dtype)
        batch, heads, _, keys = self.shape
        total = torch.zeros(batch, heads, keys, y.shape[3], dtype=self.dtype, device=self.device)

        def product(block: Tensor, y: Tensor) -> Tensor:
            return block.mT @ y

        for rows in self.query_blocks():
            total = total + _checkpointed(product, whole, rows, y[:, :, rows])
        return total

    def topk_of_columns(self, k: int) -> Any:
        """The k largest cells of each column and their queries, (batch, heads, keys, k), from the dense matrix."""
        return self.dense_for("topk").mT.topk(k)

    @property
    def mT(self) -> Transposed:  # noqa: N802 - torch's name
        """The transpose: ``W.mT @ y`` and ``W.mT.topk(k)``."""
        return Transposed(self)

    def transpose(self, dim0: int, dim1: int) -> Any:
        """`mT`, if these are queries and keys; else that of the dense matrix."""
        return self.mT if {dim0, dim1} in ROWS_AND_COLUMNS else self.dense_for("transpose").transpose(dim0, dim1)

    swapaxes = swapdims = transpose

    def permute(self, *dims: Any) -> Any:
        """`mT`, if queries and keys change places and nothing else does; else that of the dense matrix."""
        order = tuple(dims[0] if len(dims) == 1 else dims)
        return self.mT if order in ((0, 1, 3, 2), (0, 1, -1, -2)) else self.dense_for("permute").permute(order)


def _checkpointed(compute: Callable[..., Any], matrix: RowBlocks, rows: slice, *args: Tensor) -> Any:
    """A function of a block of rows, which autograd computes again instead of keeping its cells."""
    if not torch.is_grad_enabled():
        return compute(matrix[:, :, rows], *args)

    def again(*args: Tensor) -> Any:
        return compute(matrix[:, :, rows], *args)

    return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False)


class ProductMatrix(RowBlocks):
    """The product of two lazy matrices of one shape, cell by cell: what ``W.grad * W`` returns.

    It holds both and nothing of size queries × keys. A part of it is the product of their parts: indexing, `at`,
    ``sum``, ``mean``, ``topk`` and ``@`` need blocks of rows only.

    Examples:
        >>> import regard, torch
        >>> W, other = (regard.weights(*torch.randn(2, 1, 8, 50, 16).unbind(0)) for _ in range(2))
        >>> W * other
        ProductMatrix(WeightMatrix × WeightMatrix, shape=(1, 8, 50, 50))
        >>> torch.allclose((W * other)[0, 3], W[0, 3] * other[0, 3])
        True
    """

    def __init__(self, left: RowBlocks, right: RowBlocks) -> None:
        self.left, self.right = left, right

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return self.left.shape

    @property
    def dtype(self) -> torch.dtype:
        """The larger one of the two dtypes."""
        return torch.promote_types(self.left.dtype, self.right.dtype)

    @property
    def device(self) -> torch.device:
        """That of both."""
        return self.left.device

    @property
    def requires_grad(self) -> bool:
        """Whether one of them requires a gradient."""
        return self.left.requires_grad or self.right.requires_grad

    def __repr__(self) -> str:
        kinds = " × ".join(type(each).__name__ for each in (self.left, self.right))
        return f"{type(self).__name__}({kinds}, shape={tuple(self.shape)})"

    def is_floating_point(self) -> bool:
        """Whether the cells are numbers, not bools."""
        return self.dtype.is_floating_point

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        """Select a part of the matrix, as lazy as the whole, still with four axes. Arguments: `WeightMatrix.at`."""
        return type(self)(self.left.at(batch, heads, queries), self.right.at(batch, heads, queries))

    def __getitem__(self, index: Any) -> Tensor:
        """`dense()[index]`, computing only the rows that it needs."""
        return self.left[index] * self.right[index]

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix, (batch, heads, queries, keys).

        Args:
            limit: Largest number of cells; 2**28 by default, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are more.
        """
        return self.left.dense(limit) * self.right.dense(limit)

    def in_dtype_of_sums(self) -> Self:
        """The product of both, as their own `in_dtype_of_sums` returns them."""
        return type(self)(self.left.in_dtype_of_sums(), self.right.in_dtype_of_sums())

    def on_device(self, device: torch.device) -> Self:
        return type(self)(self.left.on_device(device), self.right.on_device(device))

    def detach(self) -> Self:
        """The product of both, detached from their graphs."""
        return type(self)(self.left.detach(), self.right.detach())


class ComparisonMatrix(RowBlocks):
    """Which cells of a lazy matrix are above or below a number: what ``W > 0.1`` returns.

    It holds the matrix and nothing of size queries × keys. `nonzero` lists the cells, the edges of a graph from queries
    to keys; ``sum`` counts them; ``W * (W > 0.1)`` is lazy, too. It has no gradient.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.zeros(2, 1, 1, 3, 8).unbind(0), mask=regard.Causal())
        >>> W > 0.4
        ComparisonMatrix(WeightMatrix > 0.4, shape=(1, 1, 3, 3))
        >>> (W > 0.4).nonzero()[:, 2:].tolist()
        [[0, 0], [1, 0], [1, 1]]
        >>> (W > 0.4).sum(-1).tolist()
        [[[1, 2, 0]]]
    """

    multiplies = False

    def __init__(self, matrix: RowBlocks, name: str, number: float) -> None:
        self.matrix, self.name, self.number = matrix, name, number

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return self.matrix.shape

    @property
    def dtype(self) -> torch.dtype:
        """``torch.bool``."""
        return torch.bool

    @property
    def device(self) -> torch.device:
        """That of the matrix."""
        return self.matrix.device

    @property
    def requires_grad(self) -> bool:
        """False."""
        return False

    def __repr__(self) -> str:
        text = f"{type(self.matrix).__name__} {SIGNS[self.name]} {self.number}"
        return f"{type(self).__name__}({text}, shape={tuple(self.shape)})"

    def is_floating_point(self) -> bool:
        """False."""
        return False

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        """Select a part of the matrix, as lazy as the whole, still with four axes. Arguments: `WeightMatrix.at`."""
        return type(self)(self.matrix.at(batch, heads, queries), self.name, self.number)

    def __getitem__(self, index: Any) -> Bool[Tensor, "..."]:
        """`dense()[index]`, computing only the rows that it needs."""
        with torch.no_grad():
            return getattr(torch, self.name)(self.matrix[index], self.number)

    def dense(self, limit: int = DENSE_LIMIT) -> Bool[Tensor, "batch heads queries keys"]:
        """The whole matrix.

        Args:
            limit: Largest number of cells; 2**28 by default, 256 MiB.

        Raises:
            InvalidArgument: If there are more.
        """
        check_cells(self.numel(), limit, self.dtype)
        return self.by_blocks(lambda block: [block])[0]

    def detach(self) -> Self:
        """Itself."""
        return self

    def on_device(self, device: torch.device) -> Self:
        return type(self)(self.matrix.on_device(device), self.name, self.number)

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            return super().reduce_axes(name, dims)

    def any(self, dim: Any = None, keepdim: bool = False) -> Bool[Tensor, "..."]:
        """Whether any cell is True, as ``dense().any(dim)``."""
        return self.amax(dim, keepdim)

    def all(self, dim: Any = None, keepdim: bool = False) -> Bool[Tensor, "..."]:
        """Whether all cells are True, as ``dense().all(dim)``."""
        return self.amin(dim, keepdim)

    def count_nonzero(self, dim: Any = None) -> Int[Tensor, "..."]:
        """How many cells are True, as ``dense().count_nonzero(dim)``."""
        return self.sum(dim)

    def true_cells(self, shape: torch.Size) -> tuple[Tensor, ...]:
        """What to index a matrix of a shape with, to read the cells that are True.

        Raises:
            IndexError: If the shape is another.
        """
        if shape != self.shape:
            raise IndexError(f"index: expected a comparison of the shape {tuple(shape)}, got {tuple(self.shape)}")
        return self.nonzero(as_tuple=True)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """The indices of the cells that are True, as ``dense().nonzero()``.

        Args:
            as_tuple: Whether to return a tensor for each axis.

        Returns:
            (cells, 4): sequence, head, query and key of each, in this order; or as many tensors (cells,).

        Memory:
            O(keys + cells that are True): it computes blocks of rows.
        """
        parts: list[Tensor] = []
        for rows in self.query_blocks():
            cells = self[:, :, rows].nonzero()
            cells[:, 2] += rows.start
            parts.append(cells)
        cells = torch.cat(parts)
        if len(parts) > 1:  # blocks are in the order of queries, not of sequences and heads
            _, heads, queries, keys = self.shape
            places = torch.tensor([heads * queries * keys, queries * keys, keys, 1], device=self.device)
            cells = cells[(cells * places).sum(1).argsort()]
        return cells.unbind(1) if as_tuple else cells
