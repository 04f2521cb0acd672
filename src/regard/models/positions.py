"""Positions by one word: what a model adds to its embeddings, and what its self-attention is told of distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from regard.checks import Checks
from regard.models.config import Range
from regard.nn.attention import check_heads
from regard.nn.attention_positions import (
    AlibiPositions,
    AttentionPositions,
    BucketPositions,
    RelativePositions,
    RotaryPositions,
    rotary_frequencies,
)
from regard.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions
from regard.ops.scores.bias import MAX_DISTANCE

Positions = Literal["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "none"]
"""Added to embeddings: ``sinusoidal`` (Vaswani 2017), ``learned``. In self-attention: ``relative`` (Shaw 2018),
``rotary`` (Su 2021), ``alibi`` (Press 2022), ``t5`` (Raffel 2020). ``none``: a decoder can still tell by its mask."""

IN_ATTENTION: tuple[Positions, ...] = ("relative", "rotary", "alibi", "t5")
FARTHEST = {"relative": 16, "t5": 128}  # distances beyond are one, where the configuration does not say
# Of the 32 buckets of T5 8 in each of two directions hold one distance; in one direction 16.
DISTANCES = {"relative": Range(0), "t5": Range(17, MAX_DISTANCE)}


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


def check_layers(checks: Checks, config: Any, num_kv_heads: int | None = None, head_dim: int | None = None) -> None:
    """Check heads and positions of a configuration, if its fields have no problem yet."""
    if not checks.problems:
        check_heads(checks, config.d_model, config.num_heads, num_kv_heads, head_dim)
    if checks.problems:
        return
    width = config.d_model // config.num_heads if head_dim is None else head_dim
    positions, distance = config.positions, config.max_distance
    if positions == "sinusoidal" and config.d_model % 2:
        checks.fail(f"d_model: expected an even number for sinusoidal positions, got {config.d_model}")
    if positions == "rotary" and width % 2:
        checks.fail(f"positions: expected an even head_dim for 'rotary', got {width}; change d_model or num_heads")
    if distance is not None and positions not in DISTANCES:
        checks.fail(f"max_distance: expected None for {positions} positions, got {distance}; leave it out")
    elif distance is not None and distance not in DISTANCES[positions]:
        checks.fail(f"max_distance: expected an int {DISTANCES[positions]} for {positions} positions, got {distance}")


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
