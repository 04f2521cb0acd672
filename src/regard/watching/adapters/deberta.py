"""DeBERTa: disentangled attention, which compares contents with contents and with relative positions, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.scores import RelativeKey, RelativeQuery, ScaledDotProduct, Score
from regard.watching.adapters.inputs import AttentionInputs
from regard.watching.adapters.shared import split_heads


def deberta(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `DisentangledSelfAttention` of the first version."""
    if module.head_logits_proj is not None or arguments["query_states"] is not None:
        what = "talking heads mix the scores" if module.head_logits_proj is not None else "query_states is passed"
        raise InvalidArgument(f"DisentangledSelfAttention: {what}, so its weights do not follow from query and key")
    heads, positions = module.num_attention_heads, arguments["relative_pos"]
    fused = split_heads(module.in_proj(arguments["hidden_states"]), heads)
    query, key, value = fused.chunk(3, -1)
    query, value = (part + bias.view(heads, 1, -1) for part, bias in ((query, module.q_bias), (value, module.v_bias)))
    embeddings, num_terms, on_keys, on_queries = arguments["rel_embeddings"], 1 + len(module.pos_att_type), None, None
    if module.relative_attention and embeddings is not None and positions is not None:
        reach, span = module.max_relative_positions, min(query.shape[2], module.max_relative_positions)
        embeddings, index = embeddings[reach - span : reach + span], _by_distance(positions, span, span)
        if "c2p" in module.pos_att_type:
            on_keys = split_heads(module.pos_proj(embeddings), heads)[:, index]
        if "p2c" in module.pos_att_type:
            on_queries = split_heads(module.pos_q_proj(embeddings), heads)[:, index]
    return _inputs(arguments, query, key, value, num_terms, on_keys, on_queries)


def deberta_v2(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `DisentangledSelfAttention` of the second and third version."""
    hidden, heads, terms = arguments["hidden_states"], module.num_attention_heads, module.pos_att_type
    queries = hidden if arguments["query_states"] is None else arguments["query_states"]
    query = split_heads(module.query_proj(queries), heads)
    key, value = (split_heads(each(hidden), heads) for each in (module.key_proj, module.value_proj))
    num_terms, on_keys, on_queries = 1 + ("c2p" in terms) + ("p2c" in terms), None, None
    if module.relative_attention:
        span = module.pos_ebd_size
        embeddings = arguments["rel_embeddings"][: 2 * span]
        index = _by_distance(arguments["relative_pos"], span, module.max_relative_positions)
        if "c2p" in terms:
            project = module.key_proj if module.share_att_key else module.pos_key_proj
            on_keys = split_heads(project(embeddings), heads)[:, index]
        if "p2c" in terms:
            project = module.query_proj if module.share_att_key else module.pos_query_proj
            on_queries = split_heads(project(embeddings), heads)[:, index]
    return _inputs(arguments, query, key, value, num_terms, on_keys, on_queries)


def _inputs(
    arguments: Mapping[str, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_terms: int,
    on_keys: Tensor | None,
    on_queries: Tensor | None,
) -> AttentionInputs:
    """The sum of the scores, each divided by the root of head_dim times their number; `on_keys` has those for keys."""
    score: Score = ScaledDotProduct()
    score = score if on_keys is None else score + RelativeKey(on_keys)
    score = score if on_queries is None else score + RelativeQuery(on_queries)
    allowed = arguments["attention_mask"].bool()  # (batch, 1, tokens, tokens)
    return AttentionInputs(
        query=query,
        key=key,
        mask=allowed,
        score=score,
        scale=(query.shape[-1] * num_terms) ** -0.5,
        value=value,
        to_heads=lambda gradient: split_heads(gradient, query.shape[1]),
        valid_queries=allowed.diagonal(dim1=-2, dim2=-1)[:, 0].expand(len(query), -1),
    )


def _by_distance(positions: Tensor, span: int, reach: int) -> Tensor:
    """The row of the table of positions for each distance j − i from −k to k, (2k + 1,).

    Args:
        positions: (..., tokens, tokens) The bucket of i − j.
        span: Half the rows of the table.
        reach: The distance beyond which all have the last row.
    """
    buckets = positions.reshape(-1, *positions.shape[-2:])[0].long()
    reach = min(reach, len(buckets) - 1)
    before, after = buckets[1 : reach + 1, 0].flip(0), buckets[0, : reach + 1]
    return (torch.cat((before, after)) + span).clamp(0, 2 * span - 1)
