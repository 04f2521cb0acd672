"""Copies of BERT's attention that compute it densely, in encoders and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import split_heads, with_cache


def bert(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for classes with projections called query, key and value, whose output is that of their heads."""
    hidden, heads = arguments["hidden_states"], module.num_attention_heads
    encoded = arguments.get("encoder_hidden_states")
    is_cross, mask = encoded is not None, arguments["attention_mask"]
    if is_cross and "encoder_attention_mask" in arguments:
        mask = arguments["encoder_attention_mask"]
    query = split_heads(module.query(hidden), heads)
    key, value = (split_heads(each(encoded if is_cross else hidden), heads) for each in (module.key, module.value))
    if hasattr(module, "layer_idx"):  # of decoders
        key, value = with_cache(arguments, module.layer_idx, key, value, is_cross=is_cross)
    return AttentionInputs(
        query=query, key=key, mask=mask, value=value, to_heads=lambda gradient: split_heads(gradient, heads)
    )
