"""What a softmax is over if not over keys: the values of each token, experts, heads or channels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Size, nn

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "num_head", "nb_heads", "h")
"""Attributes in which modules have their number of heads."""

EXPERT_COUNTS = ("num_experts", "n_experts", "num_local_experts", "n_routed_experts")
"""Attributes in which modules have their number of experts."""

GATES = re.compile("gate|router|routing|expert|moe(?![a-z])|mixture", re.IGNORECASE)
"""Names of modules that choose between experts."""


@dataclass(frozen=True)
class ProductAxes:
    """The axes of a product of a softmax and values.

    Args:
        sizes: The size of each axis of the weights.
        keys: The axis that is summed over.
        rows: Those that only the weights have.
        shared: Those that the values have, too.
        width: The number of entries that the values have for each key.
        features: What is known of each axis of the weights; see `feature_axes`.
        has_roles: Whether the scores are known to be a product of queries and keys.
        is_matrix: Whether the softmax has two axes.
    """

    sizes: Mapping[str, int]
    keys: str
    rows: Sequence[str]
    shared: Sequence[str]
    width: int
    features: Mapping[str, str]
    has_roles: bool
    is_matrix: bool


def is_gate(axes: ProductAxes, module: nn.Module, softmax_module: nn.Module, inputs: Sequence[Size]) -> bool:
    """Whether a product weighs experts, or values that each token has of its own, as a convolution does.

    Args:
        axes: Its axes.
        module: The module that computes it.
        softmax_module: The module that computed the softmax.
        inputs: The shapes of the inputs of the module that may hold states of tokens, (batch, ..., width).
    """
    if axes.has_roles:
        return False
    keys = axes.sizes[axes.keys]
    if softmax_module is not module and GATES.search(type(softmax_module).__name__):
        return True
    if count_of(module, EXPERT_COUNTS) == keys:
        return True
    if prod(axes.sizes[axis] for axis in axes.rows) > 1 or axes.features[axes.keys] == "t":
        return False
    is_feature = axes.features[axes.keys] == "f"  # attention by location has as many as there are tokens
    if is_feature and all(keys not in shape[1 if len(shape) > 2 else 0 : -1] for shape in inputs):
        return True
    if not inputs or len(inputs[0]) < 3:
        return False
    first = inputs[0]
    count, batch, tokens = head_count(module), first[0], prod(first[:-1])
    entries = prod(axes.sizes[axis] for axis in axes.shared)
    is_of_tokens = tokens > batch and (entries in (tokens, tokens * count) if count else entries % tokens == 0)
    has_one_query = entries in (batch, batch * count) if count else entries % batch == 0
    return is_of_tokens and (is_feature or not (has_one_query and keys in first[1:-1]))


def other_axis(axes: ProductAxes, module: nn.Module, inputs: Sequence[Size]) -> str:
    """Why a softmax is not over keys but over heads or channels; empty if it may be over keys.

    The features of the axes say it, if they are known; else their sizes.
    """
    count, keys, rows = head_count(module), axes.sizes[axes.keys], [axes.sizes[axis] for axis in axes.rows]
    features = {axes.features[axis] for axis in (axes.keys, *axes.rows)}
    if axes.rows and features == {"f"}:
        return "has a softmax over heads or channels, not over keys"
    if rows != [keys] or "t" in features:  # both are tokens if one is
        return ""
    if axes.is_matrix and not axes.shared and not axes.has_roles and keys == count:
        return "has a softmax over heads, not over keys"
    if not inputs or len(inputs[0]) < 3:
        return ""
    first = inputs[0]
    entries = prod(axes.sizes[axis] for axis in axes.shared)
    has_heads = any(axes.features[axis] == "f" for axis in axes.shared)
    if keys == count and keys > 1 and not has_heads and entries == prod(first[:-1]):
        if keys in first[1:-1]:
            return "has as many heads as tokens, so that its axes do not tell which of them its softmax is over"
        return "has a softmax over heads, not over keys"
    channels = {first[-1], first[1 if len(first) > 3 else -1]}  # of an image, the first axis after the batch
    tokens = {prod(first) // max(first[0] * count, 1) for count in channels}
    is_of_channels = (
        not channels.isdisjoint({keys, keys * (count or 1)}) and axes.width in tokens and keys not in tokens
    )
    return "has a softmax over channels, not over keys" if is_of_channels else ""


def head_count(module: nn.Module) -> int | None:
    """The number of heads that a module says that it has."""
    return count_of(module, HEAD_COUNTS)


def count_of(module: nn.Module, names: Sequence[str]) -> int | None:
    """The first of some attributes of a module that is a number."""
    for name in names:
        count = getattr(module, name, None)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    return None
