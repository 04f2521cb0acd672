"""`trace` and `trace_layer`: attention step by step, with every intermediate result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from regard.analysis.trace import Trace, TraceBuilder, size_problems
from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.nn import (
    AdditiveAttention,
    AttentionPositions,
    MultiHeadAttention,
    RelativePositions,
    RotaryPositions,
    SelfAttention,
)
from regard.ops import weights as weights_of
from regard.ops.masks import MaskLike

Traceable = MultiHeadAttention | SelfAttention | AdditiveAttention
"""The layers that can be traced."""


def trace(
    x: Any = None,
    w_query: Any = None,
    w_key: Any = None,
    w_value: Any = None,
    *,
    mask: MaskLike | None = None,
    scale: float | None = None,
    tokens: Sequence[str] | None = None,
) -> Trace:
    """Scaled dot-product attention of a few tokens, with every intermediate result.

    Query = X W_Q, key = X W_K, value = X W_V, weights = softmax(mask(query keyᵀ · scale)), output = weights · value.

    Args:
        x: The tokens, (tokens, features): a tensor, an array, or lists of numbers. Without it, four words as three
            features each, with small integers in the projections.
        w_query: (features, width). Default: the identity, here and for the next two.
        w_key: (features, width).
        w_value: (features, value width).
        mask: As for `regard.attend`: True means may attend.
        scale: Default: 1/√width.
        tokens: Names of the tokens. Default: 1, 2, 3, and so on.

    Returns:
        Trace: In float64. `regard.explore.steps` has `tables` of it for the terminal, and `write_steps` for a page.

    Raises:
        InvalidArgument: If shapes do not fit; every problem is in the message.
        InvalidType: If an argument is not a table of numbers.

    Example:
        >>> import regard
        >>> regard.trace()["output"][0, 0]
        tensor([0.9852, 1.7417, 0.7565], dtype=torch.float64)
        >>> regard.trace([[1, 0], [0, 1]], mask=regard.Causal())["weights"][0]
        tensor([[1.0000, 0.0000],
                [0.3302, 0.6698]], dtype=torch.float64)
    """
    if x is None:
        given = {"w_query": w_query, "w_key": w_key, "w_value": w_value}
        alone = [name for name, thing in given.items() if thing is not None]
        raise_problems([f"{name}: was given without x: give both, or neither for the example" for name in alone])
        x, w_query, w_key, w_value = _example()
        tokens = ("word 1", "word 2", "word 3", "word 4") if tokens is None else tokens
    table = _table("x", x)
    features = table.shape[1]
    projections = [
        torch.eye(features, dtype=torch.float64) if given is None else _table(name, given)
        for name, given in (("w_query", w_query), ("w_key", w_key), ("w_value", w_value))
    ]
    found = [
        f"{name}: expected (features, width) with features = {features} as x has, got {tuple(weight.shape)}"
        for name, weight in zip(("w_query", "w_key", "w_value"), projections, strict=True)
        if weight.shape[0] != features
    ]
    if projections[0].shape[1] != projections[1].shape[1]:
        found.append(f"w_key: has width {projections[1].shape[1]}, w_query {projections[0].shape[1]}")
    if tokens is not None and len(tokens) != len(table):
        found.append(f"tokens: expected a name for each of {len(table)} tokens, got {len(tokens)}")
    raise_problems(found, InvalidArgument)
    w_query, w_key, w_value = (weight[None] for weight in projections)
    parts = _Parts(w_query, w_key, w_value)
    return _calculated("Scaled dot-product attention", (table, table, table), parts, mask, scale, (tokens, tokens))


def trace_layer(
    layer: Traceable,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    *,
    mask: MaskLike | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    title: str = "An attention layer",
) -> Trace:
    """Calculate what a layer does with one sequence, and keep every intermediate result.

    Args:
        layer: A `MultiHeadAttention`, a `SelfAttention` or an `AdditiveAttention`, as it is in evaluation (nothing is
            dropped).
        query: (1, queries, d_model), as the layer takes it.
        key: (1, keys, d_model). Default: query, that is self-attention.
        value: (1, keys, d_model). Default: key.
        mask: As in `regard.attend`.
        tokens: What the queries are called. Default: 1, 2, 3, and so on.
        key_tokens: What the keys are called. Default: in self-attention as the queries.
        title: What this is.

    Returns:
        Trace: In float64, whatever the layer computes in. With several heads each step of theirs has an axis of heads;
            then they are joined, and projected once more.

    Raises:
        InvalidArgument: If there is more than one sequence, a shape does not fit, or there are too many numbers to look
            at.
        InvalidType: If the layer is of another type.

    Example:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(8, 2)
        >>> x = torch.randn(1, 3, 8)
        >>> trace = regard.analysis.trace_layer(layer, x, mask=regard.Causal())
        >>> torch.allclose(trace["output"].float(), layer(x, mask=regard.Causal()).output[0], atol=1e-6)
        True
        >>> trace["weighted values"].shape, trace["heads joined"].shape
        (torch.Size([2, 3, 3, 4]), torch.Size([3, 8]))
    """
    if not isinstance(layer, get_args(Traceable)):
        known = ", ".join(kind.__name__ for kind in get_args(Traceable))
        raise InvalidType(f"layer: expected one of {known}, got {type(layer).__name__}")
    key_tokens = tokens if key is None and key_tokens is None else key_tokens
    key = query if key is None else key
    value = key if value is None else value
    given = {"query": query, "key": key, "value": value}
    widths = _widths(layer)
    found = [
        f"{name}: expected (1, tokens, {width}), one sequence, got {tuple(tensor.shape)}"
        for (name, tensor), width in zip(given.items(), widths, strict=True)
        if tensor.ndim != 3 or tensor.shape[0] != 1 or tensor.shape[2] != width
    ]
    if isinstance(layer, AdditiveAttention) and value is not key:
        found.append("value: an AdditiveAttention takes the keys for values: leave it out")
    for name, names, tensor in (("tokens", tokens, query), ("key_tokens", key_tokens, key)):
        if not found and names is not None and len(names) != tensor.shape[1]:
            found.append(f"{name}: expected a name for each of {tensor.shape[1]} tokens, got {len(names)}")
    raise_problems(found, InvalidArgument)
    made = {id(tensor): tensor.detach()[0].double().cpu() for tensor in given.values()}
    inputs = made[id(query)], made[id(key)], made[id(value)]
    if isinstance(layer, AdditiveAttention):
        return _additive(title, inputs[0], inputs[1], layer, mask, (tokens, key_tokens))
    return _calculated(title, inputs, _parts_of(layer), mask, None, (tokens, key_tokens))


def _widths(layer: Traceable) -> tuple[int, ...]:
    """How many features a layer takes of each query, key and value."""
    if isinstance(layer, AdditiveAttention):
        return layer.query.in_features, layer.key.in_features, layer.key.in_features
    width = layer.d_model if isinstance(layer, MultiHeadAttention) else layer.feature_size
    return width, width, width


class _Parts(NamedTuple):
    """A layer, in float64: weights (heads, features, width), biases (heads, width); what it is told of distances."""

    w_query: Tensor
    w_key: Tensor
    w_value: Tensor
    b_query: Tensor | None = None
    b_key: Tensor | None = None
    b_value: Tensor | None = None
    w_output: Tensor | None = None
    b_output: Tensor | None = None
    positions: AttentionPositions | None = None


def _parts_of(layer: MultiHeadAttention | SelfAttention) -> _Parts:
    if isinstance(layer, SelfAttention):
        w_query, w_key, w_value = (
            x.weight.detach().double().cpu().mT[None] for x in (layer.query, layer.key, layer.value)
        )
        return _Parts(w_query, w_key, w_value)
    rows = [layer.head_dim * heads for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)]
    weight, bias = layer.in_proj.weight.detach().double().cpu(), layer.in_proj.bias
    weights = [part.unflatten(0, (-1, layer.head_dim)).mT for part in weight.split(rows)]
    biases = [None] * 3 if bias is None else bias.detach().double().cpu().split(rows)
    by_head = [None if part is None else part.unflatten(0, (-1, layer.head_dim)) for part in biases]
    out = layer.out_proj
    b_output = None if out.bias is None else out.bias.detach().double().cpu()
    w_output = out.weight.detach().double().cpu().mT
    positions = None if layer.positions is None else copy.deepcopy(layer.positions).double().cpu()
    return _Parts(*weights, *by_head, w_output=w_output, b_output=b_output, positions=positions)  # pyright: ignore[reportCallIssue]


def _calculated(
    title: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    parts: _Parts,
    mask: MaskLike | None,
    scale: float | None,
    tokens: tuple[Sequence[str] | None, Sequence[str] | None],
) -> Trace:
    """Every step, from the inputs of query, key and value, each (tokens, features)."""
    builder = TraceBuilder(*tokens)
    add = builder.add
    x, memory, values = inputs
    heads, dim = parts.w_query.shape[0], parts.w_query.shape[2]
    queries, keys = len(x), len(memory)
    raise_problems(
        size_problems(heads=heads, queries=queries, keys=keys, features=parts.w_value.shape[2]), InvalidArgument
    )
    cross = memory is not x
    add("input", "X", "query feature", x)
    if cross:
        add("memory", "Y", "key feature", memory)
    source = "Y" if cross else "X"
    value_source = source if values is memory else "Z"
    if values is not memory:
        add("values", "Z", "key feature", values)
    for letter, weight in zip("QKV", parts[:3], strict=True):
        add(f"W_{letter}", f"the projection that makes {letter}", "head feature dim", weight)
    for letter, bias in zip("QKV", parts[3:6], strict=True):
        if bias is not None:
            add(f"b_{letter}", "its bias", "head dim", bias)
    plus = ["" if bias is None else f" + b_{letter}" for letter, bias in zip("QKV", parts[3:6], strict=True)]
    projected = [
        table @ weight + (0.0 if bias is None else bias[:, None])
        for table, weight, bias in zip((x, memory, values), parts[:3], parts[3:6], strict=True)
    ]
    query = add("query", f"Q = X W_Q{plus[0]}", "head query dim", projected[0])
    key = add("key", f"K = {source} W_K{plus[1]}", "head key dim", projected[1])
    value = add("value", f"V = {value_source} W_V{plus[2]}", "head key dim", projected[2])
    positions = parts.positions
    if isinstance(positions, RotaryPositions):
        query = add(
            "rotated query",
            "Q, each pair rotated by the angle of its position",
            "head query dim",
            _rotate(positions, query),
        )
        key = add(
            "rotated key", "K, each pair rotated by the angle of its position", "head key dim", _rotate(positions, key)
        )
    key, value = (part.repeat_interleave(heads // len(part), 0) for part in (key, value))
    scores = add("scores", "S = Q Kᵀ", "head query key", query @ key.mT)
    factor = dim**-0.5 if scale is None else scale
    how = f"S · 1/√{dim}" if factor == dim**-0.5 else f"S · {factor}"
    scores = add("scaled scores", how, "head query key", scores * factor)
    bias = None if positions is None else positions.bias()
    if bias is not None:
        added = weights_of(query[None], key[None], score=bias, scale=factor).scores.dense()[0]
        add("position bias", "B, a function of the distance j − i", "head query key", added)
        scores = add("biased scores", "scaled scores + B", "head query key", scores + added)
    weights = builder.add_softmax(scores, mask)
    shown, seen = "Vⱼ", value[:, None]
    if isinstance(positions, RelativePositions):
        distance = torch.arange(keys) - torch.arange(queries)[:, None]
        shown, reach = "(Vⱼ + b[j − i])", positions.max_distance
        of_distance = positions.of_values.detach()[distance.clamp(-reach, reach) + reach]
        add("b by distance", "b[j − i], which is added to the values", "query key dim", of_distance)
        seen = seen + of_distance
    weighted = add("weighted values", f"Pᵢⱼ {shown}", "head query key dim", weights[..., None] * seen)
    if parts.w_output is None:
        add("output", "Σⱼ Pᵢⱼ Vⱼ", "head query dim", weighted.sum(2))
        return Trace(title, tuple(builder.steps))
    summed = add("sum of weighted values", f"Σⱼ Pᵢⱼ {shown}", "head query dim", weighted.sum(2))
    joined = add("heads joined", "the heads side by side", "query feature", summed.transpose(0, 1).flatten(1))
    add("W_O", "the projection of the heads", "feature feature", parts.w_output)
    output = joined @ parts.w_output
    if parts.b_output is not None:
        add("b_O", "its bias", "feature", parts.b_output)
        output = output + parts.b_output
    add("output", "joined W_O" + ("" if parts.b_output is None else " + b_O"), "query feature", output)
    return Trace(title, tuple(builder.steps))


def _additive(
    title: str,
    states: Tensor,
    memory: Tensor,
    layer: AdditiveAttention,
    mask: MaskLike | None,
    tokens: tuple[Sequence[str] | None, Sequence[str] | None],
) -> Trace:
    """Every step of additive attention, from states (queries, features) to memory (keys, features)."""
    features = max(layer.key.in_features, layer.key.out_features)
    raise_problems(size_problems(queries=len(states), keys=len(memory), features=features), InvalidArgument)
    builder = TraceBuilder(*tokens)
    add = builder.add
    of_query, of_key, bias, vector = (
        part.detach().double().cpu() for part in (layer.query.weight, layer.key.weight, layer.key.bias, layer.vector)
    )
    add("input", "s", "query feature", states)
    add("memory", "h", "key feature", memory)
    add("W", "query projection", "feature dim", of_query.mT)
    add("U", "key projection", "feature dim", of_key.mT)
    add("b", "its bias", "dim", bias)
    add("v", "output vector of the scoring network", "dim", vector)
    query = add("query", "s W", "query dim", states @ of_query.mT)
    key = add("key", "h U + b", "key dim", memory @ of_key.mT + bias)
    hidden = add("hidden layer", "tanh(query + key)", "query key dim", torch.tanh(query[:, None] + key))
    scores = add("scores", "S = v · hidden layer", "head query key", (hidden @ vector)[None])
    weights = builder.add_softmax(scores, mask)
    weighted = add("weighted values", "Pᵢⱼ hⱼ", "head query key feature", weights[..., None] * memory)
    add("output", "Σⱼ Pᵢⱼ hⱼ", "head query feature", weighted.sum(2))
    return Trace(title, tuple(builder.steps))


def _rotate(positions: RotaryPositions, heads: Tensor) -> Tensor:
    return positions.turn(heads[None], 0)[0]


def _example() -> tuple[Any, ...]:
    """Four words as three features each, and projections of small integers."""
    words = [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
    random = np.random.RandomState(42)  # as numpy.random.seed(42) leaves it, without touching it
    return words, *(random.randint(3, size=(3, 3)) for _ in range(3))


def _table(name: str, given: Any) -> Tensor:
    try:
        table = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(f"{name}: expected a table of numbers, got {type(given).__name__} {given!r}") from None
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidArgument(f"{name}: expected a table (rows, columns), got the shape {tuple(table.shape)}")
    return table
