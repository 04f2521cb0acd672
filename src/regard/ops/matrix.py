"""A request seen as a matrix: its shape, its parts, its entries; those before softmax and those after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import Self

from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.ops.indexing import SelectCells, Shown, columns_by_row, groups, split_index
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import choose
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest
from regard.ops.tree import TensorVersions, map_float_tensors, map_tensors, tensors_in

DENSE_LIMIT = 2**28
"""How many cells are made without being told a limit: 1 GiB in float32."""

Chosen = int | Sequence[int] | slice | Tensor | None


class Matrix:
    """What the matrices before and after softmax share; subclasses say which of a block's cells they show."""

    _shown: Shown

    def __init__(self, request: AttentionRequest) -> None:
        self.request = request
        # The indices that `at` was given are copies, which nobody changes.
        self._unchanged = TensorVersions((request.query, request.key, request.mask, request.score))

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size(self.request.shape)

    @property
    def ndim(self) -> int:
        """Four."""
        return 4

    @property
    def dtype(self) -> torch.dtype:
        """In what the entries are computed: float64 for float64, else float32."""
        return self.request.dtype

    @property
    def device(self) -> torch.device:
        """Where query and key lie."""
        return self.request.query.device

    @property
    def nbytes(self) -> int:
        """The bytes that the view holds on to: of query, key, and the rules of mask and score, not of the matrix."""
        return sum(tensor.nbytes for tensor in tensors_in(self.request))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        request = self.request
        parts = [f"{axis}={size}" for axis, size in zip(("batch", "heads", "queries", "keys"), self.shape, strict=True)]
        parts += [f"mask={request.mask!r}"] if request.mask is not None else []
        parts += [str(self.dtype).removeprefix("torch."), str(self.device)]
        parts += [f"holds {_size(self.nbytes)} in place of {_size(prod(self.shape) * self.dtype.itemsize)}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def at(self, batch: Chosen = None, heads: Chosen = None, queries: Chosen = None) -> Self:
        """A smaller matrix, as lazy as this one, still with four axes.

        Args:
            batch: A number, several, or a slice; None keeps all.
            heads: The same, of the heads.
            queries: The same, of the queries; each keeps its position.

        Returns:
            The same kind of matrix.

        Raises:
            InvalidArgument: If a number is out of range or nothing is chosen.

        Example:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(2, 8, 50, 16), torch.randn(2, 8, 50, 16))
            >>> W.at(batch=0, heads=[3, 5], queries=slice(10)).shape
            torch.Size([1, 2, 10, 50])
        """
        wrong: list[str] = []
        asked = zip(("batch", "heads", "queries"), (batch, heads, queries), self.shape, strict=False)
        chosen = [
            None if index is None else resolve_index(name, index, size, self.device, wrong)
            for name, index, size in asked
        ]
        raise_problems(wrong, InvalidArgument)
        self._check()
        return type(self)(self.request.at(*chosen))

    def to(self, device: torch.device | str) -> Self:
        """The same matrix on another device."""
        self._check()
        return type(self)(map_tensors(self.request, lambda tensor: tensor.to(device)))

    def detach(self) -> Self:
        """The same matrix, cut from the graph of its query and key."""
        self._check()
        return type(self)(map_float_tensors(self.request, Tensor.detach))

    def dense(self, limit: int = DENSE_LIMIT) -> Float[Tensor, "batch heads queries keys"]:
        """The whole matrix, (batch, heads, queries, keys).

        Args:
            limit: How many cells may be made; 2²⁸ if not said, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are more; the message says how many, and the way round.

        Memory: O(batch · heads · queries · keys): what the rest of this library is there to avoid.
        """
        self._check()
        self._allow(prod(self.shape), limit)
        return ask(self.request, {"cells": SelectCells(self._shown, slice(None))})["cells"]

    def __getitem__(self, index: Any) -> Float[Tensor, "..."]:
        """`dense()[index]` for every index that torch takes, computing only the rows that it needs.

        Raises:
            IndexError: As torch does.
            InvalidArgument: If the answer would have more cells than `dense` makes.

        Memory: O(cells of the answer + queries + keys).
        """
        self._check()
        rows, split = self._row_numbers(), split_index(index, self.shape[3])
        if split is not None:
            of_rows, of_keys, rest = split
            return self._rows(rows[of_rows], DENSE_LIMIT, of_keys)[(..., *rest)]
        self._allow(self._asked(index), DENSE_LIMIT)
        # Views with the shape of the matrix and the memory of one axis: torch itself says which cells are meant.
        keys = torch.arange(self.shape[3], device=self.device)
        return self._cells(rows[..., None].expand(self.shape)[index], keys.expand(self.shape)[index])

    def _asked(self, index: Any) -> int:
        """How many cells an index means, by a matrix without memory; 0 where that cannot be said, or it is no index."""
        try:
            return torch.empty(self.shape, device="meta")[index].numel()
        except (IndexError, RuntimeError, TypeError, ValueError):
            return 0

    def _row_numbers(self) -> Tensor:
        """(batch, heads, queries): a number for each row of the matrix."""
        return torch.arange(prod(self.shape[:3]), device=self.device).view(self.shape[:3])

    def _rows(self, numbers: Tensor, limit: int, keys: slice = slice(None)) -> Tensor:
        """Rows by their numbers, (*numbers.shape, keys)."""
        width = len(range(*keys.indices(self.shape[3])))
        self._allow(numbers.numel() * width, limit)
        unique, place = numbers.unique(return_inverse=True)
        if len(unique) == numbers.numel() and bool(
            (place.flatten() == torch.arange(len(unique), device=self.device)).all()
        ):
            return self._of_rows(unique, keys, width).view(*numbers.shape, width)
        return self._of_rows(unique, keys, width)[place]

    def _cells(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Cells by the numbers of their rows and by their keys, two tensors of one shape."""
        self._allow(rows.numel(), DENSE_LIMIT)
        if rows.numel() == 0:
            return torch.empty(rows.shape, dtype=self.dtype, device=self.device)
        unique, columns, place = columns_by_row(rows.flatten(), keys.flatten())
        return self._of_rows(unique, columns, columns.shape[1])[place].view(rows.shape)

    def _of_rows(self, unique: Tensor, keys: slice | Tensor, width: int) -> Tensor:
        """The keys asked for of different rows, (rows, width)."""
        found = [torch.empty(0, width, dtype=self.dtype, device=self.device)]
        for axes, held in groups(unique, self.request.shape) if len(unique) else ():
            request = self.request.at(*axes)
            own = keys if isinstance(keys, slice) else keys[held].view(*request.shape[:3], width)
            found.append(ask(request, {"cells": SelectCells(self._shown, own)})["cells"].flatten(0, 2))
        return torch.cat(found) if len(found) > 2 else found[-1]

    def _allow(self, cells: int, limit: int) -> None:
        if cells > limit:
            raise InvalidArgument(
                f"the answer would hold {cells:,} cells, {_size(cells * self.dtype.itemsize)}; the limit is "
                f"{limit:,}. Ask for a part (W[0, 3], W.at(heads=[3])), for a measure (W.entropy(), W.topk(8)), "
                "multiply it (W @ x), or call W.dense(limit=...)"
            )

    def _check(self) -> None:
        """Query, key and mask must be what they were."""
        self._unchanged.check("this is a view of query, key and mask")


class ScoreMatrix(Matrix):
    """What softmax is given: the scores after scale and mask, −∞ where masked."""

    _shown = "scores"


def ask(request: AttentionRequest, measures: Mapping[str, Measure]) -> dict[str, Any]:
    """The answers about a matrix, from one pass."""
    job = KernelInputs(request, None, measures)
    return choose(job).run(job)[1]


def resolve_index(name: str, index: Any, size: int, device: torch.device, wrong: list[str]) -> Tensor | None:
    """The entries of an axis that were chosen, counted from 0.

    Args:
        name: What errors call the choice.
        index: A number, several, bools or a slice.
        size: How many entries there are.
        device: Where the numbers shall lie.
        wrong: Objections are added here.

    Raises:
        InvalidType: If the choice is of no such type.
    """
    try:
        found = torch.arange(size, device=device)[index] if isinstance(index, slice) else torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(
            f"{name}: expected a number, several or a slice with a positive step, got {index!r}"
        ) from None
    found = found.to(device).reshape(-1)
    if found.dtype == torch.bool and len(found) == size and not isinstance(index, bool):
        found = found.nonzero().flatten()
    if found.numel() and (found.dtype == torch.bool or found.is_floating_point() or found.is_complex()):
        wrong.append(f"{name}: expected integers, or {size} bools; got {index!r}")
        return None
    found = found.to(torch.int64)
    if len(found) == 0:
        wrong.append(f"{name}: {index!r} chooses none of {size}")
    elif int(found.min()) < -size or int(found.max()) >= size:
        wrong.append(f"{name}: {index!r} is out of range; there are {size}, numbered 0 to {size - 1}")
    return torch.where(found < 0, found + size, found)


def _size(count: int) -> str:
    """Bytes for a person: 8.2 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1000
    return f"{size:.1f} TB"
