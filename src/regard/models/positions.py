"""Positions by one word: what a model adds to its embeddings, and what its self-attention is told of distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import nn

from regard.nn.attention_positions import (
    AlibiPositions,
    AttentionPositions,
    BucketPositions,
    RelativePositions,
    RotaryPositions,
    rotary_frequencies,
)
from regard.nn.feed_forward import choice_objections
from regard.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from regard.ops.scores.bias import MAX_DISTANCE

Positions = Literal["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "none"]
"""Added to embeddings: ``sinusoidal`` (Vaswani 2017), ``learned``. In self-attention: ``relative`` (Shaw 2018),
``rotary`` (Su 2021), ``alibi`` (Press 2022), ``t5`` (Raffel 2020). ``none``: a decoder can still tell by its mask."""

IN_ATTENTION: tuple[Positions, ...] = ("relative", "rotary", "alibi", "t5")
FARTHEST = {"relative": 16, "t5": 128}  # distances beyond are one, where the configuration does not say


def embedding_positions(
    positions: Positions, d_model: int, max_length: int, *, interleaved: bool = True
) -> SinusoidalPositions | LearnedPositions | NoPositions:
    """What is added to embeddings."""
    if positions == "learned":
        return LearnedPositions(d_model, max_length)
    return SinusoidalPositions(d_model, interleaved=interleaved) if positions == "sinusoidal" else NoPositions()


def attention_positions(
    positions: Positions,
    layers: int,
    *,
    num_heads: int,
    head_dim: int,
    causal: bool,
    max_distance: int | None = None,
    rotary_base: float = 10000.0,
    rotary_scaling: Mapping[str, float] | None = None,
) -> Sequence[AttentionPositions | None]:
    """What the self-attention of each layer of a stack is told of distances.

    Every layer has relative vectors of its own, as in the paper; what all layers have in common is one module.
    """
    farthest = FARTHEST.get(positions, 0) if max_distance is None else max_distance
    if positions == "relative":
        return [RelativePositions(head_dim, farthest) for _ in range(layers)]
    if positions == "rotary":
        frequencies = rotary_frequencies(head_dim, rotary_base)
        return [RotaryPositions(slowed(frequencies, rotary_scaling or {}))] * layers
    if positions == "alibi":
        return [AlibiPositions(num_heads)] * layers
    if positions == "t5":
        return [BucketPositions(num_heads, bidirectional=not causal, max_distance=farthest)] * layers
    return [None] * layers


def slowed(frequencies: Sequence[float], scaling: Mapping[str, float]) -> list[float]:
    """Frequencies for sequences longer than those of a model's first training.

    All are divided by ``factor``; where there are further keys, those with a period below original / high stay, those
    with one above original / low are divided, and between both bounds it goes over linearly.

    Reference: Grattafiori et al. 2024, "The Llama 3 herd of models"; the rule is that of its code.

    Example:
        >>> slowed([1.0, 0.01], {"factor": 4.0})
        [0.25, 0.0025]
    """
    factor = scaling.get("factor", 1.0)
    if "low_freq_factor" not in scaling:
        return [frequency / factor for frequency in frequencies]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    found = []
    for frequency in frequencies:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)  # the share of the frequency as it was
        found.append((1 - kept) * frequency / factor + kept * frequency)
    return found


def position_objections(positions: str, *, d_model: int, head_dim: int, max_distance: int | None) -> list[str]:
    """Say what is wrong with a word for positions beside the sizes of a model."""
    objections = choice_objections("positions", positions, get_args(Positions))
    if objections:
        return objections
    if positions == "sinusoidal" and d_model % 2:
        objections.append(f"d_model must be even for sinusoidal positions, but is {d_model}")
    if positions == "rotary" and head_dim % 2:
        objections.append(f"the width of a head must be even for rotary positions, but is {head_dim}")
    least = {"relative": 0, "t5": 17}.get(positions)  # of 32 buckets in two directions 8 hold one distance; of 32, 16
    if max_distance is not None and least is None:
        takers = " and ".join(map(repr, FARTHEST))
        objections.append(f"max_distance is for the positions {takers}, but they are {positions!r}: leave it out")
    elif max_distance is not None and least is not None and max_distance < least:
        objections.append(f"max_distance must be at least {least} for {positions} positions, but is {max_distance}")
    elif max_distance is not None and positions == "t5" and max_distance > MAX_DISTANCE:
        objections.append(f"max_distance must be at most {MAX_DISTANCE} for t5 positions, but is {max_distance}")
    return objections


def reset_attention_positions(model: nn.Module) -> None:
    """Draw the learned positions in self-attention anew, as their classes describe."""
    for module in model.modules():
        if isinstance(module, (RelativePositions, BucketPositions)):
            module.reset_parameters()


def computed_tables(model: nn.Module) -> None:
    """Compute the tables that are not stored, on the CPU, in a model that was built without memory."""
    with torch.device("cpu"):
        for module in model.modules():
            if isinstance(module, (SinusoidalPositions, RotaryPositions, AlibiPositions)):
                module.reset_table()
