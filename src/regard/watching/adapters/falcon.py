"""Falcon with dense attention: rotary positions, or linear biases that depend on the key alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from regard.ops.rotary import rotate
from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, with_cache


def falcon(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `FalconAttention`, where it does not call torch's attention."""
    alibi = arguments["alibi"]
    parts = module._split_heads(module.query_key_value(arguments["hidden_states"]))
    query, key, value = (part.transpose(1, 2) for part in parts)
    if alibi is None:
        cos, sin = (each[:, None, :, : each.shape[-1] // 2] for each in arguments["position_embeddings"])
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    key, value = with_cache(arguments, module.layer_idx, key, value)
    mask = arguments["attention_mask"]
    if mask.dtype == torch.bool:  # with "sdpa" and output_attentions=True the model adds it to the scores as it is
        mask = mask.to(query.dtype)
    if alibi is not None:  # as one more component of the keys it takes no memory of its own
        bias = alibi.view(len(key), module.num_heads, key.shape[2], 1)
        in_mask = mask.amax(-2)[..., None]  # the model adds it to the mask, too: the same in each row that is allowed
        lowest = torch.finfo(mask.dtype).min / 2
        bias = bias + in_mask.masked_fill(in_mask < lowest, 0) / module.inv_norm_factor
        query = torch.cat((query, torch.ones_like(query[..., :1])), -1)
        key = torch.cat((key.expand(-1, module.num_heads, -1, -1), bias.to(key.dtype)), -1)
        mask = mask[:, :1] > lowest
    return AttentionInputs(
        query=query,
        key=key,
        mask=mask,
        scale=module.inv_norm_factor,
        value=value,
        to_heads=back_through(module.dense, module.num_heads),
    )
