"""The neighbourhood mask: a query sees the nodes to which an edge of a graph leads."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType
from regard.ops.masks.base import Mask, no_keys, other_device
from regard.ops.tile import Span, Tile


@dataclass(frozen=True, eq=False)
class Neighbours(Mask):
    """A query sees the keys to which an edge leads: attention on a sparse graph.

    Args:
        edges: (2, edges) integers: query, key. They are copied, and sorted by query. An edge given twice counts once; a
            query without an edge sees nothing, so give each node an edge to itself where it should see itself. The
            graph is the same for each sequence and head.

    Raises:
        InvalidType: If they are no integers (2, edges).
        InvalidArgument: If a number is below 0.

    Memory: O(edges), and so is the time, where this is the mask or one of those combined with ``&``.

    Reference: Veličković et al. 2018, "Graph Attention Networks", section 2.1.

    Example:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> ring = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]])
        >>> regard.weights(x, x, mask=regard.Neighbours(ring))[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [1.0000, 0.0000, 0.0000]])
    """

    edges: Integer[Tensor, "2 edges"]
    starts: Int[Tensor, " nodes"] = field(init=False)
    """Where the edges of each query begin; the last entry is where those of the last query with an edge end."""
    width: int = field(init=False)
    codes: Int[Tensor, " edges"] = field(init=False)
    """Each edge as one number, query · width + key, rising."""

    def __post_init__(self) -> None:
        given = self.edges
        tensor = isinstance(given, Tensor)
        if not tensor or given.dtype == torch.bool or given.is_floating_point() or given.ndim != 2 or len(given) != 2:
            came = f"{given.dtype} {tuple(given.shape)}" if tensor else type(given).__name__
            raise InvalidType(f"Neighbours: edges is (2, edges) integers, the queries and the keys; got {came}")

        if given.shape[1] and int(given.min()) < 0:
            raise InvalidArgument(f"Neighbours: nodes are numbered from 0 on, but an edge has {int(given.min())}")
        edges = given.to(torch.int64).unique(dim=1)
        starts = torch.nn.functional.pad(edges[0].bincount().cumsum(0), (1, 0))
        width = int(edges[1].max()) + 1 if edges.shape[1] else 1
        for name, value in (
            ("sparse", edges),
            ("starts", starts),
            ("width", width),
            ("codes", edges[0] * width + edges[1]),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Neighbours({self.edges.shape[1]} edges)"

    def allowed(self, cells: Tile) -> Bool[Tensor, "..."]:
        if isinstance(cells.rows, slice) and cells.columns is None:
            (start, stop), (query, key) = cells.keys, self.edges[:, self._edges(cells.rows)]
            here = (key >= start) & (key < stop)
            seen = torch.zeros(cells.rows.stop - cells.rows.start, stop - start, dtype=torch.bool, device=cells.device)
            return seen.index_put_((query[here] - cells.rows.start, key[here] - start), seen.new_ones(()))
        if not len(self.codes):
            return (cells.key < 0) & (cells.query < 0)
        wanted = cells.query * self.width + cells.key
        found = self.codes[torch.searchsorted(self.codes, wanted).clamp(max=len(self.codes) - 1)]
        return (found == wanted) & (cells.key < self.width)

    def extent(self, cells: Tile) -> Span:
        if not isinstance(cells.rows, slice):
            return cells.keys
        keys = self.edges[1, self._edges(cells.rows)]
        if not len(keys):
            return no_keys(cells)
        start = min(max(cells.keys[0], int(keys.min())), cells.keys[1])
        return start, max(start, min(cells.keys[1], int(keys.max()) + 1))

    def objections(self, shape: tuple[int, int, int, int], device: torch.device) -> list[str]:
        found = other_device(self.edges, device)
        largest = len(self.starts) - 2, self.width - 1
        for axis, size, most in zip(("queries", "keys"), shape[2:], largest, strict=True):
            if most >= size:
                found.append(
                    f"mask: Neighbours has an edge with number {most} of the {axis}; there are {size}, numbered 0 to "
                    f"{size - 1}"
                )
        return found

    def lists(self, rows: Int[Tensor, " rows"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
        """Where the edges of some queries begin, and how many each has, (rows,)."""
        last = len(self.starts) - 1
        begin, end = self.starts[rows.clamp(max=last)], self.starts[(rows + 1).clamp(max=last)]
        return begin, end - begin

    def _edges(self, rows: slice) -> slice:
        """Which of the sorted edges are those of some rows."""
        last = len(self.starts) - 1
        return slice(*(int(self.starts[min(at, last)]) for at in (rows.start, rows.stop)))
