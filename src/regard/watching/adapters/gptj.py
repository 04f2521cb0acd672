"""GPT-J: rotary positions on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.ops.rotary import rotate
from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads, with_cache


def gptj(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `GPTJAttention`."""
    hidden, heads = arguments["hidden_states"], module.num_attention_heads
    query, key, value = (split_heads(each(hidden), heads) for each in (module.q_proj, module.k_proj, module.v_proj))
    angles = module.embed_positions[arguments["position_ids"]][:, None].to(query.dtype)
    sin, cos = angles.chunk(2, -1)
    query, key = (rotate(each, cos, sin, interleaved=True) for each in (query, key))
    key, value = with_cache(arguments, module.layer_idx, key, value)
    to_heads = back_through(module.out_proj, heads, module.resid_dropout.p)
    return AttentionInputs(query=query, key=key, mask=arguments["attention_mask"], value=value, to_heads=to_heads)
