"""Which layers of a model read their own text, and which another."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from regard.analysis.recording import Kind

CROSS = re.compile(r"cross_?att|encoder_?attn|enc_?dec_?att|encoder_decoder_?att", re.IGNORECASE)
SELF = re.compile(r"self_?att", re.IGNORECASE)


def kind_of(name: str, module: nn.Module, inside: Sequence[nn.Module], is_causal: bool) -> Kind:
    """What a layer is, by where it stands and what it says of itself."""
    around = inside[-2] if len(inside) > 1 else None
    if isinstance(around, nn.TransformerDecoderLayer):
        return "cross" if module is around.multihead_attn else "decoder"
    parts = name.lower().split(".")
    own = [part for part in parts if not part.isdigit()][-2:]  # its own name and its parent's, but not its model's
    is_named_cross = any(map(CROSS.search, own)) and not SELF.search(own[-1])
    if getattr(module, "is_cross_attention", False) or is_named_cross:
        return "cross"
    if getattr(module, "is_decoder", False) or any("decoder" in part for part in parts):
        return "decoder"
    if any("encoder" in part for part in parts):
        return "encoder"
    return "decoder" if getattr(module, "is_decoder", getattr(module, "is_causal", is_causal)) else "encoder"
