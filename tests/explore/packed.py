"""An independent reader of a page's blocks, as the docstring of `pack` describes them: the oracle of the page's own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Read:
    """What a block says of a layer; NaN where all is masked."""

    told: dict[str, Any]
    squares: np.ndarray
    named: np.ndarray | None = None
    strongest: np.ndarray | None = None
    left: np.ndarray | None = None
    received: np.ndarray | None = None
    allowed: np.ndarray | None = None
    finer: Sequence[np.ndarray] = ()
    vectors: tuple[np.ndarray, ...] = ()


class Bytes:
    def __init__(self, block: bytes) -> None:
        self.rest = zlib.decompress(block)

    def take(self, count: int) -> bytes:
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken

    def integers(self, shape: tuple[int, ...], width: int) -> np.ndarray:
        count = int(np.prod(shape))
        ranks = np.frombuffer(self.take(count * width), np.uint8).reshape(width, count)
        return sum(ranks[rank].astype(np.int64) * 256**rank for rank in range(width)).reshape(shape)

    def weights(self, shape: tuple[int, ...]) -> np.ndarray:
        return weight_of(self.integers(shape, 2))


def weight_of(code: np.ndarray) -> np.ndarray:
    """The inverse of the formula in the docstring of `encode`."""
    assert ((code <= 283) | (code == 511)).all()
    weights = np.where(code < 50, code * 0.0002, np.minimum(0.01 * 1.02 ** (code - 50.0), 1.0))
    return np.where(code == 511, np.nan, weights)


def read(header: dict[str, Any], blocks: list[bytes], number: int = 0) -> Read:
    told = header["layers"][number]
    heads = len(told["heads"])
    queries, keys = (len(header["sequences"][told[side]]["tokens"]) for side in ("queries", "keys"))
    block = Bytes(blocks[number + 1])
    if told["form"] == "whole":
        found = Read(told, block.weights((heads, queries, keys)))
    else:
        assert told["form"] == "sketch"
        found = Read(told, block.weights((heads, *told["map"])))
        found.named = block.integers((heads, queries, told["strongest"]), 2 if keys <= 65_536 else 4)
        found.strongest = block.weights((heads, queries, told["strongest"]))
        found.left = block.weights((heads, queries))
        found.received = np.frombuffer(block.take(2 * heads * keys), "<f2").astype(np.float64).reshape(heads, keys)
        found.allowed = mask_of(block, told["mask"], queries, keys)
        found.finer = [block.weights((heads, *each["map"])) for each in told["finer"]]
    found.vectors = tuple(
        np.frombuffer(block.take(4 * int(np.prod(shape))), "<f4").reshape(shape) for shape in told["vectors"]
    )
    assert block.rest == b""
    return found


def mask_of(block: Bytes, boundaries: int | None, queries: int, keys: int) -> np.ndarray | None:
    if boundaries is None:
        return None
    allowed = np.full((queries, keys), boundaries == 0)
    if boundaries:
        counts = block.integers((queries,), 4)
        places = np.cumsum(block.integers((boundaries,), 4)) % 2**32
        assert counts.sum() == boundaries
        for row, own in zip(allowed, np.split(places, np.cumsum(counts)[:-1]), strict=True):
            for begin, end in own.reshape(-1, 2):
                row[begin:end] = True
    return allowed
