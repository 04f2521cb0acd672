"""Graph mask: each query attends to its neighbors in a graph."""

from __future__ import annotations

from dataclasses import field

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from regard.checks import Checks
from regard.ops.masks.base import Mask
from regard.ops.tile import KeyRange, Shape, Tile

MAX_NODES = 2**31
"""Node numbers stay below this, so that an edge fits into one int64."""


class Neighbors(Mask):
    """Graph mask: query ``query_idx[e]`` attends to key ``key_idx[e]`` for each edge e; the same in all heads.

    Args:
        query_idx: (edges,) integers.
        key_idx: (edges,) integers. Both are copied and sorted. An edge that occurs twice counts once. A query without
            an edge attends to nothing: add self-loops where a node should attend to itself.

    Raises:
        InvalidType: If they are not integers.
        InvalidArgument: If they differ in length, or an index is negative or 2**31 or more.

    Memory:
        O(edges), as is the time, where at most 1 in 8 cells are edges: alone or combined with other masks by ``&``,
        with built-in scores and measures except `BlockMean` and `KLDivergence`. Else as for any mask.

    Reference:
        Veličković et al. 2018, "Graph Attention Networks", section 2.1.

    Examples:
        >>> import regard, torch
        >>> x = torch.ones(1, 1, 3, 4)
        >>> graph = regard.Neighbors(torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 0]))
        >>> regard.weights(x, x, mask=graph)[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [1.0000, 0.0000, 0.0000]])
    """

    query_idx: Integer[Tensor, " edges"]
    key_idx: Integer[Tensor, " edges"]
    num_queries: int = field(init=False)
    num_keys: int = field(init=False)
    edge_codes: Int[Tensor, " edges"] = field(init=False)
    """Each edge as one number, query * num_keys + key, ascending."""

    def __post_init__(self) -> None:
        checks = Checks()
        for name, index in (("Neighbors.query_idx", self.query_idx), ("Neighbors.key_idx", self.key_idx)):
            if not checks.tensor(name, index, "integer"):
                continue
            if index.ndim != 1:
                checks.fail(f"{name}: expected shape (edges,), got {tuple(index.shape)}")
            elif len(index) and not (int(index.min()) >= 0 and int(index.max()) < MAX_NODES):
                low, high = int(index.min()), int(index.max())
                checks.fail(f"{name}: expected indices from 0 to 2**31 - 1, got {low if low < 0 else high}")
        if not checks.problems and len(self.query_idx) != len(self.key_idx):
            checks.fail(
                f"Neighbors: expected as many queries as keys, got {len(self.query_idx)} and {len(self.key_idx)}"
            )
        checks.raise_problems()
        edges = torch.stack((self.query_idx.to(torch.int64), self.key_idx.to(torch.int64))).unique(dim=1)
        self.query_idx, self.key_idx = edges[0].contiguous(), edges[1].contiguous()
        self.num_queries, self.num_keys = (edges.amax(1) + 1).tolist() if edges.shape[1] else (1, 1)
        self.edge_codes = edges[0] * self.num_keys + edges[1]

    @classmethod
    def from_edge_index(cls, edge_index: Integer[Tensor, "2 edges"]) -> Neighbors:
        """The mask of a graph in PyTorch Geometric's form, in which messages flow from source to target.

        Args:
            edge_index: (2, edges) integers, the sources and the targets: ``edge_index[1]`` attends to
                ``edge_index[0]``.

        Raises:
            InvalidType: If it is not an integer tensor.
            InvalidArgument: If its shape is not (2, edges).

        Examples:
            >>> import regard, torch
            >>> edge_index = torch.tensor([[0, 1], [2, 2]])  # 0 → 2, 1 → 2
            >>> graph = regard.Neighbors.from_edge_index(edge_index)
            >>> x = torch.ones(1, 1, 3, 4)
            >>> regard.weights(x, x, mask=graph)[0, 0, 2]
            tensor([0.5000, 0.5000, 0.0000])
        """
        checks = Checks()
        if checks.tensor("edge_index", edge_index, "integer") and (edge_index.ndim != 2 or len(edge_index) != 2):
            checks.fail(f"edge_index: expected shape (2, edges), got {tuple(edge_index.shape)}")
        checks.raise_problems()
        source, target = edge_index
        return cls(query_idx=target, key_idx=source)

    @property
    def num_edges(self) -> int:
        """Number of different edges."""
        return len(self.edge_codes)

    def __repr__(self) -> str:
        return f"Neighbors({self.num_edges} edges)"

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        if isinstance(tile.rows, slice) and tile.row_keys is None:
            edges = self._edges_of(tile.rows)
            query, key = self.query_idx[edges], self.key_idx[edges]
            inside = (key >= tile.keys.start) & (key < tile.keys.stop)
            allowed = torch.zeros(*tile.shape[2:], dtype=torch.bool, device=tile.device)
            index = query[inside] - tile.rows.start, key[inside] - tile.keys.start
            return allowed.index_put_(index, allowed.new_ones(()))
        if not self.num_edges:
            return (tile.kv_idx < 0) & (tile.q_idx < 0)
        code = tile.q_idx * self.num_keys + tile.kv_idx
        nearest = self.edge_codes[torch.searchsorted(self.edge_codes, code).clamp(max=self.num_edges - 1)]
        return (nearest == code) & (tile.kv_idx < self.num_keys)

    def key_range(self, tile: Tile) -> KeyRange:
        if not isinstance(tile.rows, slice):
            return tile.keys
        keys = self.key_idx[self._edges_of(tile.rows)]
        return tile.clip(int(keys.min()), int(keys.max()) + 1) if len(keys) else tile.no_keys

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        checks.device("Neighbors", self.edge_codes, device)
        for axis, size, needed in zip(("queries", "keys"), shape[2:], (self.num_queries, self.num_keys), strict=True):
            if needed > size:
                checks.fail(f"Neighbors: expected indices below the number of {axis}, {size}, got {needed - 1}")

    def edge_ranges(self, rows: Int[Tensor, " rows"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
        """The first edge of each of these queries, and how many edges each has, (rows,)."""
        start = torch.searchsorted(self.query_idx, rows)
        return start, torch.searchsorted(self.query_idx, rows, right=True) - start

    def _edges_of(self, rows: slice) -> slice:
        """The range of the sorted edges that belongs to consecutive queries."""
        bounds = torch.tensor([rows.start, rows.stop], device=self.query_idx.device)
        return slice(*torch.searchsorted(self.query_idx, bounds).tolist())
