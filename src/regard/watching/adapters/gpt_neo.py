"""GPT-Neo: global and local layers, whose scores are not scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads, with_cache


def gpt_neo(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `GPTNeoSelfAttention`."""
    hidden, heads, mask = arguments["hidden_states"], module.num_heads, arguments["attention_mask"]
    query, key, value = (split_heads(each(hidden), heads) for each in (module.q_proj, module.k_proj, module.v_proj))
    key, value = with_cache(arguments, module.layer_id, key, value)
    if mask is None or module.attention_type == "local":
        queries, keys = query.shape[2], key.shape[2]
        of_layer = module.bias[:, :, keys - queries : keys, :keys]
        mask = of_layer if mask is None else [mask, of_layer]
    to_heads = back_through(module.out_proj, heads, module.resid_dropout.p)
    return AttentionInputs(query=query, key=key, mask=mask, scale=1.0, value=value, to_heads=to_heads)
