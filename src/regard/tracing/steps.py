"""The steps of attention layers, from their input to their output, for `regard.tracing.attention`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

import torch
from torch import Tensor

from regard.nn import (
    AdditiveAttention,
    AttentionPositions,
    MultiHeadAttention,
    RelativePositions,
    SelfAttention,
)
from regard.ops import AttentionOutput, WeightMatrix
from regard.ops import weights as weights_of
from regard.ops.masks import Causal, to_dense
from regard.tracing.trace import TraceBuilder

Projection = tuple[Tensor, Tensor | None]
"""A weight (heads, features, head_dim) and a bias (heads, head_dim)."""

SENTENCES: dict[str, str] = json.loads((files("regard.tracing") / "sentences.json").read_text("utf-8"))
"""What steps do and why, for the terminal and for the page."""


def add_multi_head(
    builder: TraceBuilder, layer: MultiHeadAttention, inputs: Sequence[Tensor], output: AttentionOutput, joined: Tensor
) -> None:
    """Add the steps of a multi-head layer.

    Args:
        builder: Collects the steps.
        layer: The layer, in float64.
        inputs: Its input, (1, tokens, d_model): query; or query and key; or query, key and value.
        output: What it returned.
        joined: (queries, heads · head_dim), the input of its output projection.
    """
    add, by_head = builder.add, (-1, layer.head_dim)
    weights = layer.in_proj.weight.split(layer.projection_sizes)
    biases = (None,) * 3 if layer.in_proj.bias is None else layer.in_proj.bias.split(layer.projection_sizes)
    projections = [
        (weight.unflatten(0, by_head).mT, None if bias is None else bias.unflatten(0, by_head))
        for weight, bias in zip(weights, biases, strict=True)
    ]
    query, key, value = add_projections(builder, projections, [tensor[0] for tensor in inputs])
    request = output.weights.request
    if layer.positions is not None and type(layer.positions).rotate is not AttentionPositions.rotate:
        how = "each pair of features rotated by the angle of its position"
        why = "Turning query and key by their positions makes their product depend on the distance between the tokens."
        query = add("rotated query", f"Q, {how}", "head query dim", request.query[0], why)
        key = add("rotated key", f"K, {how}", "head key dim", request.key[0], why)
    formula = add_attention(builder, output.weights, query, key, value, layer.positions)
    heads = joined.unflatten(1, by_head).transpose(0, 1)
    why = "The output of a head is the sum: close to the values of the tokens with the largest weights."
    add("sum of weighted values", f"Σⱼ Pᵢⱼ {formula}", "head query dim", heads, why)
    why = "The outputs of all heads side by side are one vector for each token."
    add("heads joined", "the heads side by side", "query feature", joined, why)
    add("W_O", "output projection", "feature feature", layer.out_proj.weight.mT)
    if layer.out_proj.bias is not None:
        add("b_O", "its bias", "feature", layer.out_proj.bias)
    plus = "" if layer.out_proj.bias is None else " + b_O"
    count = f"{layer.num_heads} heads are joined and" if layer.num_heads > 1 else "head is"
    why = f"The outputs of the {count} mapped back to the {layer.d_model} features of the model."
    add("output", f"joined W_O{plus}", "query feature", output.output[0], why)


def add_self(builder: TraceBuilder, layer: SelfAttention, inputs: Sequence[Tensor], output: AttentionOutput) -> None:
    """Add the steps of self-attention with one head."""
    projections = [(part.weight.mT[None], None) for part in (layer.query, layer.key, layer.value)]
    query, key, value = add_projections(builder, projections, [inputs[0][0]])
    add_attention(builder, output.weights, query, key, value)
    builder.add("output", "Σⱼ Pᵢⱼ Vⱼ", "head query dim", output.output, SENTENCES["output"])


def add_additive(
    builder: TraceBuilder, layer: AdditiveAttention, inputs: Sequence[Tensor], output: AttentionOutput
) -> None:
    """Add the steps of additive attention, whose score is a network with one hidden layer."""
    add = builder.add
    states, memory = (tensor[0] for tensor in (*inputs, *inputs)[:2])
    add("input", "s", "query feature", states, "The states that attend: in a decoder, its state before each step.")
    add("memory", "h", "key feature", memory, "The states that are attended to: in a translator, those of its encoder.")
    add("W", "query projection", "feature dim", layer.query_proj.weight.mT)
    add("U", "key projection", "feature dim", layer.key_proj.weight.mT)
    add("b", "its bias", "dim", layer.key_proj.bias)
    add("v", "output vector of the scoring network", "dim", layer.v)
    request = output.weights.request
    query = add("query", "s W", "query dim", request.query[0, 0], SENTENCES["query"])
    key = add("key", "h U + b", "key dim", request.key[0, 0], SENTENCES["key"])
    why = "Query and key are added, and tanh limits each feature to the range from −1 to 1."
    hidden = add("hidden layer", "tanh(query + key)", "query key dim", torch.tanh(query[:, None] + key), why)
    why = "The score is a weighted sum of the hidden layer, with the same learned vector v for all pairs of tokens."
    add("scores", "S = v · hidden layer", "head query key", (hidden @ layer.v)[None], why)
    weights = add_softmax(builder, output.weights)
    why = "Each state is multiplied by its weight: the values of additive attention are its keys before projection."
    add("weighted values", "Pᵢⱼ hⱼ", "head query key feature", weights[..., None] * memory, why)
    add("output", "Σⱼ Pᵢⱼ hⱼ", "head query feature", output.output, "The output is the sum of the weighted states.")


def add_projections(
    builder: TraceBuilder, projections: Sequence[Projection], inputs: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Add inputs and their projections, and return query, key and value, each (heads, tokens, head_dim).

    Args:
        builder: Collects the steps.
        projections: W and b of query, key and value.
        inputs: One input (tokens, features) of self-attention; or of queries and keys; or of queries, keys and values.
    """
    add, letters = builder.add, ("X", "Y", "Z")[: len(inputs)]
    own = "token" if len(inputs) == 1 else "query"
    add("input", "X", f"{own} feature", inputs[0], "One row of numbers for each token.")
    for letter, name, table in zip(letters[1:], ("memory", "values"), inputs[1:], strict=False):
        projected_to = "values" if name == "values" else "keys" if len(inputs) == 3 else "keys and values"
        add(name, letter, "key feature", table, f"One row of numbers for each token; the {projected_to} come from it.")
    for letter, (weight, _) in zip("QKV", projections, strict=True):
        heads, features, dims = weight.shape
        whose = "This head has weights of its own: they" if heads > 1 else "The weights"
        why = f"{whose} map {features} features of the input to {dims} of the head."
        add(f"W_{letter}", f"projection of {letter}", "head feature dim", weight, why)
    for letter, (_, bias) in zip("QKV", projections, strict=True):
        if bias is not None:
            add(f"b_{letter}", "its bias", "head dim", bias)
    projected = []
    for index, role in enumerate(("query", "key", "value")):
        (weight, bias), used = projections[index], min(index, len(inputs) - 1)
        letter, table = "QKV"[index], inputs[used]
        formula = f"{letter} = {letters[used]} W_{letter}" + ("" if bias is None else f" + b_{letter}")
        result = table @ weight if bias is None else table @ weight + bias[:, None]
        projected.append(
            add(role, formula, f"head {'query' if role == 'query' else 'key'} dim", result, SENTENCES[role])
        )
    return projected[0], projected[1], projected[2]


