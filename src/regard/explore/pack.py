"""A recording as a page's data: a JSON header, and one block of tensors for each layer (see `page_format`)."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import cast

import numpy as np
from torch import Tensor

from regard.analysis.head_scores import HEAD_SCORES, HeadScoreAccumulator
from regard.analysis.tables import Columns
from regard.errors import InvalidArgument, InvalidType, raise_problems, short_repr
from regard.explore.diff import align_sequences, counterparts
from regard.explore.gradients import gradient_of, quantize_gradient, relevance_maps
from regard.explore.opening import opening_head, opening_token
from regard.explore.page_format import (
    FORMAT_VERSION,
    PRECISION,
    LayerHeader,
    Opening,
    PageHeader,
    SequenceHeader,
    float_array,
    quantize_thumbnail,
    write_block,
)
from regard.explore.segment_shares import layer_segments, measures_of_segments, segment_headers
from regard.explore.sketch import (
    THUMBNAIL,
    SketchPlan,
    build_dense,
    build_long,
    is_computable,
    measures_for,
    plan_sketches,
)
from regard.ops.scores import ScaledDotProduct, Score, Sum
from regard.recordings.layer import Layer, require_one_sequence
from regard.recordings.recording import Recording
from regard.text.display import display_tokens
from regard.text.tokens import SPACE, is_special, normalize_tokens
from regard.text.words import group_into_words

MAX_QKV_BYTES = 2**21
"""Queries, keys and values go into a page if they take no more bytes than this."""
MAX_LONG_QKV_BYTES = 2**23
"""The same where they replace the sketch of a long text, so that its rows and columns are exact."""
WEIGHT_TOLERANCE = 1e-3
"""How far a weight may lie outside [0, 1] and still count as rounding in the model's own precision."""


def pack(recording: Recording, compare_with: Recording | None = None) -> tuple[PageHeader, list[bytes]]:
    """Pack a recording into a header, which JSON can hold, and blocks of tensors.

    Args:
        recording: At least one layer, each (1, heads, queries, keys) with a token for each row and column.
        compare_with: A second recording, in which at least one layer has the name, or else the kind, of one in the
            first. Its header goes into the first one's ``compare_with``, with what the two have in common; its blocks
            follow those of the first.

    Returns:
        The header, and the blocks: the thumbnails, then one block for each layer.

    Raises:
        InvalidArgument: If there is no layer, or a batch of several sequences; if weights are outside [0, 1]; or if the
            two have no layer to compare.
        InvalidType: If one is not a recording.

    Memory:
        O(queries + keys) for each head; to compare, one bit for each pair of tokens in which the texts may differ.

    Example:
        >>> import regard, torch
        >>> from regard.recordings.layer import Layer
        >>> from regard.recordings.recording import Recording
        >>> weights = regard.weights(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 2, 64))
        >>> layer = Layer("encoder.0", "encoder", weights, ("a",), ("b", "c"))
        >>> header, blocks = pack(Recording("a title", "a model", (layer,)))
        >>> header["layers"][0]["heads"], header["layers"][0]["storage"], len(blocks)
        ([0, 1, 2, 3, 4, 5, 6, 7], 'dense', 2)
    """
    check(recording)
    if compare_with is not None:
        check_pair(recording, compare_with)
    header, blocks = _pack(recording, "recording")
    if compare_with is not None:
        second, more = _pack(compare_with, "compare_with")
        second["counterparts"] = counterparts(header["layers"], second["layers"])
        second["alignments"] = align_sequences(header, second)
        header["compare_with"] = second
        blocks += more
    return header, blocks


