"""Which tokens of a text are padding, so that analyses leave them out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.ops import WeightMatrix
from regard.ops.masks import Mask, Spans
from regard.ops.masks.base import And
from regard.recordings.layer import Layer


def know_padding(weights: WeightMatrix, *, is_self: bool) -> WeightMatrix:
    """The same weights, whose `valid_queries` are known also where only a mask of keys says which tokens are padding.

    Args:
        weights: (batch, heads, queries, keys).
        is_self: Whether queries and keys are the same tokens, if there are as many of both.
    """
    _, _, queries, keys = weights.shape
    if weights.valid_queries is not None or not is_self or queries != keys:
        return weights
    allowed = [_keys_of_rows(weights, mask, slice(0, 1)) for mask in _parts(weights.request.mask) if _is_of_keys(mask)]
    if not allowed:
        return weights
    valid = torch.stack(allowed).all(0)
    return weights if bool(valid.all()) else WeightMatrix(weights.request, valid, weights.kernel)


def valid_queries(weights: WeightMatrix, *, is_self: bool) -> Bool[Tensor, "batch queries"]:
    """False where a query is padding."""
    valid = know_padding(weights, is_self=is_self).valid_queries
    if valid is None:
        return torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool, device=weights.device)
    return valid.to(weights.device)


def valid_keys(weights: WeightMatrix, *, is_self: bool) -> Bool[Tensor, "batch keys"]:
    """False where a key is padding; in cross-attention, and after a cache, that is a key that no query may attend to.

    Memory:
        O(keys), in one pass over the mask of cross-attention.
    """
    batch, _, queries, keys = weights.shape
    if is_self and queries == keys:
        return valid_queries(weights, is_self=True)
    mask = weights.request.mask
    valid = torch.ones(batch, keys, dtype=torch.bool, device=weights.device)
    if mask is None:
        return valid
    parts = list(weights.query_blocks()) if mask.depends_on_query else [slice(0, 1)]
    return valid & torch.stack([_keys_of_rows(weights, mask, rows) for rows in parts]).any(0)


def valid_rows_and_columns(layer: Layer) -> tuple[list[int], list[int]]:
    """The queries and the keys of a layer of one sequence that are not padding, in order."""
    weights, is_self = layer.weights, layer.kind != "cross"
    queries, keys = (find(weights, is_self=is_self)[0] for find in (valid_queries, valid_keys))
    return queries.nonzero().flatten().tolist(), keys.nonzero().flatten().tolist()


def _parts(mask: Mask | None) -> Iterator[Mask]:
    """The masks all of which must allow a cell."""
    if isinstance(mask, And):
        yield from (*_parts(mask.left), *_parts(mask.right))
    elif mask is not None:
        yield mask


def _is_of_keys(mask: Mask) -> bool:
    """Whether a mask allows the same keys to all queries."""
    if isinstance(mask, Spans):
        return all(bool((side == side[:, :, :1]).all()) for side in (mask.starts, mask.stops))
    return not mask.depends_on_query


def _keys_of_rows(weights: WeightMatrix, mask: Mask, rows: slice) -> Bool[Tensor, "batch keys"]:
    """The keys that a mask allows to some of these rows, in some head."""
    request = weights.request
    batch, heads, _, keys = weights.shape
    allowed = mask.allowed(request.tile(slice(0, batch), slice(0, heads), rows))
    return allowed.expand(batch, heads, rows.stop - rows.start, keys).flatten(1, 2).any(1)