def add_attention(
    builder: TraceBuilder,
    weights: WeightMatrix,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: AttentionPositions | None = None,
) -> str:
    """Add the steps from query and key to the weighted values, and return the formula of a value.

    Args:
        builder: Collects the steps.
        weights: The weights of one sequence.
        query: (heads, queries, head_dim).
        key: (kv_heads, keys, head_dim).
        value: (kv_heads, keys, value_dim).
        positions: Position encoding inside the layer.
    """
    add, scale = builder.add, weights.request.scale
    heads, queries, keys = weights.shape[1:]
    key, value = (part.repeat_interleave(heads // len(part), 0) for part in (key, value))
    scores = add("scores", "S = Q Kᵀ", "head query key", query @ key.mT, SENTENCES["scores"])
    scaled = _add_scaled_scores(builder, scores, query.shape[2], scale)
    bias = None if positions is None else positions.score_bias()
    if positions is not None and bias is not None:
        added = weights_of(query[None], key[None], score=bias, scale=scale).scores.dense()[0]
        formula, why = positions.describe()
        add("position bias", formula, "head query key", added, why)
        add("biased scores", "scaled scores + B", "head query key", scaled + added)
    shares = add_softmax(builder, weights)
    formula, values = "Vⱼ", value[:, None]
    if isinstance(positions, RelativePositions):
        formula, reach = "(Vⱼ + b[j − i])", positions.max_distance
        distance = torch.arange(keys, device="cpu") - torch.arange(queries, device="cpu")[:, None]
        vectors = positions.value_embedding[distance.clamp(-reach, reach) + reach]
        why = "A learned vector for each distance is added to the values, too."
        values = values + add("b by distance", "b[j − i], added to the values", "query key dim", vectors, why)
    weighted = shares[..., None] * values
    add("weighted values", f"Pᵢⱼ {formula}", "head query key dim", weighted, SENTENCES["weighted values"])
    return formula


def add_softmax(builder: TraceBuilder, weights: WeightMatrix) -> Tensor:
    """Add the mask of a weight matrix with one sequence, if there is one, and the weights, and return these.

    Args:
        builder: Collects the steps.
        weights: The weights of one sequence.
    """
    add, request, scores = builder.add, weights.request, weights.scores.dense()[0]
    if request.mask is not None:
        allowed = to_dense(request.mask, request.shape, request.offset, request.query.device)[0]
        why = "A query may attend only to the keys that the mask allows."
        if isinstance(request.mask, Causal):
            why = (
                "A token may attend to itself and to the tokens before it, because those after it are to be predicted."
            )
        add("mask", "1 where the query may attend to the key", "head query key", allowed.double(), why)
        why = "A score of −∞ becomes a weight of exactly 0."
        add("masked scores", "−∞ where the mask is 0", "head query key", scores, why)
    powers = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num(0.0)  # 0 in a row that is −∞ throughout
    add("exponentials", "E = exp(S − max S of the row)", "head query key", powers, SENTENCES["exponentials"])
    add("sums", "Σⱼ Eᵢⱼ", "head query", powers.sum(-1), "The sum of the exponentials of a row.")
    formula = "P = E / Σⱼ Eᵢⱼ, the softmax of each row"
    return add("weights", formula, "head query key", weights.dense()[0], SENTENCES["weights"])


def _add_scaled_scores(builder: TraceBuilder, scores: Tensor, dims: int, scale: float) -> Tensor:
    is_root = scale == dims**-0.5
    root = f"1/√{dims}" if is_root else f"{scale}"
    why = SENTENCES["scaled scores" if is_root else "other scale"]
    why = why.format(dims=dims, root=f"{dims**0.5:.3f}", scale=f"{scale:g}")
    return builder.add("scaled scores", f"S · {root}", "head query key", scores * scale, why)
