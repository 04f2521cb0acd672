"""What a page holds of a layer: all of its weights where these are few, else a sketch of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.explore.codes import MASKED, encode, planes
from regard.ops.masks import Padding
from regard.ops.measures import BlockMean, Mass, Measure, Received, TopK

if TYPE_CHECKING:
    from regard.analysis.layer import Layer
    from regard.ops.request import AttentionRequest

SIDE = 256
"""So many rows and columns a map has at most."""
FINEST = 1024
"""So many rows and columns a finer map has at most, where few heads leave room for it."""
STRONGEST = 16
"""So many keys of each row a sketch names at most."""
NUMBERS = 10_000_000
"""So many squares of maps, and so many strongest keys, a page holds at most; beyond, each head is given fewer."""
THUMBNAIL = 32
"""So many rows and columns the small map of a head has at most."""
RUNS = 16
"""A mask of more runs than this in its rows, on average, is not told cell by cell."""
ROWS = 512
"""So many rows of a mask are looked at at once."""


@dataclass(frozen=True)
class Sketch:
    """How coarse the sketch of a layer is.

    Args:
        size: So many queries, and keys, are a square of the map.
        strongest: So many keys of each row are named.
        finer: The same of the maps below it, each with squares of half the side.
    """

    size: int
    strongest: int
    finer: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The levels of the pyramid: the map, and those below it."""
        return (self.size, *self.finer)


def plan_of(shapes: Sequence[Sequence[int]]) -> list[Sketch | None]:
    """How each layer, (1, heads, queries, keys), is stored; None where whole."""
    side, strongest = SIDE, STRONGEST
    while True:
        plan = [_sketch_of(shape, side, strongest) for shape in shapes]
        squares = _all_squares(plan, shapes)
        named = sum(s.strongest * heads * rows for s, (_, heads, rows, _) in zip(plan, shapes, strict=True) if s)
        if squares > NUMBERS and side > THUMBNAIL:
            side //= 2
        elif named > NUMBERS and strongest > 1:
            strongest -= 1
        else:
            break
    while True:
        deeper = [sketch and _deeper(sketch, shape) for sketch, shape in zip(plan, shapes, strict=True)]
        if deeper == plan or _all_squares(deeper, shapes) > NUMBERS:
            return plan
        plan = deeper


