"""PyTorch Geometric: graph attention, whose mask is the edges of the graph. A node attends to the sources of its edges.

All nodes of a batch of graphs are one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.masks import Neighbors
from regard.ops.scores import Additive
from regard.watching.adapters.inputs import AttentionInputs


def gat_conv(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `GATConv`: LeakyReLU of one number for the source plus one for the target of an edge."""
    source, target = _sides(arguments["x"])
    if target is None:
        raise InvalidArgument(
            "GATConv: x has no features of targets, so the weights depend on sources alone; pass (x_source, x_target)"
        )
    of_source, of_target = (module.lin, module.lin) if module.lin is not None else (module.lin_src, module.lin_dst)
    value, of_targets = (_heads(module, project(x)) for project, x in ((of_source, source), (of_target, target)))
    key, query = (
        (x * weight.transpose(0, 1)).sum(-1, keepdim=True)
        for x, weight in ((value, module.att_src), (of_targets, module.att_dst))
    )
    score = Additive(query.new_ones(1), "leaky_relu", module.negative_slope)
    return _inputs(module, arguments, query, key, value, score)


def gatv2_conv(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `GATv2Conv`: a vector times the LeakyReLU of source plus target."""
    source, target = _sides(arguments["x"])
    key, query = _heads(module, module.lin_l(source)), _heads(module, module.lin_r(target))
    score = Additive(module.att[0], "leaky_relu", module.negative_slope)
    return _inputs(module, arguments, query, key, key, score)


def transformer_conv(module: Any, arguments: Mapping[str, Any], output: Any) -> AttentionInputs:
    """An adapter for `TransformerConv`: the scaled dot product."""
    source, target = _sides(arguments["x"])
    query = _heads(module, module.lin_query(target))
    key, value = (_heads(module, project(source)) for project in (module.lin_key, module.lin_value))
    return _inputs(module, arguments, query, key, value, None)


def _inputs(
    module: Any, arguments: Mapping[str, Any], query: Tensor, key: Tensor, value: Tensor, score: Additive | None
) -> AttentionInputs:
    return AttentionInputs(
        query=query[None],
        key=key[None],
        mask=_edges(module, arguments, min(query.shape[1], key.shape[1])),
        score=score,
        value=value[None],
        to_heads=_back_to_heads(module),
    )


def _sides(x: Any) -> tuple[Any, Any]:
    """The features of sources and targets, which are one tensor where these are the same nodes."""
    return (x, x) if isinstance(x, Tensor) else x


def _heads(module: Any, x: Tensor) -> Tensor:
    """(nodes, heads * width) as (heads, nodes, width)."""
    return x.unflatten(-1, (module.heads, -1)).transpose(0, 1)


def _edges(module: Any, arguments: Mapping[str, Any], nodes: int) -> Neighbors:
    """The mask: each target attends to its sources and, where the module adds self-loops, to itself.

    Args:
        module: The module.
        arguments: Those of its forward.
        nodes: The number of nodes that are source and target.

    Raises:
        InvalidArgument: If the weights depend on more than the nodes, or there may be several of one edge.
    """
    edges, name = arguments["edge_index"], type(module).__name__
    if not isinstance(edges, Tensor) or edges.layout != torch.strided:
        raise InvalidArgument(f"{name}: expected edge_index as a tensor (2, edges) to watch it, got a sparse matrix")
    if arguments["edge_attr"] is not None and module.lin_edge is not None:
        raise InvalidArgument(f"{name}: weights that depend on features of edges (edge_attr) cannot be watched")
    source, target = edges if module.flow == "source_to_target" else edges.flip(0)
    if getattr(module, "add_self_loops", False):
        is_edge, loops = source != target, torch.arange(nodes, device=edges.device)
        source, target = torch.cat((source[is_edge], loops)), torch.cat((target[is_edge], loops))
    mask = Neighbors(query_idx=target, key_idx=source)
    if mask.num_edges < len(source):
        raise InvalidArgument(
            f"{name}: edge_index has {len(source) - mask.num_edges} edges more than once, whose weights are not one "
            "number; pass it through torch_geometric.utils.coalesce"
        )
    return mask


def _back_to_heads(module: Any) -> Callable[[Tensor], Tensor] | None:
    """From the gradient of the output, (nodes, width): of the heads in a row, or of their mean."""
    if getattr(module, "beta", False) or module.aggr not in ("add", "sum"):  # a gate depends on the output
        return None
    if module.concat:
        return lambda gradient: _heads(module, gradient)[None]
    return lambda gradient: (gradient / module.heads).expand(1, module.heads, *gradient.shape)
