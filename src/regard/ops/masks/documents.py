"""Several documents in one sequence, each of which sees itself alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from regard.errors import InvalidType
from regard.ops.masks.base import Mask, no_keys, other_device
from regard.ops.tile import Span, Tile


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """A query sees the keys of its own document: as many documents as fit are packed into one sequence.

    Args:
        ids: The document of each key, (keys,) or (batch, keys) integers. Below 0: it belongs to none, and nobody sees
            it.
        query_ids: The document of each query, (queries,) or (batch, queries). If not given, that of the key at the
            query's position; a query that stands where there is no key sees nothing.

    Raises:
        InvalidType: If they are no integers or have other axes.

    Memory: Where the tokens of a document lie side by side, a block of queries computes its own documents and no more.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 4, 8)
        >>> regard.weights(x, x, mask=regard.Documents(torch.tensor([0, 0, 0, 1])) & regard.Causal())[0, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000],
                [0.3333, 0.3333, 0.3333, 0.0000],
                [0.0000, 0.0000, 0.0000, 1.0000]])
    """

    ids: Integer[Tensor, "*batch keys"]
    query_ids: Integer[Tensor, "*batch queries"] | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "query_ids"):
            given = getattr(self, name)
            if given is None and name == "query_ids":
                continue
            if not isinstance(given, Tensor) or given.dtype == torch.bool or given.is_floating_point():
                came = given.dtype if isinstance(given, Tensor) else type(given).__name__
                raise InvalidType(
                    f"Documents: {name} holds the number of each token's document as integers, not {came}"
                )
            if given.ndim not in (1, 2):
                raise InvalidType(f"Documents: {name} is (tokens,) or (batch, tokens), not {tuple(given.shape)}")

    def __repr__(self) -> str:
        return f"Documents(ids {tuple(self.ids.shape)})"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        of_key = _look_up(self.ids, cells, cells.key)
        if self.query_ids is not None:
            of_query = _look_up(self.query_ids, cells, cells.query)
        else:
            last = self.ids.shape[-1] - 1
            inside = (cells.position >= 0) & (cells.position <= last)
            of_query = _look_up(self.ids, cells, cells.position.clamp(0, last))
            return (of_query == of_key) & (of_key >= 0) & inside
        return (of_query == of_key) & (of_key >= 0)

    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where the document of each query lies (of each key, where queries go by position), (batch or 1, tokens).

        On the CPU: its first key, one past its last, and whether all keys between them are of it too.
        """
        queries = self.ids if self.query_ids is None else self.query_ids
        ids, asked = (each.cpu().to(torch.int64).view(-1, each.shape[-1]) for each in (self.ids, queries))
        sequences = max(len(ids), len(asked))
        ids, asked = ids.expand(sequences, -1), asked.expand(sequences, -1)
        sequence, keys = torch.arange(sequences)[:, None], ids.shape[1]
        names, document = torch.stack((sequence.expand_as(ids), ids)).flatten(1).unique(dim=1, return_inverse=True)
        key = torch.arange(keys).repeat(sequences)
        first = torch.full((names.shape[1],), keys).scatter_reduce(0, document, key, "amin")
        stop = torch.zeros(names.shape[1], dtype=torch.int64).scatter_reduce(0, document, key + 1, "amax")
        solid = stop - first == document.bincount(minlength=names.shape[1])
        width = int(max(ids.max(), asked.max())) + 1  # one number for a sequence and a document of it
        codes, wanted = names[0] * width + names[1], sequence * width + asked
        codes, order = codes.where(names[1] >= 0, -1).sort()
        at = torch.searchsorted(codes, wanted).clamp(max=len(codes) - 1)
        found = (codes[at] == wanted) & (asked >= 0)
        at = order[at]
        return first[at].where(found, keys), stop[at].where(found, 0), solid[at] & found

    def extent(self, cells: Tile) -> Span:
        first, stop, _ = self._spans(cells)
        return _within(cells, int(first.min()), int(stop.max()))

    def certain(self, cells: Tile) -> Span:
        first, stop, solid = self._spans(cells)
        return _within(cells, int(first.max()), int(stop.min())) if solid.all() else no_keys(cells)

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        batch, _, queries, keys = shape
        found = []
        for name, ids, tokens in (("ids", self.ids, keys), ("query_ids", self.query_ids, queries)):
            if ids is None:
                continue
            if tuple(ids.shape) not in ((tokens,), (1, tokens), (batch, tokens)):
                axis = "keys" if name == "ids" else "queries"
                found.append(
                    f"mask: Documents holds {name} {tuple(ids.shape)}, expected ({axis},) = ({tokens},) or "
                    f"(batch, {axis}) = ({batch}, {tokens})"
                )
            found += other_device(ids, device)
        return found

    def _spans(self, cells: Tile) -> tuple[Tensor, Tensor, Tensor]:
        """What is known of the sequences and rows of some cells."""
        sequences, tokens = self.known[0].shape
        rows = torch.arange(cells.rows.start, cells.rows.stop) if isinstance(cells.rows, slice) else cells.rows.cpu()
        at = rows if self.query_ids is not None else rows + cells.offset
        inside = (at >= 0) & (at < tokens)
        index = torch.tensor(cells.sequences)[:, None] if sequences > 1 else 0, at.clamp(0, tokens - 1)
        first, stop, solid = (part[index] for part in self.known)
        return first.where(inside, self.ids.shape[-1]), stop.where(inside, 0), solid & inside


def _look_up(ids: Tensor, cells: Tile, index: Tensor) -> Tensor:
    return ids[index] if ids.ndim == 1 else ids[cells.sequence if len(ids) > 1 else 0, index]


def _within(cells: Tile, first: int, stop: int) -> Span:
    start = min(max(first, cells.keys[0]), cells.keys[1])
    return start, max(start, min(stop, cells.keys[1]))
