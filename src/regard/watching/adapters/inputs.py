"""AttentionInputs: what an adapter says about the attention that a module computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.ops.masks import MaskLike
from regard.ops.scores import Score


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionInputs:
    """What the weights of a module follow from: P = softmax(mask(score(query, key))), as in `regard.weights`.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim), with those of a KV cache.
        mask: Which keys each query may attend to: a rule such as `regard.Causal()`, or a tensor broadcastable to
            (batch, heads, queries, keys), bool (True: may attend) or added to the scores. Pass a mask that
            transformers made as it is: the watch knows its padding and positions. Of a list of masks, all must allow a
            key. Default: all keys.
        score: Default: the scaled dot product.
        scale: Factor of the raw scores. Default: that of the score, 1/√head_dim for the dot product.
        offset: Query i has position i + offset among the keys. With it, a forward pass that continues the keys of the
            last one adds rows to the same matrix, as a step of a generation does. Default: what a mask of transformers
            says, else the queries are the last keys, and each forward pass is a matrix of its own.
        value: (batch, kv_heads, keys, value_dim), for `keep_values` and `weight_gradients`.
        to_heads: Turns the gradient of the module's output (of its first tensor) into that of the outputs of its heads,
            (batch, heads, queries, value_dim), for `weight_gradients`. For an output projection that is
            ``lambda gradient: (gradient @ module.out_proj.weight).unflatten(-1, (heads, -1)).transpose(1, 2)``.
        valid_queries: (batch, queries) False where a query is padding. Default: what a mask of transformers says.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    mask: MaskLike | Sequence[MaskLike] | None = None
    score: Score | str | None = None
    scale: float | None = None
    offset: int | None = None
    value: Float[Tensor, "batch kv_heads keys value_dim"] | None = None
    to_heads: Callable[[Tensor], Tensor] | None = None
    valid_queries: Bool[Tensor, "batch queries"] | None = None


Adapter = Callable[[Any, Mapping[str, Any], Any], AttentionInputs | Sequence[AttentionInputs]]
"""A function of a module, the arguments of its forward by name, and its output. Several results are several layers."""

Adapters = Mapping[type[nn.Module], Adapter]
"""Adapters by the class of the modules that they are for."""
