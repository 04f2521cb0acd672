"""MPNet: a bias for each distance, which the model passes to its layers for each cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.ops.scores import ScaledDotProduct, T5RelativeBias
from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import back_through, split_heads


def mpnet(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `MPNetSelfAttention`."""
    hidden, heads, bias = arguments["hidden_states"], module.num_attention_heads, arguments["position_bias"]
    query, key, value = (split_heads(each(hidden), heads) for each in (module.q, module.k, module.v))
    return AttentionInputs(
        query=query,
        key=key,
        mask=arguments["attention_mask"],
        score=None if bias is None else ScaledDotProduct() + _by_distance(bias[0]),
        value=value,
        to_heads=back_through(module.o, heads),
    )


def _by_distance(bias: Tensor) -> T5RelativeBias:
    """A bias (heads, tokens, tokens) that depends on the distance alone: each has a bucket of its own."""
    tokens = bias.shape[1]
    before, after = bias[:, :, 0].mT, bias[:, 0].mT  # (tokens, heads): keys 0, 1, ... tokens before and after
    unused = torch.zeros_like(before)
    return T5RelativeBias(torch.cat((before, unused, after, unused)), max_distance=tokens + 1)
