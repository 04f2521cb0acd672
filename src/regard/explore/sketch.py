"""What a page stores of a layer: all weights if there are few, else a map and what gives its rows and columns.

If queries and keys are in the page, it computes each weight from these and the log-sum-exp of its row. Else a sketch
holds finer maps, the strongest keys of each row with the mass of the others, and what each key receives. Both hold the
mask as runs. Their size is linear in the number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.explore.page_format import MASKED_CODE, byte_planes, float_array, quantize
from regard.ops.masks import Padding
from regard.ops.measures import BlockMean, LogSumExp, Mass, Measure, Received, TopK
from regard.ops.scores import ScaledDotProduct

if TYPE_CHECKING:
    from regard.ops.request import AttentionRequest
    from regard.recordings.layer import Layer

MAX_MAP_SIZE = 256
"""The largest number of rows and columns of a map."""
MAX_LEVEL_SIZE = 1024
"""The same for the finer maps, which are stored if few heads leave room for them."""
MAX_TOP_K = 16
"""The largest number of keys that are stored for each row."""
MAX_VALUES = 10_000_000
"""The largest number of map cells, and of top keys, on a page; with more heads or tokens each head has fewer."""
THUMBNAIL = 32
"""The largest number of rows and columns of a thumbnail."""
MAX_RUNS_PER_ROW = 16
"""A mask with more runs of allowed keys than this, averaged over its rows, is not stored."""
MASK_CHUNK_ROWS = 512
"""The number of mask rows in memory at a time."""
NUM_RANKED = 8
"""The number of keys of each row, and of queries of each column, of which a dense layer holds the exact order."""


@dataclass(frozen=True)
class SketchPlan:
    """How coarse the sketch of a layer is.

    Args:
        block_size: The number of queries and keys that a cell of the map covers.
        top_k: The number of keys that are stored for each row; 0 if the page computes rows from queries and keys.
        finer_sizes: The block sizes of the finer maps, each half of the one before.
    """

    block_size: int
    top_k: int
    finer_sizes: tuple[int, ...] = ()

    @property
    def levels(self) -> tuple[int, ...]:
        """All block sizes, the coarsest first."""
        return (self.block_size, *self.finer_sizes)


def plan_sketches(shapes: Sequence[Sequence[int]]) -> list[SketchPlan | None]:
    """How to store each layer, (1, heads, queries, keys); None to store all weights."""
    map_size, top_k = MAX_MAP_SIZE, MAX_TOP_K
    while True:
        plans = [_plan_sketch(shape, map_size, top_k) for shape in shapes]
        if count_cells(plans, shapes) > MAX_VALUES and map_size > THUMBNAIL:
            map_size //= 2
        elif count_top_keys(plans, shapes) > MAX_VALUES and top_k > 1:
            top_k -= 1
        else:
            break
    while True:
        deeper = [plan and _add_level(plan, shape) for plan, shape in zip(plans, shapes, strict=True)]
        if deeper == plans or count_cells(deeper, shapes) > MAX_VALUES:
            return plans
        plans = deeper


def _add_level(plan: SketchPlan, shape: Sequence[int]) -> SketchPlan:
    """The plan with one finer map, unless that map would be too large or hold single cells."""
    half = -(-plan.levels[-1] // 2)
    fits = half > 1 and max(shape[2:]) <= MAX_LEVEL_SIZE * half
    return replace(plan, finer_sizes=(*plan.finer_sizes, half)) if fits else plan


def count_top_keys(plans: Sequence[SketchPlan | None], shapes: Sequence[Sequence[int]]) -> int:
    """The number of top keys of all layers."""
    return sum(plan.top_k * heads * rows for plan, (_, heads, rows, _) in zip(plans, shapes, strict=True) if plan)


def count_cells(plans: Sequence[SketchPlan | None], shapes: Sequence[Sequence[int]]) -> int:
    """The number of map cells of all layers."""
    return sum(
        heads * _num_cells(size, *shape)
        for plan, (_, heads, *shape) in zip(plans, shapes, strict=True)
        for size in (plan.levels if plan else (1,))
    )


def _plan_sketch(shape: Sequence[int], map_size: int, top_k: int) -> SketchPlan | None:
    """A sketch, unless all weights together take no more."""
    _, _, queries, keys = shape
    plan = SketchPlan(-(-max(queries, keys) // map_size), min(top_k, keys))
    return None if queries * keys <= _num_cells(plan.block_size, queries, keys) + 2 * plan.top_k * queries else plan


def _num_cells(size: int, queries: int, keys: int) -> int:
    return -(-queries // size) * -(-keys // size)


@dataclass(frozen=True)
class LayerData:
    """What a page stores of a layer.

    Args:
        blocks: (heads, rows, columns) The attention of a query to a block of keys, averaged over a block of queries.
        allowed: (1 or heads, rows, columns) False where the mask excludes a whole block.
        row_counts: (rows,) The number of queries that each row of blocks covers.
        header: The fields of the layer's header.
        tensors: The tensors of the layer's block.
    """

    blocks: Tensor
    allowed: Tensor
    row_counts: Tensor
    header: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def pooled(self, max_size: int) -> LayerData:
        """The blocks pooled to at most `max_size` rows and columns."""
        size = -(-max(self.blocks.shape[1:]) // max_size)
        rows = _pool(self.row_counts[None, :, None], size, 1)
        blocks = _pool(_pool(self.blocks * self.row_counts[:, None], size, 1), size, 2) / rows
        allowed = _pool(_pool(self.allowed.float(), size, 1), size, 2) > 0
        return LayerData(blocks, allowed, rows.flatten(), {}, {})


def _pool(x: Tensor, size: int, axis: int) -> Tensor:
    """Sums over groups of `size` entries of an axis."""
    count = -(-x.shape[axis] // size)
    group = torch.arange(x.shape[axis], device="cpu") // size
    return x.new_zeros(*x.shape[:axis], count, *x.shape[axis + 1 :]).index_add_(axis, group, x)


def build_dense(layer: Layer) -> LayerData:
    """All weights of a layer, with the exact order of the strongest of each row and column."""
    weights = layer.weights.dense()[0].detach().to("cpu", torch.float32)  # (heads, queries, keys)
    allowed = layer.weights.scores.dense()[0].detach().to("cpu") > -torch.inf
    codes = quantize(weights, allowed)
    tensors = {
        "weights": byte_planes(codes, 2),
        "key_order": _tie_order(weights, codes),
        "query_order": _tie_order(weights.mT.contiguous(), codes.mT.contiguous()),
    }
    header = {"storage": "dense", "levels": [1]}
    return LayerData(weights, allowed, torch.ones(weights.shape[1], device="cpu"), header, tensors)


def _tie_order(weights: Tensor, codes: Tensor) -> np.ndarray:
    """What the codes of a row do not say of the exact order of its strongest weights, (heads, rows, 8) as byte planes.

    Sort the row by code, equal codes in the order of the text. For r = 0, 1, ...: entry r is how many places behind
    place r the key of rank r stands; it is then moved to place r. Most entries are 0, so they compress to a tenth or a
    third of what the indices of the keys take.
    """
    is_masked = codes == MASKED_CODE
    exact = _sort_keys(weights.masked_fill(is_masked, -1).view(torch.int32))  # ordered as the floats are, from 0 on
    by_code = _sort_keys(codes.masked_fill(is_masked, -1))
    strongest = exact.topk(min(NUM_RANKED, weights.shape[-1])).indices
    place = torch.stack([(by_code > key).sum(-1) for key in by_code.gather(-1, strongest).split(1, -1)], -1)
    num_moved = (place[..., None, :] < place[..., None]).tril(-1).sum(-1)
    return byte_planes(place - num_moved, _index_bytes(weights.shape[-1]))


def _sort_keys(values: Tensor) -> Tensor:
    """Distinct numbers in the order of the values and, where these are equal, in that of the text."""
    return (values.long() << 32) - torch.arange(values.shape[-1], device="cpu")


def _index_bytes(count: int) -> int:
    """How many bytes an index below `count` takes."""
    return 1 if count <= 2**8 else 2 if count <= 2**16 else 4


def is_computable(layer: Layer) -> bool:
    """Whether a page with a layer's queries and keys can compute its weights: scaled products, and a mask of runs."""
    if layer.is_dense or not isinstance(layer.weights.request.score, ScaledDotProduct):
        return False
    runs = MaskRuns()
    allowed_blocks(layer.weights.request, MASK_CHUNK_ROWS, runs)
    return runs.kind != "unknown"


