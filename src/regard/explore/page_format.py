"""The format of a page's data, version 5: a JSON header, and blocks of tensors.

A block is a safetensors file, deflated by zlib. Block 0 holds the thumbnails of all layers, each other block a layer.
The header is a `PageHeader`. ``docs/page_format.md`` lists what each block holds.

Weights are stored as the integers ``round(3000 * weight)``: a stored weight is within 1/6000 of the exact one, and
has the same three decimals. Integers of several bytes are stored as byte planes: a uint8 tensor whose first axis
is the byte, lowest first. Planes compress to four fifths of what interleaved bytes do.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Literal, NotRequired

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor
from typing_extensions import TypedDict

FORMAT_VERSION = 6
CODES_PER_UNIT = 3000
MASKED_CODE = 4095
"""The code of a cell, or of a block of cells, that the mask excludes."""
PRECISION = 1 / (2 * CODES_PER_UNIT)
"""The largest difference between a stored weight and the exact one."""
THUMBNAIL_CODES = 254
"""A thumbnail stores ``round(254 * sqrt(weight))`` in one byte, and 255 where everything is masked."""
ZLIB_LEVEL = 4
"""zlib's default, 6, takes longer and makes a sketch hardly smaller."""


class SequenceHeader(TypedDict):
    """A text that rows or columns of layers stand for."""

    role: str
    """``source``, ``read`` or ``written``."""
    tokens: list[str]
    """The tokens as the tokenizer writes them."""
    display: list[str]
    """The tokens as they are displayed, see `regard.text.display_tokens`."""
    words: list[int]
    """The index of each token's word, see `regard.text.word_indices`."""
    word_texts: list[str]
    """The words as they are shown."""
    special: list[int]
    """The positions of special tokens."""
    spaces: list[int]
    """The positions that have a space before them."""


class SegmentHeader(TypedDict):
    """A part of the text at the columns of a layer, see `regard.analysis.segment_attention`."""

    name: str
    """``first``, ``beginning``, ``middle``, ``recent`` or ``end``; in a chat its turns, such as ``user 2``."""
    num_tokens: int
    """The number of its tokens."""
    ranges: list[tuple[int, int]] | None
    """The first and the last position of each run of its tokens; null if they depend on the query."""
    shares: list[float]
    """The share of attention that each head gives to it."""


class LayerHeader(TypedDict):
    """An attention layer."""

    name: str
    """The name of the layer, which no other layer has."""
    kind: Literal["encoder", "decoder", "cross"]
    """Self-attention of an encoder or a decoder, or cross-attention."""
    heads: list[int]
    """The index in the model of each head of the block."""
    queries: int
    """Index of the sequence of the rows in `PageHeader.sequences`."""
    keys: int
    """Index of the sequence of the columns in `PageHeader.sequences`."""
    scale: float
    """The factor of the products of query and key."""
    score: str | None
    """The score function by name; null for the plain scaled dot product."""
    has_sinks: bool
    """Whether sinks take a part of each row, so that its weights add up to less than 1."""
    scores: NotRequired[dict[str, list[float | None]]]
    """By name, a score of each head, see `regard.analysis.head_scores`; null for NaN. Empty lists on a served page."""
    segments: NotRequired[list[SegmentHeader]]
    """The share of attention of each segment, in order; empty for an image and on a served page."""
    thumbnail: NotRequired[list[int]]
    """The number of rows and of columns of a thumbnail."""
    storage: NotRequired[Literal["dense", "computed", "sketch", "remote"]]
    """All weights in the block; what the page computes them from; a reduced form; or all on request from the server."""
    levels: NotRequired[list[int]]
    """Block sizes of the stored maps, in tokens, the coarsest first; [1] for a dense layer."""
    mask: NotRequired[Literal["none", "runs", "unknown"]]
    """Of a long text: whether no cell is masked, the mask is stored as runs, or not stored."""
    qkv: NotRequired[list[list[int]]]
    """Shapes of query, key and value where the page holds them, each (heads, tokens, features)."""
    has_gradient: NotRequired[bool]
    """Whether the page has the gradient of the weights, or the server sends it."""
    omits_gradient: NotRequired[bool]
    """True if the recording has the gradient, but this file does not, because not all weights are in it either."""
    relevance: NotRequired[int]
    """Index of the layer whose block has the relevance of this layer's part of the model; missing if there is none."""


