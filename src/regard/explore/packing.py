"""A recording as data for the page: one small object of metadata and one binary block of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from regard.errors import refuse

if TYPE_CHECKING:
    from regard.analysis.recording import Layer, Recording

FORMAT = 2
STEPS = 65_534
"""Weights are stored as whole multiples of 1 / STEPS in 16 bits."""
MASKED = 65_535
"""What is stored in place of a weight where the mask forbids one."""
MAX_WEIGHTS = 32_000_000
"""A page that holds every weight is refused beyond this number of them: 64 MB of data, 85 MB of file."""
ROUNDING = 1e-3
"""How far a weight may lie outside [0, 1] and still count as rounding in the model's own precision."""


def pack(recording: Recording) -> tuple[dict[str, Any], bytes]:
    """Pack a recording into metadata, which JSON can hold, and the bytes of its weights.

    Each weight w is stored as round(65534 w), a little-endian unsigned 16-bit integer, and read back as that number
    divided by 65534, so that what is read is within 1 / 131068 (0.0000077) of what was computed. Where the mask lets
    a query see no key, 65535 is stored: no weight is that large. The weights lie layer by layer in the order
    (heads, queries, keys).

    Args:
        recording: At least one layer, each (1, heads, queries, keys) with a token for each row and column.

    Returns:
        The metadata (``format``, ``title``, ``model``, ``texts``, ``steps``, ``masked``, ``error``, ``sequences``,
        ``layers``) and the bytes. A layer names its tokens by their place in ``sequences``, and its weights by the
        place of the first.

    Raises:
        InvalidArgument: If there is no layer, names repeat, tokens and shapes do not fit, or weights are not weights.

    Memory:
        One layer's dense weights and scores at a time, and two bytes a weight in all.

    Example:
        >>> import regard, torch
        >>> from regard.analysis.recording import Layer, Recording
        >>> weights = regard.weights(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 2, 64))
        >>> layer = Layer("encoder.0", "encoder", weights, ("a",), ("b", "c"))
        >>> header, data = pack(Recording("a title", "a model", (layer,)))
        >>> header["layers"][0]["heads"], len(data)
        (8, 32)
    """
    _check_shapes(recording)
    sequences: dict[tuple[str, tuple[str, ...]], int] = {}
    layers, blocks, first, objections = [], [], 0, []
    for layer in recording.layers:
        weights = layer.weights.dense()[0].detach().to("cpu", torch.float32)  # (heads, queries, keys)
        objections += _outside(layer, weights)
        masked = layer.weights.scores.dense()[0].detach().to("cpu") == -torch.inf
        blocks.append(_quantised(weights, masked))
        layers.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "heads": weights.shape[0],
                "queries": sequences.setdefault((_query_role(layer), layer.queries), len(sequences)),
                "keys": sequences.setdefault((_key_role(layer), layer.keys), len(sequences)),
                "first": first,
            }
        )
        first += weights.numel()
    refuse(objections)
    header = {
        "format": FORMAT,
        "title": recording.title,
        "model": recording.model,
        "texts": dict(recording.texts),
        "steps": STEPS,
        "masked": MASKED,
        "error": 0.5 / STEPS,
        "sequences": [{"role": role, "tokens": list(tokens)} for role, tokens in sequences],
        "layers": layers,
    }
    return header, b"".join(blocks)


def _quantised(weights: torch.Tensor, masked: torch.Tensor) -> bytes:
    """Round weights to multiples of 1 / STEPS; what is not a number was already objected to."""
    steps = weights.nan_to_num(0.0).clamp(0.0, 1.0).mul(STEPS).round_()
    return steps.to(torch.int32).masked_fill_(masked, MASKED).numpy().astype("<u2").tobytes()


def _reads_itself(layer: Layer) -> bool:
    """Whether a layer's rows and columns are one text: in an encoder, and where a decoder reads what is given."""
    return layer.kind == "encoder" or (layer.kind == "decoder" and layer.queries == layer.keys)


def _query_role(layer: Layer) -> str:
    return "source" if _reads_itself(layer) else "written"


def _key_role(layer: Layer) -> str:
    return "read" if layer.kind == "decoder" and not _reads_itself(layer) else "source"


def _check_shapes(recording: Recording) -> None:
    """Collect everything about names, shapes and size that a page could not show."""
    objections = [] if recording.layers else ["recording: expected at least one layer, got none"]
    names = [layer.name for layer in recording.layers]
    for name in sorted({name for name in names if names.count(name) > 1}):
        objections.append(
            f"recording: expected every layer to have a name of its own, got {name!r} {names.count(name)} times"
        )
    for layer in recording.layers:
        shape, tokens = tuple(layer.weights.shape), (len(layer.queries), len(layer.keys))
        if len(shape) != 4 or shape[0] != 1 or shape[2:] != tokens or 0 in shape:
            objections.append(
                f"layer {layer.name!r}: expected weights (1, heads, {tokens[0]}, {tokens[1]}), a row for each query "
                f"token and a column for each key token, none of them zero, got {shape}"
            )
    total = sum(torch.Size(layer.weights.shape).numel() for layer in recording.layers)
    if total > MAX_WEIGHTS:
        objections.append(
            f"recording: expected at most {MAX_WEIGHTS:,} weights in one page, got {total:,}; "
            "record fewer tokens or layers"
        )
    refuse(objections)


def _outside(layer: Layer, weights: torch.Tensor) -> list[str]:
    low, high = weights.min().item(), weights.max().item()
    # A comparison with NaN is false, so NaN is objected to as well.
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return []
    return [f"layer {layer.name!r}: expected weights from 0 to 1, got values from {low:.4g} to {high:.4g}"]
