"""Two texts that share words, and what a page of both has stored."""

from __future__ import annotations

import torch

import regard
from explore.opened import layer_of
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore.codes import decode, encode

ONE = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
OTHER = ("▁The", "▁old", "▁animal", "▁was", "▁too", "▁wide", ".", "</s>")
PAIRS = [(0, 0), (1, 2), (2, 3), (3, 4), (6, 6), (7, 7)]


def encoder_of(tokens, seed=0, heads=3, layers=2, title="A title", name="encoder.{}", mask=None) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(layers):
        query, key = (3 * torch.randn(1, heads, len(tokens), 8, generator=generator) for _ in range(2))
        made.append(Layer(name.format(index), "encoder", regard.weights(query, key, mask=mask), tokens, tokens))
    return Recording(title, f"model {seed}", tuple(made))


def stored(recording, name, head):
    """The weights as the page reads them."""
    return decode(encode(layer_of(recording, name).weights.dense()[0, head].float()).numpy())
