"""BLOOM: linear biases that depend on the key alone, added to the scaled dot product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads, with_cache


def bloom(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `BloomAttention`.

    The bias is slope * j for key j, which softmax cannot tell from Alibi's −slope * (i − j). As one more component of
    the keys it takes no memory of its own, and is right for any padding.
    """
    heads, fused = module.num_heads, module.query_key_value(arguments["hidden_states"])
    query, key, value = (split_heads(fused, heads).unflatten(-1, (3, -1))[..., part, :] for part in range(3))
    key, value = with_cache(arguments, module.layer_idx, key, value)
    bias = arguments["alibi"].view(len(key), heads, key.shape[2], 1)
    query = query * module.inv_norm_factor
    return AttentionInputs(
        query=torch.cat((query, torch.ones_like(query[..., :1])), -1),
        key=torch.cat((key, bias.to(key.dtype)), -1),
        mask=arguments["attention_mask"],
        scale=1.0,
        value=value,
        to_heads=back_through(module.dense, heads, module.hidden_dropout),
    )
