"""XLNet: scores of contents, relative positions and segments, each with a bias of its own on the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.ops.scores import RelativeKey, ScaledDotProduct
from regard.watching.adapters.inputs import AttentionInputs


def xlnet(module: Any, arguments: Mapping[str, Any], output: Any) -> list[AttentionInputs]:
    """An adapter for `XLNetRelativeAttention`: the content stream and, if it runs, the query stream.

    With w, r, s for the biases of contents, positions and segments, the score of query q_i and key k_j is

        (q_i + w) · k_j + (q_i + r) · R[j − p_i] + (q_i + s) · E[segments differ]
        = (q_i + r) · k_j + (w − r) · k_j + (q_i + r) · R[j − p_i] + (q_i + s) · E[segments differ].

    The second term is a component of the keys, and the last one has a component per segment.
    """
    h, g, memory = arguments["h"], arguments["g"], arguments["mems"]
    context = h if memory is None or memory.dim() < 2 else torch.cat((memory, h))
    key, value = (_project(context, weight) for weight in (module.k, module.v))
    difference = ((module.r_w_bias - module.r_r_bias)[:, None] * key).sum(-1, keepdim=True)
    columns = [key, difference]
    same = arguments["seg_mat"]
    segments = None if same is None else _segments(same[..., 0] > 0)
    if segments is not None:
        of_keys = segments[:, None].to(key.dtype).expand(-1, key.shape[1], -1, -1)
        columns += [torch.ones_like(difference), of_keys]
    key = torch.cat(columns, -1)
    table = _positions(module, arguments["r"], key.shape[-1], context.shape[0])
    of_queries = arguments["attn_mask_g"]
    valid = None if of_queries is None else _allowed(of_queries)[:, 0].any(1)[:, -len(h) :].expand(h.shape[1], -1)
    streams = [(_project(h, module.q), arguments["attn_mask_h"])]
    if g is not None:
        mapping, query = arguments["target_mapping"], _project(g, module.q)
        query = query if mapping is None else torch.einsum("bnmd,mlb->bnld", query, mapping)
        streams.append((query, of_queries))
    return [
        AttentionInputs(
            query=_query(module, query, segments),
            key=key,
            mask=None if mask is None else _allowed(mask),
            score=ScaledDotProduct() + RelativeKey(table),
            scale=module.scale,
            value=value,
            valid_queries=valid,
        )
        for query, mask in streams
    ]


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """(tokens, batch, width) to (batch, heads, tokens, head_dim)."""
    return torch.einsum("ibh,hnd->bnid", x.to(weight.dtype), weight)


def _query(module: Any, query: Tensor, segments: Tensor | None) -> Tensor:
    """The queries with the components that meet those of the keys."""
    with_bias = query + module.r_r_bias[:, None]
    columns = [with_bias, torch.ones_like(query[..., :1])]
    if segments is not None:
        same, other = ((query + module.r_s_bias[:, None]) @ module.seg_embed.permute(1, 2, 0)).split(1, -1)
        own = segments[:, None, -query.shape[2] :].to(query.dtype)
        columns += [other, (same - other) * own]
    return torch.cat(columns, -1)


def _segments(same: Tensor) -> Tensor:
    """Which segment each key is in, (batch, keys, segments) bool, of those that the queries are in.

    Args:
        same: (queries, keys, batch) Whether query and key are in one segment; the queries are the last keys.
    """
    first = same.to(torch.uint8).argmax(0).masked_fill(~same.any(0), -1).mT  # the first query of each key's segment
    return first[..., None] == first[:, -len(same) :].unique()


def _positions(module: Any, r: Tensor, width: int, keys: int) -> Tensor:
    """The table of `RelativeKey`, whose row for distance D is that of `r` at D + keys."""
    r = r[:, :1] if r.stride(1) == 0 else r
    table = _project(r, module.r)  # (batch or 1, heads, keys + queries, head_dim)
    table = table[:, :, : 2 * keys + 1]
    table = pad(table, (0, width - table.shape[-1], 0, 2 * keys + 1 - table.shape[2]))
    return table[0] if len(table) == 1 else table


def _allowed(mask: Tensor) -> Tensor:
    """(batch, 1, queries, keys) bool, from one (queries, keys, batch, 1) that is above 0 where a key is hidden."""
    return mask.permute(2, 3, 0, 1) <= 0
