"""Which layers of a model read their own text, and which another."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from regard.analysis.recording import Kind

CROSS = re.compile(r"cross|encoder_?attn|enc_?dec", re.IGNORECASE)


def kind_of(name: str, module: nn.Module, inside: Sequence[nn.Module], is_causal: bool) -> Kind:
    """What a layer is, by where it stands and what it says of itself."""
    around = inside[-2] if len(inside) > 1 else None
    if isinstance(around, nn.TransformerDecoderLayer):
        return "cross" if module is around.multihead_attn else "decoder"
    if getattr(module, "is_cross_attention", False) or CROSS.search(name):
        return "cross"
    parts = name.lower().split(".")
    if any("decoder" in part for part in parts):
        return "decoder"
    if any("encoder" in part for part in parts):
        return "encoder"
    return "decoder" if getattr(module, "is_decoder", getattr(module, "is_causal", is_causal)) else "encoder"
