"""Two texts that share words, and their weights as a page has them."""

from __future__ import annotations

import numpy as np
import torch

import regard
from helpers.explore.page_reader import dequantize
from regard.explore.page_format import quantize
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

TOKENS_A = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
TOKENS_B = ("▁The", "▁old", "▁animal", "▁was", "▁too", "▁wide", ".", "</s>")
PAIRS = [(0, 0), (1, 2), (2, 3), (3, 4), (6, 6), (7, 7)]
"""The tokens that both have."""


def encoder_recording(tokens, seed=0, heads=3, layers=2, title="A title", name="encoder.{}", **options) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    recorded = []
    for index in range(layers):
        query, key = (3 * torch.randn(1, heads, len(tokens), 8, generator=generator) for _ in range(2))
        recorded.append(Layer(name.format(index), "encoder", regard.weights(query, key, **options), tokens, tokens))
    return Recording(title, f"model {seed}", tuple(recorded))


def exact_weights(recording, name, head) -> np.ndarray:
    """Weights that the page computes from query and key."""
    return recording.layers[name].weights.dense()[0, head].double().numpy()


def stored_weights(recording, name, head) -> np.ndarray:
    """Weights as they are in the page's blocks, from which maps are drawn."""
    return dequantize(quantize(recording.layers[name].weights.dense()[0, head]).numpy())
