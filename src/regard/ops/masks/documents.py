"""Document mask: several documents packed into one sequence, each attending to itself."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.checks import Checks
from regard.ops.masks.base import Mask
from regard.ops.masks.key_ranges import document_ranges
from regard.ops.steps import Place, Step
from regard.ops.tile import KeyRange, Shape, Tile


class Documents(Mask):
    """Document mask: a query attends to the keys of its own document.

    Args:
        document_ids: Document of each key, (keys,) or (batch, keys) integers. A key with a negative id belongs to no
            document, and no query attends to it.
        query_document_ids: Document of each query, (queries,) or (batch, queries). Default: the document of the key at
            the query's position; a query whose position is not that of a key attends to nothing.

    Raises:
        InvalidType: If they are not integers.
        InvalidArgument: If they do not have one or two axes.

    Memory:
        Where the tokens of a document are adjacent, a block of queries computes its own documents only.

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 4, 8)
        >>> regard.weights(x, x, mask=regard.Documents(torch.tensor([0, 0, 0, 1])) & regard.Causal())[0, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000],
                [0.3333, 0.3333, 0.3333, 0.0000],
                [0.0000, 0.0000, 0.0000, 1.0000]])
    """

    document_ids: Integer[Tensor, "*batch keys"]
    query_document_ids: Integer[Tensor, "*batch queries"] | None = None

    def __post_init__(self) -> None:
        checks = Checks()
        for name, ids in self._named_ids():
            if checks.tensor(name, ids, "integer") and ids.ndim not in (1, 2):
                checks.fail(f"{name}: expected shape (tokens,) or (batch, tokens), got {tuple(ids.shape)}")
        checks.raise_problems()

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        of_key = _look_up(self.document_ids, tile, tile.kv_idx)
        if self.query_document_ids is not None:
            of_query = _look_up(self.query_document_ids, tile, tile.q_idx)
            return (of_query == of_key) & (of_key >= 0)
        last = self.document_ids.shape[-1] - 1
        position = tile.q_pos
        of_query = _look_up(self.document_ids, tile, position.clamp(0, last))
        return (of_query == of_key) & (of_key >= 0) & (position >= 0) & (position <= last)

    def summarize(self) -> tuple[Tensor, Tensor, Tensor]:
        """The extent of each query's document (each key's, where queries go by position), on the CPU.

        Returns:
            Its first key, one past its last key, and whether every key between them belongs to it, each
            (batch or 1, tokens).
        """
        queries = self.document_ids if self.query_document_ids is None else self.query_document_ids
        of_key, of_query = (torch.atleast_2d(ids.to(torch.int64)) for ids in (self.document_ids, queries))
        ranges = document_ranges(of_query.where(of_query >= 0, -2), of_key.clamp(min=-1))
        starts, stops, full_starts = torch.stack(ranges[:3]).cpu()
        return starts, stops, full_starts == starts

    def key_range(self, tile: Tile) -> KeyRange:
        first, stop, _ = self._extents(tile)
        return tile.clip(int(first.min()), int(stop.max()))

    def full_key_range(self, tile: Tile) -> KeyRange:
        first, stop, contiguous = self._extents(tile)
        return tile.clip(int(first.max()), int(stop.min())) if contiguous.all() else tile.no_keys

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        batch, _, queries, keys = shape
        for (name, ids), axis, size in zip(self._named_ids(), ("keys", "queries"), (keys, queries), strict=False):
            shapes = {f"({axis},)": (size,), f"(batch, {axis})": (batch, size)}
            if tuple(ids.shape) != (1, size):
                checks.tensor(name, ids, shapes=shapes)
            checks.device(name, ids, device)

    def steps(self, place: Place) -> list[Step]:
        return [Step("same_document", tensors=lambda: self._step_tensors(place))]

    def _step_tensors(self, place: Place) -> tuple[Tensor, Tensor]:
        of_key = self.document_ids.to(torch.int64)
        if self.query_document_ids is None:
            position, keys = place.positions, of_key.shape[-1]
            inside = (position >= 0) & (position < keys)
            of_query = of_key[..., position.clamp(0, keys - 1)].where(inside, -1)
        else:
            of_query = self.query_document_ids.to(torch.int64)
        # No query attends to a key with a negative id: such a key becomes -1, such a query -2.
        of_key, of_query = torch.atleast_2d(of_key.clamp(min=-1)), torch.atleast_2d(of_query.where(of_query >= 0, -2))
        return of_query[:, None, :, None], of_key[:, None, None, :]

    def _named_ids(self) -> list[tuple[str, Tensor]]:
        ids = [("Documents.document_ids", self.document_ids)]
        if self.query_document_ids is not None:
            ids.append(("Documents.query_document_ids", self.query_document_ids))
        return ids

    def _extents(self, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        """The summary for the rows of a tile."""
        first, stop, contiguous = tile.summary(self)
        batch, tokens = first.shape
        if self.query_document_ids is None and tile.positions is not None:
            row = tile.positions.cpu()
        else:
            row = (
                torch.arange(tile.rows.start, tile.rows.stop, device="cpu")
                if isinstance(tile.rows, slice)
                else tile.rows.cpu()
            )
            row = row if self.query_document_ids is not None else row + tile.offset
        inside = (row >= 0) & (row < tokens)
        index = torch.tensor(tile.batch_indices, device="cpu")[:, None] if batch > 1 else 0, row.clamp(0, tokens - 1)
        first, stop, contiguous = first[index], stop[index], contiguous[index]
        return first.where(inside, self.document_ids.shape[-1]), stop.where(inside, 0), contiguous & inside


def _look_up(ids: Tensor, tile: Tile, index: Tensor) -> Tensor:
    return ids[index] if ids.ndim == 1 else ids[tile.b if len(ids) > 1 else 0, index]
