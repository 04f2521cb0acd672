"""What several adapters need: keys of a cache, and the way back through an output projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from regard.errors import InvalidArgument

READABLE_CACHES = ("DynamicLayer", "StaticLayer")
"""Layers of transformers' caches that hold what attention was computed with."""


CACHES = ("layer_past", "past_key_values", "cache")
"""Names of the argument that is a KV cache, by version and model."""


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """(..., tokens, heads * width) as (..., heads, tokens, width)."""
    return tensor.unflatten(-1, (heads, -1)).transpose(-3, -2)


def with_cache(
    arguments: Mapping[str, Any], index: int, key: Tensor, value: Tensor, *, is_cross: bool = False
) -> tuple[Tensor, Tensor]:
    """Keys and values of a call together with those of its cache, which the call has added its own to.

    Args:
        arguments: Those of the forward, among them a cache of transformers, or None.
        index: Of the layer in the cache.
        key: (batch, kv_heads, queries, head_dim) Of this call.
        value: (batch, kv_heads, queries, value_dim) Of this call.
        is_cross: Whether it is cross-attention, whose keys a cache of both kinds has apart.

    Raises:
        InvalidArgument: If the cache does not keep keys as they were used, such as a quantized one, or there is no
            argument for one, as in a version of transformers that calls it something else.
    """
    passed = [arguments[name] for name in CACHES if name in arguments]
    if not passed:
        raise InvalidArgument(
            f"the forward has no argument for a KV cache among {', '.join(CACHES)}; this version of transformers is "
            "not supported"
        )
    cache = next((each for each in passed if each is not None), None)
    if cache is None:
        return key, value
    if hasattr(cache, "cross_attention_cache"):
        cache = cache.cross_attention_cache if is_cross else cache.self_attention_cache
    layer = cache.layers[index]
    kind = type(layer).__name__
    if kind not in READABLE_CACHES:
        raise InvalidArgument(
            f"a cache with a {kind} does not keep the keys that attention was computed with; use a DynamicCache or a "
            "StaticCache"
        )
    return layer.keys, layer.values


def back_through(projection: nn.Module, heads: int, dropout: float = 0.0) -> Callable[[Tensor], Tensor] | None:
    """`AttentionInputs.to_heads` of a module whose output is that of its heads after a linear layer.

    Args:
        projection: The linear layer.
        heads: Number of heads.
        dropout: The probability of a dropout after it.

    Returns:
        None if it is something else, or a dropout was applied whose choice is not known.
    """
    if not isinstance(projection, nn.Linear) or not projection.weight.is_floating_point():
        return None
    if dropout > 0 and projection.training:
        return None
    return lambda gradient: split_heads(gradient @ projection.weight.detach().to(gradient.dtype), heads)
