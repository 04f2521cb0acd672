"""Copies of BART's attention that compute it densely, in encoders and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads, with_cache


def bart(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for classes with projections called q_proj, k_proj, v_proj and out_proj."""
    hidden, heads, encoded = arguments["hidden_states"], module.num_heads, arguments["key_value_states"]
    query = split_heads(module.q_proj(hidden), heads)
    context = hidden if encoded is None else encoded
    key, value = (split_heads(project(context), heads) for project in (module.k_proj, module.v_proj))
    key, value = with_cache(arguments, module.layer_idx, key, value, is_cross=encoded is not None)
    return AttentionInputs(
        query=query,
        key=key,
        mask=arguments["attention_mask"],
        scale=module.scaling,
        value=value,
        to_heads=back_through(module.out_proj, heads),
    )