def measures_for(layer: Layer, plan: SketchPlan | None) -> dict[str, Measure]:
    """What to measure of a layer for its maps, and for its rows and columns."""
    if plan is None:
        return {}
    measures: dict[str, Measure] = {f"blocks_{size}": BlockMean(size) for size in plan.levels}
    if plan.top_k == 0:
        return measures | {"lse": LogSumExp()}
    measures |= {"top": TopK(plan.top_k), "received": Received()}
    if layer.weights.request.score.sinks is not None:  # else a row adds up to 1, or to 0 where all is masked
        every = torch.ones(1, layer.weights.shape[3], dtype=torch.bool, device=layer.weights.device)
        measures["total"] = Mass(Padding(every))
    return measures


def build_long(layer: Layer, plan: SketchPlan, measured: Mapping[str, Any]) -> LayerData:
    """What a page stores of a layer with many tokens, from what `measures_for` measured."""
    queries, keys = layer.weights.shape[2:]
    runs = MaskRuns()
    tensors: dict[str, np.ndarray] = {}
    maps: list[tuple[Tensor, Tensor]] = []
    for size in plan.levels:
        blocks = measured[f"blocks_{size}"][0].to("cpu", torch.float32) * block_lengths(keys, size)
        allowed = allowed_blocks(layer.weights.request, size, None if maps else runs)
        tensors[f"blocks_{size}"] = byte_planes(quantize(blocks, allowed), 2)
        maps.append((blocks, allowed))
    tensors |= _sketch_tensors(measured, keys) if plan.top_k else {"lse": float_array(measured["lse"][0])}
    tensors |= runs.tensors()
    header = {"storage": "sketch" if plan.top_k else "computed", "levels": list(plan.levels), "mask": runs.kind}
    blocks, allowed = maps[0]
    return LayerData(blocks, allowed, block_lengths(queries, plan.block_size), header, tensors)