class Opening(TypedDict):
    """What the page shows first, see `regard.explore.opening`."""

    layer: int
    """Index of the layer in `PageHeader.layers`."""
    head: int
    """Index of the head in `LayerHeader.heads`."""
    query: int
    """The query on which views of one query open."""
    reason: str
    """Why this head, in one sentence."""


class Alignment(TypedDict):
    """What two texts have in common."""

    sequences: tuple[int, int]
    """Index of the text in the sequences of the first recording, and of the second."""
    tokens: list[tuple[int, int, int]]
    """Runs of equal tokens, each (start in the first text, start in the second, length)."""
    words: list[tuple[int, int, int]]
    """Runs of equal words."""


class PageHeader(TypedDict):
    """The metadata of a page."""

    format_version: int
    """The number 6."""
    title: str
    """The title of the recording."""
    model: str
    """The name of the model."""
    dtype: str
    """The dtype of the recorded queries and keys, such as ``float32``."""
    texts: dict[str, str]
    """Whole texts by role, such as ``source`` and ``translation``."""
    image: str | None
    """A PNG in base64, what a vision model saw; null if there is none."""
    precision: float
    """The largest difference between a stored weight and the exact one; 0 on a served page."""
    is_served: NotRequired[bool]
    """Whether the page loads its data from the server that it came from."""
    max_map_size: NotRequired[int]
    """On a served page: rows and columns of a tile."""
    level_factor: NotRequired[int]
    """On a served page: the ratio of the block sizes of neighboring levels."""
    sequences: list[SequenceHeader]
    """The texts that layers refer to."""
    layers: list[LayerHeader]
    """The layers in the order in which the model computed them."""
    opening: Opening
    """What the page shows first."""
    compare_with: NotRequired[PageHeader]
    """The second recording; its blocks follow those of the first."""
    counterparts: NotRequired[list[int | None]]
    """Of the second recording: the index of its layer that each layer of the first is compared with."""
    alignments: NotRequired[list[Alignment]]
    """Of the second recording: what its texts have in common with those that they are compared with."""


def quantize(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The code of each weight, in int16.

    The code of a weight w is 3000 w, rounded to the nearest integer and a half to the odd one. So for a float32 w,
    ``f"{code / 3000:.3f}" == f"{w:.3f}"``: the third decimal changes where 3000 w is halfway between two codes, and
    exactly there Python rounds to the even digit, as in 0.062 for 1/16.

    Args:
        weights: From 0 to 1, or a little more from rounding. What is negative is stored as 0.
        allowed: Broadcastable to the weights: False where the mask excludes everything. Default: nothing is masked.
    """
    # The product is exact in float64. PyTorch rounds a half to the even integer, so that of 3000 w - 1 is odd for w.
    codes = weights.float().double().mul_(CODES_PER_UNIT).sub_(1).round_().add_(1).clamp_(0, MASKED_CODE - 1)
    codes = codes.to(torch.int16)
    return codes if allowed is None else codes.masked_fill_(~allowed, MASKED_CODE)


def quantize_thumbnail(weights: Tensor, allowed: Tensor) -> np.ndarray:
    """The codes of a thumbnail, see `THUMBNAIL_CODES`."""
    codes = (weights.clamp(0, 1).sqrt() * THUMBNAIL_CODES).round_().to(torch.uint8)
    return codes.masked_fill_(~allowed, 255).numpy()


def byte_planes(numbers: np.ndarray | Tensor, width: int) -> np.ndarray:
    """Unsigned integers of `width` bytes as (width, ...) in uint8, the lowest bytes first."""
    values = np.ascontiguousarray(numbers)
    return np.stack([(values >> (8 * byte)).astype(np.uint8) for byte in range(width)])


def write_block(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A block of named tensors."""
    return zlib.compress(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}), ZLIB_LEVEL)


def float_array(tensor: Tensor) -> np.ndarray:
    """A tensor as a float32 array on the CPU."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()
