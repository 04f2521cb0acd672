"""Any part of a recording on demand: the rows, columns, tiles and sums that a page from `regard serve` requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from regard.analysis.head_scores import HEAD_SCORES, head_scores
from regard.errors import raise_problems, short_repr
from regard.explore.gradients import Shown, gradient_of
from regard.explore.pack import add_relevance, check, make_header, qkv, qkv_arrays, qkv_shapes, scores_of
from regard.explore.page_format import PageHeader, SegmentHeader, float_array, write_block
from regard.explore.segment_shares import layer_segments, segment_headers
from regard.explore.sketch import MAX_MAP_SIZE, THUMBNAIL, LayerData, allowed_blocks, block_lengths, plan_sketches
from regard.ops import WeightMatrix
from regard.ops.measures import BlockMean, Max, MaxResult
from regard.ops.tile import KeyRange
from regard.recordings.layer import LayerList
from regard.recordings.recording import Recording

LEVEL_FACTOR = 4
"""The blocks of a level have this many times as many cells per side as those of the next finer level."""
CACHED_HEADS = 4
"""Number of heads whose queries and keys are kept as contiguous copies."""
CELLS_PER_STEP = 2**18
"""Weights of a tile that are computed at once: 1 MiB in float32, which fits into the cache of a core."""


@dataclass(frozen=True)
class HeadOverview:
    """Results of one pass over all weights of a head, on which its tiles and columns build.

    Args:
        map: The tile of the coarsest level, as `RecordingService.tile` returns it.
        thumbnail: As `RecordingService.thumbnail` returns it.
        strongest: The largest weight and score of each query, (1, 1, queries).
    """

    map: bytes
    thumbnail: bytes
    strongest: MaxResult


class RecordingService:
    """Serve any part of a recording, of any length, as the bytes that the page reads.

    A pass over all weights of a head gives its map and the largest weight of each query. From the latter any column or
    tile follows without the weights around it: P_ij = exp(s_ij − s_im) P_im, where m is the strongest key of query i.

    Args:
        recording: As for `pack`.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If the recording cannot be shown, with every reason.

    Memory: O(queries + keys) per head.
    """

    def __init__(self, recording: Recording) -> None:
        check(recording)
        raise_problems(_not_finite(recording))
        self.recording = recording
        self.header: PageHeader = {
            **make_header(recording),
            "is_served": True,
            "precision": 0.0,
            "max_map_size": MAX_MAP_SIZE,
            "level_factor": LEVEL_FACTOR,
        }
        plans = plan_sketches([layer.weights.shape for layer in recording.layers])
        self._relevances = add_relevance(self.header["layers"], recording, [plan is None for plan in plans])
        for layer, header, plan in zip(recording.layers, self.header["layers"], plans, strict=True):
            queries, keys = layer.weights.shape[2:]
            header["has_gradient"] = gradient_of(layer) is not None
            header["qkv"] = qkv_shapes(qkv(layer))
            header["scores"] = {name: [] for name in HEAD_SCORES}  # loaded head by head
            header["segments"] = []  # loaded layer by layer
            size = 1
            while plan is not None and max(queries, keys) > MAX_MAP_SIZE * size:
                size *= LEVEL_FACTOR
            rows, columns = -(-queries // size), -(-keys // size)
            shrink = -(-max(rows, columns) // THUMBNAIL)
            header["thumbnail"] = [-(-rows // shrink), -(-columns // shrink)]
            header["storage"] = "dense" if plan is None else "remote"
            header["levels"] = [size]
        self._threads = torch.get_num_threads()
        self._overviews: dict[tuple[int, int], HeadOverview] = {}
        self._scores: dict[tuple[int, int], dict[str, float | None]] = {}
        self._resolved_segments = layer_segments(recording)
        self._segments: dict[int, list[SegmentHeader]] = {}
        # A newly selected head needs its overview at once, and scores are loaded in the background: it does not wait.
        self._overview_lock, self._scores_lock, self._segments_lock = (threading.Lock() for _ in range(3))
        self._head = lru_cache(CACHED_HEADS)(self._select_head)
        self._allowed_blocks = lru_cache(None)(self._pool_mask)

    def levels(self, layer: int) -> list[int]:
        """The levels of a layer's tiles, finest first, as cells per side of a block; none if it is sent whole."""
        levels = [1]
        while levels[-1] < self._map_level(layer):
            levels.append(levels[-1] * LEVEL_FACTOR)
        return levels if self.header["layers"][layer].get("storage") == "remote" else []

    def tile_count(self, layer: int, size: int) -> tuple[int, int]:
        """Rows and columns of tiles of a level."""
        queries, keys = self.recording.layers[layer].weights.shape[2:]
        return -(-queries // (MAX_MAP_SIZE * size)), -(-keys // (MAX_MAP_SIZE * size))

    def layer(self, layer: int) -> bytes:
        """The block of a layer that is sent whole, as float32.

        Its weights, NaN where masked; their gradient and the relevance where there are some; query, key and value.
        """
        recorded = self.recording.layers[layer]
        weights = recorded.weights.detach().dense()[0]
        masked = recorded.weights.detach().scores.dense()[0] == -torch.inf
        gradient = gradient_of(recorded)
        return write_block(
            {
                "weights": float_array(weights.masked_fill(masked, torch.nan)),
                **({} if gradient is None else {"gradient": float_array(gradient.dense()[0])}),
                **self._relevances.get(layer, {}),
                **qkv_arrays(qkv(recorded)),
            }
        )

    def thumbnail(self, layer: int, head: int) -> bytes:
        """The thumbnail of a head, (rows, columns) as float32, NaN where everything is masked."""
        return self._overview(layer, head).thumbnail

    def tile(self, layer: int, head: int, size: int, row: int, column: int, show: Shown = "weights") -> bytes:
        """A tile of the map of a level, (up to 256, up to 256) as float32, NaN where everything is masked.

        An entry is the weight that a query of the block's rows gives to all of its keys, averaged over the rows; of
        gradients likewise the sum over its keys.

        Args:
            layer: Index of the layer.
            head: Index of the head in the layer.
            size: The level: cells per side of a block.
            row: Index of the tile, from the top.
            column: Index of the tile, from the left.
            show: What is summed.
        """
        overview = self._overview(layer, head)
        if size == self._map_level(layer) and show == "weights":
            return overview.map
        shape = self.recording.layers[layer].weights.shape[2:]
        rows, keys = (
            KeyRange(index * MAX_MAP_SIZE * size, min((index + 1) * MAX_MAP_SIZE * size, count))
            for index, count in zip((row, column), shape, strict=True)
        )
        with single_threaded(self._threads):
            sums, allowed = [], []
            for values, scores in self._steps(layer, head, rows, keys, show, multiple=size):
                sums.append(_block_sums(values, size))
                has_weight = sums[-1] > 0
                if not has_weight.all():  # masked, negative, or too small for the dtype
                    has_weight = _block_sums((scores > -torch.inf).to(values.dtype), size) > 0
                allowed.append(has_weight)
            blocks = torch.cat(sums).to("cpu", torch.float32) / block_lengths(rows.width, size)[:, None]
            return _floats(blocks.masked_fill_(~torch.cat(allowed).to("cpu"), torch.nan))

    def row(self, layer: int, head: int, query: int, show: Shown = "weights") -> bytes:
        """The weights of a query, or their gradients, (keys,) as float32, NaN where masked."""
        with single_threaded(self._threads):
            row = self._head(layer, head).at(queries=query)
            keys = KeyRange(0, row.shape[3])
            scores = row.request.scores_of_keys(keys)
            return _masked_floats(_shown(row, row.measure("max")["max"].weights_of(scores), keys, show), scores)

    def column(self, layer: int, head: int, key: int, show: Shown = "weights") -> bytes:
        """The weights that all queries give to a key, or their gradients, (queries,) as float32, NaN where masked."""
        strongest = self._overview(layer, head).strongest
        with single_threaded(self._threads):
            matrix, keys = self._head(layer, head), KeyRange(key, key + 1)
            scores = matrix.request.scores_of_keys(keys)
            return _masked_floats(_shown(matrix, strongest.weights_of(scores), keys, show), scores)

    def largest(self, layer: int, head: int, show: Shown) -> float:
        """The largest size of a gradient, or of gradient × weight, where nothing is masked."""
        self._overview(layer, head)
        queries, keys = self.recording.layers[layer].weights.shape[2:]
        steps = self._steps(layer, head, KeyRange(0, queries), KeyRange(0, keys), show)
        return max(values.abs().masked_fill(scores == -torch.inf, 0).max().item() for values, scores in steps)

    def region(
        self,
        layer: int,
        head: int,
        top: int,
        bottom: int,
        left: int,
        right: int,
        hidden: Sequence[int] = (),
        show: Shown = "weights",
    ) -> bytes:
        """What each query of a region gives to its keys, (queries of the region,) as float32; masked cells count 0.

        Args:
            layer: Index of the layer.
            head: Index of the head in the layer.
            top: First query.
            bottom: Last query.
            left: First key.
            right: Last key.
            hidden: Keys that do not count.
            show: What is summed.
        """
        self._overview(layer, head)
        counts = torch.ones(right + 1 - left, dtype=torch.float64, device="cpu")
        counts[[key - left for key in hidden if left <= key <= right]] = 0
        with single_threaded(self._threads):
            steps = self._steps(layer, head, KeyRange(top, bottom + 1), KeyRange(left, right + 1), show)
            return _floats(torch.cat([values.to("cpu", torch.float64) @ counts for values, _ in steps]))

    def qkv(self, layer: int, head: int) -> bytes:
        """Query, key and, where it was recorded, value of a head, each (tokens, features) as float32."""
        recorded = self.recording.layers[layer]
        heads = recorded.weights.shape[1]
        return b"".join(_floats(part[head * len(part) // heads]) for part in qkv(recorded).values())

    def head_scores(self, layer: int, head: int) -> dict[str, float | None]:
        """The scores of a head by name, as `regard.analysis.head_scores` computes them; None for NaN."""
        with self._scores_lock:
            if (layer, head) not in self._scores:
                torch.set_num_threads(self._threads)
                alone = self.recording.layers[layer]
                alone = alone.replace(weights=self._head(layer, head), head_indices=None, value=None, measured={})
                scores = scores_of(head_scores(Recording("", "", LayerList([alone]))))[alone.name]
                self._scores[layer, head] = {name: values[0] for name, values in scores.items()}
        return self._scores[layer, head]

    def segments(self, layer: int) -> list[SegmentHeader]:
        """The segments of a layer, with the share of attention that each head gives to them."""
        with self._segments_lock:
            if layer not in self._segments:
                torch.set_num_threads(self._threads)
                name = self.recording.layers[layer].name
                self._segments[layer] = segment_headers(self._resolved_segments.get(name))
        return self._segments[layer]

    def _overview(self, layer: int, head: int) -> HeadOverview:
        if (layer, head) not in self._overviews:
            with self._overview_lock:
                if (layer, head) not in self._overviews:
                    self._overviews[layer, head] = self._compute_overview(layer, head)
        return self._overviews[layer, head]

    def _compute_overview(self, layer: int, head: int) -> HeadOverview:
        torch.set_num_threads(self._threads)  # a new thread takes over the number of one that is computing a row
        weights, size = self._head(layer, head), self._map_level(layer)
        results = weights.measure({"map": BlockMean(size), "max": Max()})
        queries, keys = weights.shape[2:]
        blocks = results["map"][0].to("cpu", torch.float32) * block_lengths(keys, size)
        allowed = self._allowed_blocks(layer, size)
        allowed = allowed[head : head + 1] if len(allowed) > 1 else allowed
        data = LayerData(blocks, allowed, block_lengths(queries, size), {}, {})
        small = data.pooled(THUMBNAIL)
        tile, thumbnail = (_floats(each.blocks.masked_fill(~each.allowed, torch.nan)) for each in (data, small))
        return HeadOverview(tile, thumbnail, results["max"])

    def _pool_mask(self, layer: int, size: int) -> Tensor:
        return allowed_blocks(self.recording.layers[layer].weights.request, size)

    def _map_level(self, layer: int) -> int:
        return self.header["layers"][layer].get("levels", [1])[0]

    def _select_head(self, layer: int, head: int) -> WeightMatrix:
        return self.recording.layers[layer].weights.detach().at(heads=slice(head, head + 1))

    def _steps(
        self, layer: int, head: int, rows: KeyRange, keys: KeyRange, show: Shown = "weights", multiple: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """What is shown of a rectangle, 0 where masked, and its scores, (rows, keys) each, in steps of some rows."""
        matrix, strongest = self._head(layer, head), self._overviews[layer, head].strongest
        cells = CELLS_PER_STEP // matrix.request.score.workspace_per_cell(matrix.request.query.shape[3])
        step = max(1, cells // (keys.width * multiple)) * multiple
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            some = matrix.at(queries=part)
            scores = some.request.scores_of_keys(keys)
            weights = MaxResult(*(result[:, :, part] for result in strongest)).weights_of(scores)
            values = _shown(some, weights, keys, show)
            values = values if show == "weights" else values.masked_fill(scores == -torch.inf, 0)
            yield values[0, 0], scores[0, 0]


def _not_finite(recording: Recording) -> list[str]:
    """Problems that are known before weights are computed."""
    return [
        f"layer {short_repr(layer.name)}: expected finite queries and keys, got NaN or infinity in its {name}"
        for layer in recording.layers
        for name, part in (("queries", layer.weights.request.query), ("keys", layer.weights.request.key))
        if not part.isfinite().all()
    ]


def _shown(matrix: WeightMatrix, weights: Tensor, keys: KeyRange, show: Shown) -> Tensor:
    """The weights of all queries of a matrix and some keys, their gradients, or both multiplied."""
    if show == "weights":
        return weights
    assert matrix.grad is not None  # which the server checks
    gradient = matrix.grad[:, :, :, keys.start : keys.stop]
    return gradient if show == "gradient" else gradient * weights


def _masked_floats(weights: Tensor, scores: Tensor) -> bytes:
    return _floats(weights.masked_fill(scores == -torch.inf, torch.nan))


def _floats(tensor: Tensor) -> bytes:
    """A tensor as little-endian float32."""
    return float_array(tensor).astype("<f4").tobytes()


def _block_sums(cells: Tensor, size: int) -> Tensor:
    """Sums over blocks of size × size cells; a block at the edge may have fewer."""
    rows, keys = cells.shape
    if rows % size or keys % size:
        cells = torch.nn.functional.pad(cells, (0, -keys % size, 0, -rows % size))
    return cells.unflatten(0, (-1, size)).sum(1).unflatten(1, (-1, size)).sum(2)


@contextmanager
def single_threaded(restore_to: int) -> Iterator[None]:
    """Let torch compute in this thread alone, and restore its number of threads at the end.

    Waking other threads takes longer than a row, and on a busy machine, where they wait for a core, far longer.
    """
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(restore_to)