def _pack(recording: Recording, name: str) -> tuple[PageHeader, list[bytes]]:
    header = make_header(recording)
    plans, has_qkv = plan_layers(recording)
    thumbnails, blocks, errors = {}, [], []
    segments = layer_segments(recording)
    relevances = add_relevance(header["layers"], recording, [plan is None for plan in plans])
    scores = HeadScoreAccumulator()
    for number, (layer, plan) in enumerate(zip(recording.layers, plans, strict=True)):
        about = layer.name, layer.kind, layer.weights, [layer.key_tokens]
        measures = measures_for(layer, plan) | measures_of_segments(segments.get(layer.name))
        measured = scores.add(*about, head_indices=layer.head_indices, extra_measures=measures)
        data = build_dense(layer) if plan is None else build_long(layer, plan, measured)
        errors += _check_range(layer, data.blocks, name)
        small = data.pooled(THUMBNAIL)
        thumbnails[str(number)] = quantize_thumbnail(small.blocks, small.allowed)
        vectors = qkv(layer) if has_qkv else {}
        gradient = gradient_of(layer)
        header["layers"][number]["has_gradient"] = gradient is not None and plan is None
        if gradient is not None and plan is not None:
            header["layers"][number]["omits_gradient"] = True
        elif gradient is not None:
            data.tensors.update(quantize_gradient(gradient.dense()[0]))
        if plan is None and vectors and header["layers"][number]["score"] is None:  # the page computes exact weights
            del data.tensors["key_order"], data.tensors["query_order"]
        header["layers"][number] |= cast(
            LayerHeader, {**data.header, "thumbnail": list(small.blocks.shape[1:]), "qkv": qkv_shapes(vectors)}
        )
        header["layers"][number]["segments"] = segment_headers(segments.get(layer.name), measured)
        blocks.append(write_block({**data.tensors, **relevances.get(number, {}), **qkv_arrays(vectors)}))
    raise_problems(errors)
    scores_by_layer = scores_of(scores.means())
    for layer_header in header["layers"]:
        layer_header["scores"] = scores_by_layer[layer_header["name"]]
    return header, [write_block(thumbnails), *blocks]


def add_relevance(
    headers: list[LayerHeader], recording: Recording, is_dense: list[bool]
) -> dict[int, dict[str, np.ndarray]]:
    """Name in the headers of layers which layer holds their relevance; returns it by the index of that layer."""
    found: dict[int, dict[str, np.ndarray]] = {}
    for matrix, numbers in relevance_maps(recording, is_dense):
        found[numbers[0]] = {"relevance": float_array(matrix)}
        for number in numbers:
            headers[number]["relevance"] = numbers[0]
    return found


def _opening(recording: Recording) -> Opening:
    head = opening_head(recording)
    query = opening_token(recording.layers[head.layer], head.head)
    return {"layer": head.layer, "head": head.head, "query": query, "reason": head.reason}


def scores_of(found: Columns) -> dict[str, dict[str, list[float | None]]]:
    """The head scores of each layer by its name, as `regard.analysis.head_scores` returns them; null for NaN."""
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


def make_header(recording: Recording) -> PageHeader:
    """The header of a recording, except for what is measured: its texts, tokens and layers."""
    sequences: dict[tuple[str, tuple[str, ...]], int] = {}
    role = _roles(recording)
    layers: list[LayerHeader] = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "heads": list(layer.head_indices),
            "queries": sequences.setdefault((role(layer)[0], layer.query_tokens), len(sequences)),
            "keys": sequences.setdefault((role(layer)[1], layer.key_tokens), len(sequences)),
            "scale": layer.weights.request.scale,
            "has_sinks": layer.weights.request.score.sinks is not None,
            "score": "captured" if layer.is_dense else score_name(layer.weights.request.score),
        }
        for layer in recording.layers
    ]
    return {
        "format_version": FORMAT_VERSION,
        "title": recording.title,
        "model": recording.model_name,
        "dtype": str(recording.dtype).removeprefix("torch."),
        "texts": dict(recording.texts),
        "image": None if recording.image is None else base64.b64encode(recording.image).decode("ascii"),
        "precision": PRECISION,
        "sequences": [_sequence(role, tokens) for role, tokens in sequences],
        "layers": layers,
        "opening": _opening(recording),
    }


def _sequence(role: str, tokens: tuple[str, ...]) -> SequenceHeader:
    words = group_into_words(tokens)
    spelled = normalize_tokens(tokens)
    special = [is_special(token) for token in tokens]
    marks_words = any(SPACE in token for token, skip in zip(spelled, special, strict=True) if not skip)
    spaces = [
        index
        for index in range(1, len(tokens))
        if not marks_words or special[index] or special[index - 1] or spelled[index].startswith(SPACE)
    ]
    return {
        "role": role,
        "tokens": list(tokens),
        "display": display_tokens(tokens),
        "words": [index for index, (_, positions) in enumerate(words) for _ in positions],
        "word_texts": [text for text, _ in words],
        "special": [index for index, skip in enumerate(special) if skip],
        "spaces": spaces,
    }