def _sketch_tensors(measured: Mapping[str, Any], keys: int) -> dict[str, np.ndarray]:
    weights, indices = (part[0].to("cpu") for part in measured["top"])
    total = measured["total"][0].to("cpu") if "total" in measured else (weights[..., 0] > 0).float()
    return {
        "top_keys": byte_planes(indices, _index_bytes(keys)),
        "top_weights": byte_planes(quantize(weights), 2),
        "rest": byte_planes(quantize(total - weights.sum(-1)), 2),
        "received": float_array(measured["received"][0]),
    }


def block_lengths(count: int, size: int) -> Tensor:
    """The number of cells of each block along an axis."""
    return torch.tensor(
        [min(size, count - start) for start in range(0, count, size)], dtype=torch.float32, device="cpu"
    )


def allowed_blocks(request: AttentionRequest, size: int, runs: MaskRuns | None = None) -> Tensor:
    """Which blocks the mask does not exclude as a whole, (1 or heads, rows, columns).

    Args:
        request: The attention matrix.
        size: The number of queries and keys of a block.
        runs: Collects the mask's runs, if there is one.
    """
    _, heads, queries, keys = request.shape
    if request.mask is None:
        return torch.ones(
            1, len(block_lengths(queries, size)), len(block_lengths(keys, size)), dtype=torch.bool, device="cpu"
        )
    step = max(size, MASK_CHUNK_ROWS // size * size)
    blocks = []
    for start in range(0, queries, step):
        tile = request.tile(slice(0, 1), slice(0, heads), slice(start, min(start + step, queries)))
        allowed = request.allowed(tile).to("cpu")
        has_heads = allowed.ndim == 4 and allowed.shape[1] > 1
        allowed = allowed.expand(1, heads if has_heads else 1, *tile.shape[2:])[0]
        blocks.append(_pool(_pool(allowed.float(), size, 1), size, 2) > 0)
        if runs is not None:
            runs.add(allowed)
    return torch.cat(blocks, 1)


class MaskRuns:
    """The runs of allowed keys in each row of a mask that all heads share."""

    def __init__(self) -> None:
        self._is_stored = True
        self._num_rows = 0
        self._num_edges = 0
        self._counts: list[np.ndarray] = []
        self._edges: list[np.ndarray] = []

    def add(self, allowed: Tensor) -> None:
        """Add rows, (1 or heads, rows, keys). A mask that differs between heads, or has many runs, is not stored."""
        if not self._is_stored:
            return
        edges = np.diff(np.pad(allowed[0].numpy().astype(np.int8), ((0, 0), (1, 1))), axis=1) != 0
        self._counts.append(edges.sum(1))
        self._edges.append(np.nonzero(edges)[1])
        self._num_edges += len(self._edges[-1])
        self._num_rows += len(edges)
        self._is_stored = len(allowed) == 1 and self._num_edges <= 2 * MAX_RUNS_PER_ROW * self._num_rows

    @property
    def kind(self) -> Literal["none", "runs", "unknown"]:
        """The ``mask`` field of the layer's header."""
        if not self._is_stored:
            return "unknown"
        return "runs" if self._counts else "none"

    def tensors(self) -> dict[str, np.ndarray]:
        """The number of edges in each row; and the edges, each as the difference from the one before, modulo 2³²."""
        if self.kind != "runs":
            return {}
        edges = np.concatenate(self._edges)
        differences = (np.diff(edges, prepend=0) % 2**32).astype(np.uint32)
        return {"mask_counts": np.concatenate(self._counts).astype(np.uint32), "mask_edges": differences}
