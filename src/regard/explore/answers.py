"""What a page asks of a recording while somebody looks at it: maps, rows, columns and sums, computed when asked for."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch

from regard.analysis.head_scores import HEAD_SCORES, head_scores
from regard.analysis.layer import LayerList
from regard.analysis.recording import Recording
from regard.errors import raise_problems
from regard.explore.codes import MASKED, encode, planes
from regard.explore.packing import block_of, check, describe, floats, scores_of, shapes_of, vectors_of
from regard.explore.sketches import SIDE, THUMBNAIL, Shown, allowed_squares, plan_of, sides, whole
from regard.ops import WeightMatrix
from regard.ops.masks import Padding
from regard.ops.measures import BlockMean, Mass
from regard.ops.request import AttentionRequest
from regard.ops.tile import KeyRange

KEPT = 2**28
"""So many bytes of answers are kept, those that were asked for last."""
FINER = 4
"""From a level of squares to the next one, a side has so many times as many cells."""

HEADS = 4
"""So many heads are kept of which rows were asked for last."""

Answer = TypeVar("Answer")


class Answers:
    """Answers about a recording, for `regard serve`.

    What takes longer than a row is computed one at a time, and kept.

    Args:
        recording: As for `pack`.

    Raises:
        InvalidArgument: If the recording cannot be shown, with every reason.

    Memory: O(queries + keys) for each head, and 256 MB of answers that are kept.
    """

    def __init__(self, recording: Recording) -> None:
        check(recording)
        raise_problems(_not_finite(recording))
        self.recording = recording
        self.header = describe(recording)
        self.header["remote"] = True
        plan = plan_of([layer.weights.shape for layer in recording.layers])
        for layer, told, sketch in zip(recording.layers, self.header["layers"], plan, strict=True):
            told["thumbnail"] = [
                -(-size // -(-max(layer.weights.shape[2:]) // THUMBNAIL)) for size in layer.weights.shape[2:]
            ]
            told["vectors"] = shapes_of(vectors_of(layer))
            told["scores"] = {name: [] for name in HEAD_SCORES}  # they come head by head
            if sketch is None:
                told["form"] = "whole"
                continue
            queries, keys = layer.weights.shape[2:]
            size = 1
            while max(queries, keys) > SIDE * size:
                size *= FINER
            told |= {
                "form": "remote",
                "shape": {"queries": queries, "keys": keys},
                "size": size,
                "map": [len(sides(queries, size)), len(sides(keys, size))],
            }
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._computing = threading.Lock()
        self._threads = torch.get_num_threads()
        self._whole_head = lru_cache(HEADS)(self._head)  # its keys lie side by side

    def sizes(self, layer: int) -> list[int]:
        """The levels of a layer that is asked for in squares: cells of a side, from single cells to its map."""
        found = [1]
        while found[-1] < self.header["layers"][layer]["size"]:
            found.append(found[-1] * FINER)
        return found

    def tiles(self, layer: int, size: int) -> tuple[int, int]:
        """How many tiles of a level lie under and beside each other."""
        queries, keys = self.recording.layers[layer].weights.shape[2:]
        return len(sides(queries, SIDE * size)), len(sides(keys, SIDE * size))

    def block(self, layer: int) -> bytes:
        """The block of a layer that is sent whole, as `pack` makes it."""

        def compute() -> bytes:
            found = self.recording.layers[layer]
            return block_of(whole(found), vectors_of(found))

        return self._once(("block", layer), compute)

    def thumbnail(self, layer: int, head: int) -> bytes:
        """The small map of a head, (rows, columns) codes, deflated."""

        def compute() -> bytes:
            weights = self.recording.layers[layer].weights
            size = -(-max(weights.shape[2:]) // THUMBNAIL)
            return zlib.compress(self._squares(layer, slice(head, head + 1), size, slice(None)).codes())

        return self._once(("thumbnail", layer, head), compute)

    def squares(self, layer: int, head: int, size: int, row: int, column: int) -> bytes:
        """A tile of squares of `size` cells a side: (256 or fewer, 256 or fewer) codes, deflated.

        Args:
            layer: Its number.
            head: Which of the layer's, from 0.
            size: Cells of a side.
            row: Which tile, from above.
            column: Which tile, from the left.
        """

        def band() -> torch.Tensor:
            queries = slice(row * SIDE * size, (row + 1) * SIDE * size)
            shown = self._squares(layer, slice(head, head + 1), size, queries)
            return encode(shown.squares[0]).masked_fill_(~shown.allowed[0], MASKED)

        found = self._once(("band", layer, head, size, row), band)
        return zlib.compress(planes(found[:, column * SIDE : (column + 1) * SIDE], 2), 1)

    def row(self, layer: int, head: int, query: int) -> bytes:
        """The weights of a query, (keys,) as float32; NaN where masked."""
        with one_thread(self._threads):  # to wake another takes longer than a row
            row = self._whole_head(layer, head).at(queries=query)
            return floats(_weights(row.request, row.lse()))

    def column(self, layer: int, head: int, key: int) -> bytes:
        """What a key gets from each query, (queries,) as float32; NaN where masked."""
        lse = self._once(("lse", layer, head), lambda: self._head(layer, head).lse())
        request = self._head(layer, head).request
        return self._once(("column", layer, head, key), lambda: floats(_weights(request, lse, (key, key + 1))))

    def sum(self, layer: int, head: int, queries: tuple[int, int], keys: tuple[int, int]) -> bytes:
        """What some queries give to some keys, all together, as float32.

        Args:
            layer: Its number.
            head: Which of the layer's, from 0.
            queries: The first and the last.
            keys: The first and the last.
        """

        def compute() -> bytes:
            weights = self._head(layer, head, slice(queries[0], queries[1] + 1))
            places = torch.arange(weights.shape[3], device=weights.device)
            within = (places >= keys[0]) & (places <= keys[1])
            return floats(weights.measure(Mass(Padding(within[None])))["mass"].sum())

        return self._once(("sum", layer, head, queries, keys), compute)

    def vectors(self, layer: int, head: int) -> bytes:
        """Query, key and, where it was kept, value of a head, each (tokens, features) as float32."""
        heads = self.recording.layers[layer].weights.shape[1]
        return b"".join(floats(part[head * len(part) // heads]) for part in vectors_of(self.recording.layers[layer]))

    def scores(self, layer: int, head: int) -> dict[str, float | None]:
        """What a head does."""

        def compute() -> dict[str, float | None]:
            alone = self.recording.layers[layer]
            alone = alone.replace(weights=self._head(layer, head), head_indices=None, value=None, measured={})
            scores = scores_of(head_scores(Recording("", "", LayerList([alone]))))[alone.name]
            return {name: values[0] for name, values in scores.items()}

        return self._once(("scores", layer, head), compute)

    def _head(self, layer: int, head: int, queries: slice = slice(None)) -> WeightMatrix:
        return self.recording.layers[layer].weights.detach().at(heads=slice(head, head + 1), queries=queries)

    def _squares(self, layer: int, heads: slice, size: int, queries: slice) -> Shown:
        """Means of squares of some rows, as a page shows them."""
        weights = self.recording.layers[layer].weights.detach().at(heads=heads, queries=queries)
        rows, keys = weights.shape[2:]
        squares = weights.measure(BlockMean(size))["block_mean"][0].to("cpu", torch.float32) * sides(keys, size)
        return Shown(squares, allowed_squares(weights.request, size), sides(rows, size), {}, [])

    def _once(self, name: Hashable, compute: Callable[[], Answer]) -> Answer:
        """An answer that is kept, or computed now, one after the other."""
        with self._computing:
            if name not in self._kept:
                self._kept[name] = compute()
            self._kept.move_to_end(name)
            while len(self._kept) > 1 and sum(map(_bytes, self._kept.values())) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[name]


def _not_finite(recording: Recording) -> list[str]:
    """What could not be shown, as far as it can be told before weights are computed."""
    return [
        f"layer {layer.name!r}: expected finite queries and keys, got NaN or infinity in its {name}"
        for layer in recording.layers
        for name, part in (("queries", layer.weights.request.query), ("keys", layer.weights.request.key))
        if not part.isfinite().all()
    ]


def _weights(request: AttentionRequest, lse: torch.Tensor, keys: tuple[int, int] | None = None) -> torch.Tensor:
    """The weights of a head, of which the log-sum-exp of each row is known, to a range of keys; NaN where masked."""
    queries, count = request.shape[2:]
    start, stop = keys or (0, count)
    tile = request.tile(slice(0, 1), slice(0, 1), slice(0, queries)).with_keys(KeyRange(start, stop))
    scores = request.masked_scores(request.query, request.key[:, :, start:stop], tile).to(lse.dtype)
    weights = (scores - lse[..., None]).exp().masked_fill(scores == -torch.inf, torch.nan)
    return weights.expand(1, 1, queries, stop - start)


@contextmanager
def one_thread(otherwise: int) -> Iterator[None]:
    """What torch computes meanwhile, it computes in this thread alone; then in so many as otherwise.

    Torch has one number for the threads of a process: who asked for it here would be told 1 while another is within.
    """
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(otherwise)


def _bytes(answer: Any) -> int:
    return answer.nbytes if isinstance(answer, torch.Tensor) else len(answer)
