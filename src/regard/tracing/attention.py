"""`trace` and `trace_layer`: attention step by step, with every intermediate result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.nn import AdditiveAttention, MultiHeadAttention, SelfAttention
from regard.ops import AttentionOutput, attend
from regard.ops.masks import MaskLike
from regard.tracing.steps import (
    SENTENCES,
    add_additive,
    add_attention,
    add_multi_head,
    add_projections,
    add_self,
)
from regard.tracing.trace import Trace, TraceBuilder

MAX_ELEMENTS = 10**6
"""Largest size of a step. A trace is for reading; its largest step has tokens² · heads · head_dim elements."""

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
        Trace: In float64. `regard.explore` shows it: ``trace_tables.trace_table`` in the terminal, and
            ``steps_page.write_steps_html`` as a page.

    Raises:
        InvalidArgument: If shapes do not fit; every problem is in the message.
        InvalidType: If an argument is not a table of numbers.

    Examples:
        >>> import regard
        >>> regard.trace()["output"][0, 0]
        tensor([0.9852, 1.7417, 0.7565], dtype=torch.float64)
        >>> regard.trace([[1, 0], [0, 1]], mask=regard.Causal())["weights"][0]
        tensor([[1.0000, 0.0000],
                [0.3302, 0.6698]], dtype=torch.float64)
    """
    if x is None:
        weights = {"w_query": w_query, "w_key": w_key, "w_value": w_value}
        with Checks() as checks:
            for name, weight in weights.items():
                checks.that(weight is None, f"{name}: pass x with it, or neither")
        x, w_query, w_key, w_value = _example()
        tokens = ("word 1", "word 2", "word 3", "word 4") if tokens is None else tokens
    table = _as_matrix("x", x)
    features = table.shape[1]
    projections = {
        name: torch.eye(features, dtype=torch.float64) if weight is None else _as_matrix(name, weight)
        for name, weight in (("w_query", w_query), ("w_key", w_key), ("w_value", w_value))
    }
    with Checks() as checks:
        for name, weight in projections.items():
            if weight.shape[0] != features:
                expected = f"(features, width) with features = {features} as x has"
                checks.fail(f"{name}: expected {expected}, got {tuple(weight.shape)}")
        width, other = projections["w_query"].shape[1], projections["w_key"].shape[1]
        checks.that(width == other, f"w_key: expected the width of w_query, {width}, got {other}")
        if tokens is not None and len(tokens) != len(table):
            checks.fail(f"tokens: expected a name for each of {len(table)} tokens, got {len(tokens)}")
        _check_size(checks, 1, len(table), len(table), projections["w_value"].shape[1])
    builder = TraceBuilder(query=tokens, key=tokens, token=tokens)
    heads = [(weight[None], None) for weight in projections.values()]
    query, key, value = add_projections(builder, heads, [table])
    output = attend(query[None], key[None], value[None], mask=mask, scale=scale)
    add_attention(builder, output.weights, query, key, value)
    builder.add("output", "Σⱼ Pᵢⱼ Vⱼ", "head query dim", output.output[0], SENTENCES["output"])
    return Trace("Scaled dot-product attention", tuple(builder.steps))


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
    """Run a layer on one sequence, with every intermediate result.

    Args:
        layer: A `MultiHeadAttention`, a `SelfAttention` or an `AdditiveAttention`. A copy of it runs in evaluation
            mode, without dropout.
        query: (1, queries, d_model), as the layer takes it.
        key: (1, keys, d_model). Default: query, that is self-attention.
        value: (1, keys, d_model). Default: key.
        mask: As for `regard.attend`.
        tokens: Names of the queries. Default: 1, 2, 3, and so on.
        key_tokens: Names of the keys. Default: those of the queries in self-attention.
        title: Title of the trace.

    Returns:
        Trace: In float64, whatever the dtype of the layer. Steps of several heads have an axis of heads, until the
        heads are joined.

    Raises:
        InvalidArgument: If there is more than one sequence, a shape does not fit, or a step has more than a million
            elements.
        InvalidType: If the layer has another type.

    Examples:
        >>> import regard, torch
        >>> layer = regard.nn.MultiHeadAttention(8, 2)
        >>> x = torch.randn(1, 3, 8)
        >>> trace = regard.tracing.trace_layer(layer, x, mask=regard.Causal())
        >>> torch.allclose(trace["output"].float(), layer(x, mask=regard.Causal()).output[0], atol=1e-6)
        True
        >>> trace["weighted values"].shape, trace["heads joined"].shape
        (torch.Size([2, 3, 3, 4]), torch.Size([3, 8]))
    """
    if not isinstance(layer, get_args(Traceable)):
        known = ", ".join(kind.__name__ for kind in get_args(Traceable))
        raise InvalidType(f"layer: expected one of {known}, got {type(layer).__name__}")
    inputs = {"query": query, "key": key, "value": value}
    inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    memory = inputs.get("key", query)
    key_tokens = tokens if key is None and key_tokens is None else key_tokens
    with Checks() as checks:
        for name, tensor in inputs.items():
            if checks.tensor(name, tensor) and (tensor.ndim != 3 or tensor.shape[0] != 1):
                checks.fail(f"{name}: expected (1, tokens, features), one sequence, got {tuple(tensor.shape)}")
        if isinstance(layer, SelfAttention) and key is not None:
            checks.fail("key: a SelfAttention attends to its input; leave it out")
        if isinstance(layer, AdditiveAttention) and value is not None:
            checks.fail("value: the values of an AdditiveAttention are its keys; leave it out")
    with Checks() as checks:
        for name, names, tensor in (("tokens", tokens, query), ("key_tokens", key_tokens, memory)):
            if names is not None and len(names) != tensor.shape[1]:
                checks.fail(f"{name}: expected a name for each of {tensor.shape[1]} tokens, got {len(names)}")
    layer = copy.deepcopy(layer).double().cpu().eval()
    tensors = [tensor.detach().double().cpu() for tensor in inputs.values()]
    names = {"query": tokens, "key": key_tokens} | ({"token": key_tokens} if key is None else {})
    builder = TraceBuilder(**names)
    with torch.no_grad():
        _add_layer(builder, layer, tensors, mask)
    return Trace(title, tuple(builder.steps))


