"""What a page shows of the gradients of weights: their codes, and the relevance that follows from them."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.relevance import relevance
from regard.errors import InvalidArgument
from regard.explore.page_format import byte_planes, float_array
from regard.ops import GradientMatrix
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

Shown = Literal["weights", "gradient", "gradient_times_weights"]
"""What is computed of a head, cell by cell."""
WITH_GRADIENT = tuple(show for show in get_args(Shown) if show != "weights")
GRADIENT_CODES = 2**15 - 1
"""A gradient is stored as the integers ``round(32767 * gradient / largest) + 32768``, with the largest of its head."""


def gradient_of(layer: Layer) -> GradientMatrix | None:
    """The gradient of a layer's weights; None if it has none, or not yet."""
    try:
        gradient = layer.weights.grad
    except InvalidArgument:  # a watch waits for the backward pass
        return None
    return None if gradient is None else gradient.detach()


def quantize_gradient(gradient: Float[Tensor, "heads queries keys"]) -> dict[str, np.ndarray]:
    """The codes as byte planes, and what one code of each head stands for."""
    cells = gradient.to("cpu", torch.float64)
    largest = cells.abs().amax((1, 2))
    unit = largest.where(largest > 0, 1.0) / GRADIENT_CODES
    codes = (cells / unit[:, None, None]).round().to(torch.int32) + GRADIENT_CODES + 1
    return {"gradient": byte_planes(codes, 2), "gradient_unit": float_array(unit)}


def relevance_maps(recording: Recording, is_dense: list[bool]) -> list[tuple[Tensor, list[int]]]:
    """The relevance of each part of a model, R or in self-attention R − I, and the indices of the part's layers.

    The parts are the self-attention between the same tokens, and cross-attention, whose relevance is that of the source
    for the tokens of the decoder. Parts whose layers are not stored whole, or for which relevance is not defined, have
    none.

    Args:
        recording: Of one sequence.
        is_dense: For each layer, whether the page has all of its weights.
    """
    parts: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for number, layer in enumerate(recording.layers):
        parts.setdefault((layer.kind, layer.query_tokens, layer.key_tokens), []).append(number)
    found = []
    for (kind, *_), numbers in parts.items():
        of_part = range(len(recording.layers)) if kind == "cross" else numbers
        if not all(is_dense[number] and gradient_of(recording.layers[number]) is not None for number in of_part):
            continue
        try:
            matrix = relevance([recording.layers[number] for number in of_part])[0]
        except InvalidArgument:
            continue
        identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) if kind != "cross" else 0.0
        found.append((matrix - identity, numbers))
    return found