def qkv(layer: Layer) -> dict[str, Tensor]:
    """Query, key and, if it was recorded, value, each (heads, tokens, features); none of a dense layer."""
    if layer.is_dense:
        return {}
    request = layer.weights.detach().request
    tensors = {"query": request.query[0], "key": request.key[0]}
    return tensors if layer.value is None else {**tensors, "value": layer.value[0].detach()}


def plan_layers(recording: Recording) -> tuple[list[SketchPlan | None], int]:
    """How a page stores each layer, None for all weights; and the bytes of the queries, keys and values that it has."""
    plans, num_bytes = plan_sketches([layer.weights.shape for layer in recording.layers]), qkv_bytes(recording)
    computed = [plan and is_computable(layer) for plan, layer in zip(plans, recording.layers, strict=True)]
    if num_bytes > (MAX_LONG_QKV_BYTES if any(computed) else MAX_QKV_BYTES):
        return plans, 0
    plans = [
        SketchPlan(plan.block_size, top_k=0) if plan and is_computed else plan
        for plan, is_computed in zip(plans, computed, strict=True)
    ]
    return plans, num_bytes


def qkv_bytes(recording: Recording) -> int:
    """The bytes of all queries, keys and values as float32."""
    return sum(4 * part.numel() for layer in recording.layers for part in qkv(layer).values())


def qkv_shapes(tensors: dict[str, Tensor]) -> list[list[int]]:
    """The ``qkv`` field of a layer's header."""
    return [list(tensor.shape) for tensor in tensors.values()]


def qkv_arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as float32 arrays."""
    return {name: float_array(tensor) for name, tensor in tensors.items()}


def score_name(score: Score) -> str | None:
    """The name of a score function, such as ``Sinks of ScaledDotProduct``; None for the plain scaled dot product."""
    return None if isinstance(score, ScaledDotProduct) else _score_name(score)


def _score_name(score: Score) -> str:
    if isinstance(score, Sum):
        return f"{_score_name(score.left)} + {_score_name(score.right)}"
    inner = next((part for part in vars(score).values() if isinstance(part, Score)), None)
    return type(score).__name__ + (f" of {_score_name(inner)}" if inner is not None else "")


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


def check(recording: object, name: str = "recording") -> None:
    """Refuse what a page cannot show.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If there is no layer, or a batch of several sequences.
    """
    if not isinstance(recording, Recording):
        raise InvalidType(f"{name}: expected a Recording or the result of regard.watch, got {type(recording).__name__}")
    if not recording.layers:
        raise InvalidArgument(f"{name}: expected at least one layer, got none")
    require_one_sequence(recording.layers, name)


def check_pair(recording: Recording, compare_with: Recording) -> None:
    """Check that a second recording can be shown, and compared with the first.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If it cannot be shown, or none of its layers has the name or kind of one in the first.
    """
    check(compare_with, "compare_with")
    second = compare_with.layers
    if not any(layer.name in second or second.by_kind(layer.kind) for layer in recording.layers):
        kinds, others = (", ".join(sorted({layer.kind for layer in layers})) for layers in (recording.layers, second))
        raise InvalidArgument(
            f"compare_with: expected a layer with the name or kind ({kinds}) of one in the first recording, "
            f"got {others}"
        )


def _check_range(layer: Layer, weights: Tensor, name: str) -> list[str]:
    low, high = weights.min().item(), weights.max().item()
    # A comparison with NaN is false, so NaN is an error as well.
    if low >= -WEIGHT_TOLERANCE and high <= 1 + WEIGHT_TOLERANCE:
        return []
    where = "" if name == "recording" else f"{name}: "
    return [
        f"{where}layer {short_repr(layer.name)}: expected weights from 0 to 1, got values from {low:.4g} to {high:.4g}"
    ]
