"""A recording as data for the page: one small object of metadata, and a block of bytes for each layer.

Where a layer's whole matrix is small, its block holds every weight. Where it is not, it holds a sketch: a map of means,
the strongest keys of each row with what is left out, and what each key receives. Memory is linear in the tokens.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.analysis.head_scores import HEAD_SCORES, Columns, HeadScoreAccumulator
from regard.analysis.layer import Layer, require_one_sequence
from regard.analysis.recording import Recording
from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.explore.codes import COARSE, ERROR, FINE, GROWTH, LAST, LINEAR, MASKED
from regard.explore.sketches import THUMBNAIL, Shown, asked_of, plan_of, sketched, whole
from regard.ops.scores import ScaledDotProduct, Score, Sum

FORMAT = 4
LEVEL = 4
"""Of deflate: the default, 6, takes twice as long and makes a sketch 1.5 % smaller."""
VECTORS = 2**21
"""Queries, keys and values go into a page where they take no more bytes than this: small recordings have them."""
ROUNDING = 1e-3
"""How far a weight may lie outside [0, 1] and still count as rounding in the model's own precision."""


def pack(recording: Recording, compare_with: Recording | None = None) -> tuple[dict[str, Any], list[bytes]]:
    """Pack a recording into metadata, which JSON can hold, and blocks of bytes.

    A weight is stored as a code of nine bits (`regard.explore.codes`), which is within 1 % of it, or within 0.0001. A
    block is deflated (zlib); inside, numbers are unsigned and lie by rank: first the lowest byte of each, then the
    next. Block 0 holds the thumbnails of all layers, (heads, rows, columns) codes of two bytes each. Of the others each
    holds a layer:

    ``whole``
        The codes of all weights, (heads, queries, keys), two bytes each.
    ``sketch``
        The codes of the map, (heads, rows, columns), two bytes each: of how much a query gives to a square of keys, on
        the mean over the queries of the square. The strongest keys of each row, (heads, queries, strongest), two bytes
        each, four beyond 65,536 keys; their codes in the same order, two bytes each. What they leave out of each row,
        (heads, queries) codes of two bytes. What each key receives from all queries, (heads, keys) as half floats.

    After these comes what the mask allows, where ``mask`` is neither 0, for all, nor null, for what is not told: a
    row's runs of allowed keys, as the key where each begins and the one after it ends; first how many such boundaries
    each row has, then the ``mask`` boundaries, each less the one before, modulo 2³², all in four bytes. The maps of
    ``finer`` follow, each like the first with squares of half the side: few heads leave room for more levels. Last come
    query, key and, where it was kept, value, in the shapes that ``vectors`` lists, as float32.

    A second recording, to be compared with, has metadata of the same form under ``beside``; its blocks lie behind those
    of the first, and are counted from there: its block 0 is number 1 + the layers of the first.

    Args:
        recording: At least one layer, each (1, heads, queries, keys) with a token for each row and column.
        compare_with: Another one, of which at least one layer belongs to one of the first: by name, else by kind.

    Returns:
        The metadata and the blocks. A layer names its tokens by their place in ``sequences``.

    Raises:
        InvalidArgument: If there is no layer, or a batch of several sequences; if weights are outside [0, 1]; or if the
            two have no layer to compare.
        InvalidType: If one is not a recording.

    Memory:
        O(queries + keys) for each head.

    Example:
        >>> import regard, torch
        >>> from regard.analysis.layer import Layer
        >>> from regard.analysis.recording import Recording
        >>> weights = regard.weights(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 2, 64))
        >>> layer = Layer("encoder.0", "encoder", weights, ("a",), ("b", "c"))
        >>> header, blocks = pack(Recording("a title", "a model", (layer,)))
        >>> header["layers"][0]["heads"], header["layers"][0]["form"], len(blocks)
        ([0, 1, 2, 3, 4, 5, 6, 7], 'whole', 2)
    """
    check(recording)
    if compare_with is not None:
        check_pair(recording, compare_with)
    header = describe(recording)
    plan = plan_of([layer.weights.shape for layer in recording.layers])
    with_vectors = sum(4 * part.numel() for layer in recording.layers for part in vectors_of(layer)) <= VECTORS
    thumbnails, blocks, objections = [], [], []
    sums = HeadScoreAccumulator()
    for layer, told, sketch in zip(recording.layers, header["layers"], plan, strict=True):
        about = layer.name, layer.kind, layer.weights, [layer.key_tokens]
        answers = sums.add(*about, head_indices=layer.head_indices, extra_measures=asked_of(layer, sketch))
        shown = whole(layer) if sketch is None else sketched(layer, sketch, answers)
        objections += _outside(layer, shown.squares)
        small = shown.pooled(THUMBNAIL)
        thumbnails.append(small.codes())
        vectors = vectors_of(layer) if with_vectors else []
        told |= {**shown.told, "thumbnail": list(small.squares.shape[1:]), "vectors": shapes_of(vectors)}
        blocks.append(block_of(shown, vectors))
    raise_problems(objections)
    scores = scores_of(sums.means())
    for told in header["layers"]:
        told["scores"] = scores[told["name"]]
    packed = [zlib.compress(b"".join(thumbnails)), *blocks]
    if compare_with is None:
        return header, packed
    with _naming_the_second():
        header["beside"], more = pack(compare_with)
    return header, packed + more