def _deeper(sketch: Sketch, shape: Sequence[int]) -> Sketch:
    """With one map more, unless it would have too many squares; one of single cells would be the whole matrix."""
    half = -(-sketch.sizes[-1] // 2)
    return replace(sketch, finer=(*sketch.finer, half)) if half > 1 and max(shape[2:]) <= FINEST * half else sketch


def _all_squares(plan: Sequence[Sketch | None], shapes: Sequence[Sequence[int]]) -> int:
    return sum(
        heads * _squares(size, *shape)
        for sketch, (_, heads, *shape) in zip(plan, shapes, strict=True)
        for size in (sketch.sizes if sketch else (1,))
    )


def _sketch_of(shape: Sequence[int], side: int, strongest: int) -> Sketch | None:
    """A sketch, unless the whole matrix takes no more."""
    _, _, queries, keys = shape
    sketch = Sketch(-(-max(queries, keys) // side), min(strongest, keys))
    return None if queries * keys <= _squares(sketch.size, queries, keys) + 2 * sketch.strongest * queries else sketch


def _squares(size: int, queries: int, keys: int) -> int:
    return -(-queries // size) * -(-keys // size)


@dataclass(frozen=True)
class Shown:
    """What a page is given of a layer.

    Args:
        squares: (heads, rows, columns) How much a query of a square's rows gives to its keys, on the mean.
        allowed: (1 or heads, rows, columns) Whether the mask allows any of a square.
        counts: (rows,) How many queries each row of squares stands for.
        told: What the metadata says of it.
        parts: The bytes of its block.
    """

    squares: Tensor
    allowed: Tensor
    counts: Tensor
    told: dict[str, Any]
    parts: list[bytes]

    def codes(self) -> bytes:
        """The codes of the squares."""
        return planes(encode(self.squares).masked_fill_(~self.allowed, MASKED), 2)

    def pooled(self, most: int) -> Shown:
        """The same with so many rows and columns at most."""
        size = -(-max(self.squares.shape[1:]) // most)
        rows = _pool(self.counts[None, :, None], size, 1)
        squares = _pool(_pool(self.squares * self.counts[:, None], size, 1), size, 2) / rows
        allowed = _pool(_pool(self.allowed.float(), size, 1), size, 2) > 0
        return Shown(squares, allowed, rows.flatten(), self.told, [])


def _pool(x: Tensor, size: int, axis: int) -> Tensor:
    """Sums over `size` entries of an axis each."""
    count = -(-x.shape[axis] // size)
    places = torch.arange(x.shape[axis]) // size
    return x.new_zeros(*x.shape[:axis], count, *x.shape[axis + 1 :]).index_add_(axis, places, x)


def whole(layer: Layer) -> Shown:
    """All weights of a small layer."""
    weights = layer.weights.dense()[0].detach().to("cpu", torch.float32)  # (heads, queries, keys)
    allowed = layer.weights.scores.dense()[0].detach().to("cpu") > -torch.inf
    shown = Shown(weights, allowed, torch.ones(weights.shape[1]), {"form": "whole"}, [])
    shown.parts.append(shown.codes())
    return shown


def asked_of(layer: Layer, sketch: Sketch | None) -> dict[str, Measure]:
    """What has to be measured of a layer for its sketch."""
    if sketch is None:
        return {}
    asked: dict[str, Measure] = {f"map of {size}": BlockMean(size) for size in sketch.sizes}
    asked |= {"top": TopK(sketch.strongest), "received": Received()}
    if layer.weights.request.score.sinks is not None:  # else a row sums up to 1, or to 0 where all is masked
        every = torch.ones(1, layer.weights.shape[3], dtype=torch.bool, device=layer.weights.device)
        asked["total"] = Mass(Padding(every))
    return asked


def sketched(layer: Layer, sketch: Sketch, answers: Mapping[str, Any]) -> Shown:
    """What a page is told of a large layer, from the answers to `asked_of`."""
    queries, keys = layer.weights.shape[2:]
    request = layer.weights.request
    values, indices = (part[0].to("cpu") for part in answers["top"])
    total = answers["total"][0].to("cpu") if "total" in answers else (values[..., 0] > 0).float()
    received = answers["received"][0].to("cpu", torch.float32)
    runs = Runs()

    def level(size: int, runs: Runs | None = None) -> Shown:
        squares = answers[f"map of {size}"][0].to("cpu", torch.float32) * sides(keys, size)
        told = {"size": size, "map": list(squares.shape[1:])}
        return Shown(squares, allowed_squares(request, size, runs), sides(queries, size), told, [])

    shown, *finer = level(sketch.size, runs), *map(level, sketch.finer)
    shown.told.update(
        form="sketch",
        strongest=sketch.strongest,
        mask=runs.count if runs.are_told else None,
        finer=[each.told for each in finer],
    )
    shown.parts.extend(
        [
            shown.codes(),
            planes(indices, 2 if keys <= 2**16 else 4),
            planes(encode(values.float()), 2),
            planes(encode((total - values.sum(-1)).float().clamp_(0, 1)), 2),
            received.clamp(max=65504).numpy().astype("<f2").tobytes(),
            *runs.parts(),
            *(each.codes() for each in finer),
        ]
    )
    return shown


def sides(count: int, size: int) -> Tensor:
    """How many cells the squares along an axis have."""
    return torch.tensor([min(size, count - start) for start in range(0, count, size)], dtype=torch.float32)


def allowed_squares(request: AttentionRequest, size: int, runs: Runs | None = None) -> Tensor:
    """Which squares the mask allows any cell of, (1 or heads, rows, columns).

    Args:
        request: The matrix.
        size: Cells of a side of a square.
        runs: What is to be told of single cells, too.
    """
    _, heads, queries, keys = request.shape
    if request.mask is None:
        return torch.ones(1, len(sides(queries, size)), len(sides(keys, size)), dtype=torch.bool)
    step = max(size, ROWS // size * size)
    squares = []
    for start in range(0, queries, step):
        tile = request.tile(slice(0, 1), slice(0, heads), slice(start, min(start + step, queries)))
        found = request.allowed(tile).to("cpu")
        own = found.ndim == 4 and found.shape[1] > 1  # a mask for each head
        found = found.expand(1, heads if own else 1, *tile.shape[2:])[0]
        squares.append(_pool(_pool(found.float(), size, 1), size, 2) > 0)
        if runs is not None:
            runs.add(found)
    return torch.cat(squares, 1)


class Runs:
    """Where the runs of allowed keys begin and end in each row of a mask that all heads share."""

    def __init__(self) -> None:
        self.are_told = True
        self.count = 0
        self._rows = 0
        self._counts: list[np.ndarray] = []
        self._places: list[np.ndarray] = []

    def add(self, allowed: Tensor) -> None:
        """Take up more rows, (1 or heads, rows, keys). What differs from head to head is not told, nor many runs."""
        if not self.are_told:
            return
        edges = np.diff(np.pad(allowed[0].numpy().astype(np.int8), ((0, 0), (1, 1))), axis=1) != 0
        self._counts.append(edges.sum(1))
        self._places.append(np.nonzero(edges)[1])
        self.count += len(self._places[-1])
        self._rows += len(edges)
        self.are_told = len(allowed) == 1 and self.count <= 2 * RUNS * self._rows

    def parts(self) -> list[bytes]:
        """How many boundaries each row has, and the boundaries, each less the one before."""
        if not self.are_told or not self._counts:
            return []
        places = np.concatenate(self._places)
        return [planes(np.concatenate(self._counts), 4), planes(np.diff(places, prepend=0) % 2**32, 4)]
