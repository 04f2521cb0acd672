"""MPT: linear biases that depend on the key alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads, with_cache


def mpt(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `MptAttention`.

    The model counts the biases from the last key, so all of a row change from step to step by the same number, which
    softmax cannot tell. Here they count from the first key, and are one more component of the keys.
    """
    heads, clip, bias = module.n_heads, module.clip_qkv, arguments["position_bias"]
    fused = module.Wqkv(arguments["hidden_states"])
    fused = fused.clamp(-clip, clip) if clip else fused
    query, key, value = (split_heads(part, heads) for part in fused.chunk(3, -1))
    key, value = with_cache(arguments, module.layer_idx, key, value)
    query = query * module.softmax_scale
    if bias is not None:
        of_keys = bias[:, 0, -key.shape[2] :, None]  # (heads, keys, 1)
        of_keys = (of_keys - of_keys[:, :1]).to(key.dtype).expand(len(key), -1, -1, -1)
        query, key = torch.cat((query, torch.ones_like(query[..., :1])), -1), torch.cat((key, of_keys), -1)
    mask = arguments["attention_mask"]  # True where a key is hidden
    return AttentionInputs(
        query=query,
        key=key,
        mask=None if mask is None else ~mask,
        scale=1.0,
        value=value,
        to_heads=back_through(module.out_proj, heads),
    )
