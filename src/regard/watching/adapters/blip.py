"""BLIP's image encoder; `bert` serves its text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads


def blip(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `BlipAttention`."""
    parts = module.qkv(arguments["hidden_states"]).chunk(3, -1)
    query, key, value = (split_heads(part, module.num_heads) for part in parts)
    to_heads = back_through(module.projection, module.num_heads)
    return AttentionInputs(query=query, key=key, scale=module.scale, value=value, to_heads=to_heads)
