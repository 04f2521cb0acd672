"""What a recording has to be, whoever made it: a hand, a file or this library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regard.analysis.picture import picture_objections
from regard.analysis.recording import KINDS, Layer, Recording
from regard.errors import InvalidType, raise_problems
from regard.ops.weight_matrix import WeightMatrix


def check(recording: Recording) -> None:
    """Refuse a recording of which something is of another type, or does not fit the rest.

    Raises:
        InvalidType: With all that is of another type.
        InvalidArgument: Else, with all that does not fit.
    """
    raise_problems(_type_objections(recording), InvalidType)
    names = [layer.name for layer in recording.layers]
    repeated = [
        f"recording: expected every layer to have a name of its own, got {name!r} {names.count(name)} times"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    fitting = [objection for layer in recording.layers for objection in _layer_objections(layer)]
    raise_problems(picture_objections(recording.picture) + repeated + fitting)


def check_texts(recording: Recording) -> None:
    """Refuse a title, a name of a model or texts that are none.

    Raises:
        InvalidType: With all that are none.
    """
    raise_problems(_text_objections(recording), InvalidType)


def _text_objections(recording: Recording) -> list[str]:
    texts = recording.texts if isinstance(recording.texts, Mapping) else {}
    told = [("title", recording.title), ("model", recording.model), *texts.items()]
    return [
        *(f"{name}: expected a text, got {text!r:.80}" for name, text in told if not isinstance(text, str)),
        *(f"texts: expected a text as the role, got {role!r:.80}" for role in texts if not isinstance(role, str)),
        *([] if texts is recording.texts else [f"texts: expected texts by role, got {recording.texts!r:.80}"]),
    ]


def _type_objections(recording: Any) -> list[str]:
    if not isinstance(recording, Recording):
        kind = type(recording).__name__
        return [f"recording: expected a Recording, as seen.recording() and regard.load(path) give it, got {kind}"]
    objections = _text_objections(recording)
    if not _is_sequence(recording.layers):
        return [*objections, f"layers: expected a tuple of Layer, got {recording.layers!r:.80}"]
    for number, layer in enumerate(recording.layers):
        if not isinstance(layer, Layer):
            objections.append(f"layers: expected a Layer as number {number}, got {layer!r:.80}")
            continue
        numbers = layer.heads
        wanted = {
            "name": (isinstance(layer.name, str), "a text"),
            "weights": (isinstance(layer.weights, WeightMatrix), "a view, as regard.weights(query, key) gives it"),
            "queries": (_are(str, layer.queries), "a tuple of texts"),
            "keys": (_are(str, layer.keys), "a tuple of texts"),
            "measured": (isinstance(layer.measured, Mapping), "measures by name"),
            "value": (layer.value is None or isinstance(layer.value, torch.Tensor), "a tensor, or None"),
            "heads": (
                numbers is None or (_is_sequence(numbers) and _are(int, tuple(numbers))),
                "a tuple of int, or None",
            ),
        }
        objections += [
            f"layer {layer.name!r:.80}: {name}: expected {expected}, got {_short(getattr(layer, name))}"
            for name, (fits, expected) in wanted.items()
            if not fits
        ]
    return objections


def _layer_objections(layer: Layer) -> list[str]:
    """Say what of a layer does not fit the rest of it."""
    shape, tokens = tuple(layer.weights.shape), (len(layer.queries), len(layer.keys))
    objections = []
    if layer.kind not in KINDS:
        objections.append(f"kind: expected one of {', '.join(KINDS)}, got {layer.kind!r:.80}")
    if len(shape) != 4 or shape[0] != 1 or shape[2:] != tokens:
        objections.append(
            f"expected weights (1, heads, {tokens[0]}, {tokens[1]}), a row for each query token and a column for each "
            f"key token, got {shape}"
        )
    elif layer.value is not None and not _is_value(layer.value, *shape[1::2]):
        objections.append(
            f"value: expected floats of shape (1, kv_heads, {shape[3]}, value_dim), where kv_heads divide {shape[1]}, "
            f"got {layer.value.dtype} of {tuple(layer.value.shape)}"
        )
    numbers = layer.head_numbers
    if len(shape) == 4 and (
        len(set(numbers)) != len(numbers) or len(numbers) != shape[1] or min(numbers, default=0) < 0
    ):
        objections.append(
            f"heads: expected {shape[1]} different numbers from 0, one for each head, got {numbers!r:.80}"
        )
    return [f"layer {layer.name!r}: {objection}" for objection in objections]


def _is_value(value: torch.Tensor, heads: int, keys: int) -> bool:
    shape = value.shape
    if len(shape) != 4 or not value.is_floating_point():
        return False
    return shape[0] == 1 and shape[1] > 0 and heads % shape[1] == 0 and shape[2] == keys


def _short(came: Any) -> str:
    return f"a tensor {tuple(came.shape)}" if isinstance(came, torch.Tensor) else f"{came!r:.80}"


def _are(kind: type, several: Any) -> bool:
    return isinstance(several, tuple) and all(isinstance(each, kind) for each in several)


def _is_sequence(several: Any) -> bool:
    return isinstance(several, Sequence) and not isinstance(several, (str, bytes))