def block_of(shown: Shown, vectors: Sequence[Tensor]) -> bytes:
    """The block of a layer."""
    return zlib.compress(b"".join([*shown.parts, *map(floats, vectors)]), LEVEL)


def floats(tensor: Tensor) -> bytes:
    """Numbers as float32, the lowest byte of each first."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()


def shapes_of(vectors: Sequence[Tensor]) -> list[list[int]]:
    """What a page is told of a layer's vectors."""
    return [list(tensor.shape) for tensor in vectors]


def scores_of(found: Columns) -> dict[str, dict[str, list[float | None]]]:
    """What the heads of each layer do, by the layer's name: what `regard.analysis.head_scores` gives, null for NaN."""
    return {
        layer: {
            name: [
                None if math.isnan(value) else round(value, 5)
                for value, of in zip(found[name], found["layer"], strict=True)
                if of == layer
            ]
            for name in HEAD_SCORES
        }
        for layer in dict.fromkeys(found["layer"])
    }


def describe(recording: Recording) -> dict[str, Any]:
    """What a page is told of a recording at once: its texts, tokens and layers."""
    sequences: dict[tuple[str, tuple[str, ...]], int] = {}
    role = _roles(recording)
    layers = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "heads": list(layer.head_indices),
            "queries": sequences.setdefault((role(layer)[0], layer.query_tokens), len(sequences)),
            "keys": sequences.setdefault((role(layer)[1], layer.key_tokens), len(sequences)),
            "scale": layer.weights.request.scale,
            "sinks": layer.weights.request.score.sinks is not None,
            "rule": _rule(layer.weights.request.score),
        }
        for layer in recording.layers
    ]
    return {
        "format": FORMAT,
        "title": recording.title,
        "model": recording.model_name,
        "dtype": str(recording.dtype).removeprefix("torch."),
        "texts": dict(recording.texts),
        "picture": None if recording.image is None else base64.b64encode(recording.image).decode("ascii"),
        "codes": {"fine": FINE, "coarse": COARSE, "growth": GROWTH, "linear": LINEAR, "last": LAST, "masked": MASKED},
        "error": list(ERROR),
        "sequences": [{"role": role, "tokens": list(tokens)} for role, tokens in sequences],
        "layers": layers,
    }


def vectors_of(layer: Layer) -> list[Tensor]:
    """Query, key and, where it was kept, value, each (heads, tokens, features)."""
    request = layer.weights.detach().request
    tensors = [request.query, request.key, *([] if layer.value is None else [layer.value])]
    return [tensor[0].detach() for tensor in tensors]


def _rule(score: Score) -> str | None:
    """What the rule between query and key is called, without its tensors; None where it is the scaled product alone."""
    return None if isinstance(score, ScaledDotProduct) else _called(score)


def _called(score: Score) -> str:
    if isinstance(score, Sum):
        return f"{_called(score.left)} + {_called(score.right)}"
    inner = next((part for part in vars(score).values() if isinstance(part, Score)), None)
    return type(score).__name__ + (f" of {_called(inner)}" if inner is not None else "")


def _roles(recording: Recording) -> Callable[[Layer], tuple[str, str]]:
    """What the texts at the rows and the columns of a layer are.

    A decoder may have written what is at its rows, or have read it, as its keys. Alone it reads the source; behind an
    encoder it reads a text of its own, from which cross-attention looks at the source.
    """
    read = {
        layer.query_tokens
        for layer in recording.layers
        if layer.kind == "decoder" and layer.query_tokens == layer.key_tokens
    }
    alone = not recording.layers.by_kind("cross")

    def roles(layer: Layer) -> tuple[str, str]:
        own = "read" if layer.query_tokens in read else "written"
        if layer.kind == "cross":
            return own, "source"
        if layer.kind == "encoder" or (own == "read" and alone):
            return "source", "source"
        return own, "read"

    return roles


def check(recording: Recording) -> None:
    """Refuse what a page could not show.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If there is no layer, or a batch of several sequences.
    """
    if not isinstance(recording, Recording):
        raise InvalidType(f"recording: expected a Recording, got {type(recording).__name__}")
    if not recording.layers:
        raise InvalidArgument("recording: expected at least one layer, got none")
    require_one_sequence(recording.layers)


def check_pair(recording: Recording, compare_with: Recording) -> None:
    """Refuse a second recording that could not be shown, or not be compared.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If it cannot be shown, or no layer of it belongs to one of the first.
    """
    with _naming_the_second():
        check(compare_with)
    told, others = (", ".join(sorted({layer.kind for layer in each.layers})) for each in (recording, compare_with))
    second = compare_with.layers
    if not any(layer.name in second or second.by_kind(layer.kind) for layer in recording.layers):
        raise InvalidArgument(
            f"compare_with: expected a layer of a name or of a kind ({told}) that the first recording has, got {others}"
        )


@contextmanager
def _naming_the_second() -> Iterator[None]:
    """Say that an objection is to the second recording."""
    try:
        yield
    except (InvalidArgument, InvalidType) as error:
        raise type(error)(f"compare_with: {str(error).removeprefix('recording: ')}") from None


def _outside(layer: Layer, weights: Tensor) -> list[str]:
    low, high = weights.min().item(), weights.max().item()
    # A comparison with NaN is false, so NaN is objected to as well.
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return []
    return [f"layer {layer.name!r}: expected weights from 0 to 1, got values from {low:.4g} to {high:.4g}"]
