"""A reader of pages written from docs/page_format.md alone, independent of the page's own reader and of `regard`."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors.numpy import load

CODES_PER_UNIT = 3000
MASKED_CODE = 4095


@dataclass
class StoredLayer:
    """The block of a layer: weights are NaN where masked."""

    header: dict[str, Any]
    weights: np.ndarray | None = None
    key_order: np.ndarray | None = None
    query_order: np.ndarray | None = None
    blocks: dict[int, np.ndarray] = field(default_factory=dict)
    top_keys: np.ndarray | None = None
    top_weights: np.ndarray | None = None
    rest: np.ndarray | None = None
    received: np.ndarray | None = None
    lse: np.ndarray | None = None
    allowed: np.ndarray | None = None
    qkv: tuple[np.ndarray, ...] = ()


def read_page(document: str) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the blocks of an HTML file."""
    parts = dict(re.findall(r'<script type="application/[\w-]+" id="([\w-]+)">([^<]*)</script>', document))
    names = sorted((name for name in parts if name.startswith("block-")), key=lambda name: int(name[6:]))
    assert names == [f"block-{number}" for number in range(len(names))]
    return json.loads(parts["recording"]), [base64.b64decode(parts[name], validate=True) for name in names]


def read_layer(header: dict[str, Any], blocks: list[bytes], number: int = 0) -> StoredLayer:
    """A layer of a page's header and blocks."""
    about = header["layers"][number]
    heads = len(about["heads"])
    queries, keys = (len(header["sequences"][about[axis]]["tokens"]) for axis in ("queries", "keys"))
    tensors = load(zlib.decompress(blocks[number + 1]))
    layer = StoredLayer(about)
    layer.qkv = tuple(tensors.pop(name) for name in ("query", "key", "value") if name in tensors)
    assert [list(part.shape) for part in layer.qkv] == about["qkv"]
    if about["storage"] == "dense":
        assert about["levels"] == [1]
        layer.weights = weights_of(tensors.pop("weights"), heads, queries, keys)
        if "key_order" in tensors:
            layer.key_order = integers(tensors.pop("key_order"), heads, queries, min(8, keys))
            layer.query_order = integers(tensors.pop("query_order"), heads, keys, min(8, queries))
    else:
        for size in about["levels"]:
            layer.blocks[size] = weights_of(tensors.pop(f"blocks_{size}"), heads, -(-queries // size), -(-keys // size))
        if about["storage"] == "computed":
            layer.lse = tensors.pop("lse")
            assert (layer.lse.dtype, layer.lse.shape) == (np.float32, (heads, queries))
        else:
            assert about["storage"] == "sketch"
            layer.top_keys = integers(tensors.pop("top_keys"), heads, queries)
            layer.top_weights = weights_of(tensors.pop("top_weights"), *layer.top_keys.shape)
            layer.rest = weights_of(tensors.pop("rest"), heads, queries)
            layer.received = tensors.pop("received")
            assert (layer.received.dtype, layer.received.shape) == (np.float32, (heads, keys))
        layer.allowed = read_mask(about["mask"], tensors, queries, keys)
    assert tensors == {}
    return layer


def read_thumbnails(blocks: list[bytes], number: int = 0) -> np.ndarray:
    """The thumbnails of a layer, (heads, rows, columns); NaN where all is masked."""
    codes = load(zlib.decompress(blocks[0]))[str(number)]
    assert codes.dtype == np.uint8
    return np.where(codes == 255, np.nan, (codes / 254) ** 2)


def integers(planes: np.ndarray, *shape: int) -> np.ndarray:
    """Integers of byte planes, whose leading axes after the first are as expected."""
    assert planes.dtype == np.uint8
    assert planes.shape[1 : 1 + len(shape)] == shape
    return sum(plane.astype(np.int64) << (8 * byte) for byte, plane in enumerate(planes))


def weights_of(planes: np.ndarray, *shape: int) -> np.ndarray:
    """Weights of the byte planes of codes."""
    assert len(planes) == 2
    return dequantize(integers(planes, *shape))


def dequantize(codes: np.ndarray) -> np.ndarray:
    """The weights of codes; NaN where masked."""
    return np.where(codes == MASKED_CODE, np.nan, codes / CODES_PER_UNIT)


def read_mask(kind: str, tensors: dict[str, np.ndarray], queries: int, keys: int) -> np.ndarray | None:
    """Whether the mask of a sketch allows each cell, (queries, keys); None if it is not stored."""
    if kind == "unknown":
        return None
    allowed = np.full((queries, keys), kind == "none")
    if kind == "runs":
        counts, differences = tensors.pop("mask_counts"), tensors.pop("mask_edges")
        assert counts.dtype == differences.dtype == np.uint32
        edges = np.cumsum(differences, dtype=np.uint32).astype(np.int64)  # modulo 2^32
        assert counts.sum() == len(edges)
        for row, ranges in zip(allowed, np.split(edges, np.cumsum(counts)[:-1]), strict=True):
            for begin, end in ranges.reshape(-1, 2):
                row[begin:end] = True
    return allowed


def ranked(weights: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The indices of a row's strongest weights in their exact order, without those that are masked."""
    indices = sorted(np.flatnonzero(~np.isnan(weights)), key=lambda index: -weights[index])  # stable
    for rank, places in enumerate(order.tolist()):
        if places:
            indices.insert(rank, indices.pop(rank + places))
    return np.array(indices[: len(order)])