def _add_layer(builder: TraceBuilder, layer: Traceable, inputs: Sequence[Tensor], mask: MaskLike | None) -> None:
    if isinstance(layer, AdditiveAttention):
        add_additive(builder, layer, inputs, _run(layer, inputs, mask))
    elif isinstance(layer, SelfAttention):
        add_self(builder, layer, inputs, _run(layer, inputs, mask))
    else:
        joined = list[Tensor]()
        layer.out_proj.register_forward_pre_hook(lambda _, args: joined.append(args[0][0]))
        output = _run(layer, inputs, mask)
        add_multi_head(builder, layer, inputs, output, joined[0])


def _run(layer: Traceable, inputs: Sequence[Tensor], mask: MaskLike | None) -> AttentionOutput:
    """The output of a layer, if its steps are small enough to look at."""
    output = layer(*inputs, mask=mask)
    _, heads, queries, keys = output.weights.shape
    features = max(output.weights.request.key.shape[3], 0 if output.value is None else output.value.shape[3])
    with Checks() as checks:
        _check_size(checks, heads, queries, keys, features)
    return output


def _check_size(checks: Checks, heads: int, queries: int, keys: int, features: int) -> None:
    """Check the size of the largest step."""
    elements = heads * queries * keys * features
    checks.that(
        elements <= MAX_ELEMENTS,
        f"the largest step has {heads} heads × {queries} queries × {keys} keys × {features} features = {elements:,} "
        f"elements, more than {MAX_ELEMENTS:,}; trace a shorter sequence, or read parts of regard.weights(...)",
    )


def _example() -> tuple[Any, ...]:
    """Four words as three features each, and projections of small integers."""
    words = [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]]
    random = np.random.RandomState(42)  # as numpy.random.seed(42) leaves it, without touching it
    return words, *(random.randint(3, size=(3, 3)) for _ in range(3))


def _as_matrix(name: str, value: Any) -> Tensor:
    try:
        table = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(
            f"{name}: expected a table of numbers, got {type(value).__name__} {short_repr(value)}"
        ) from None
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidArgument(f"{name}: expected a table (rows, columns), got the shape {tuple(table.shape)}")
    return table
