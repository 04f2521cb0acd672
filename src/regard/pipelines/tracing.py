"""Step-by-step traces of one attention layer of a model, from the token embeddings on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checks import Checks
from regard.models import GPT, Bert
from regard.models.encoder_decoder import EncoderDecoder
from regard.nn.transformer_layer import Residual
from regard.pipelines.block_steps import Names, add_block
from regard.pipelines.embedding_steps import add_embedding, add_norm
from regard.pipelines.recording import Axes, as_batch
from regard.recordings.layer import AttentionKind
from regard.tracing.attention import trace_layer
from regard.tracing.trace import Trace, TraceBuilder

Model = Bert | GPT | EncoderDecoder


def as_texts(ids: Sequence[int]) -> list[str]:
    """Ids as the names of their tokens."""
    return [*map(str, ids)]


def trace_forward(
    model: Bert | GPT,
    kind: AttentionKind,
    ids: Sequence[int],
    tokens: Sequence[str],
    title: str,
    layer: str | None,
    names: Names = as_texts,
) -> Trace:
    """Trace one layer of a model with self-attention only.

    Args:
        model: The model, in evaluation mode.
        kind: Kind of its layers.
        ids: Token ids of one text.
        tokens: Readable tokens of the text.
        title: The text.
        layer: As ``name`` of `trace_model_layer`.
        names: As there.
    """
    axes = {kind: (tuple(tokens), tuple(tokens))}
    return trace_model_layer(model, layer, (as_batch(model, ids),), axes, title, names)


def trace_model_layer(
    model: Model, name: str | None, inputs: Sequence[Tensor], axes: Axes, title: str, names: Names = as_texts
) -> Trace:
    """Run a model on one sequence and trace one of its attention layers, and what is around it, step by step.

    The trace begins with the token ids in the first layer of an encoder or a decoder, and with the output of the layer
    below in others. It ends with the output of the block, or with that of self-attention before cross-attention; in the
    last block with the probabilities of tokens. What comes before the attention and the logits are computed in the
    dtype of the model, the rest in float64.

    Args:
        model: The model, in evaluation mode.
        name: The layer to trace, such as ``"encoder.0"``. Default: the first.
        inputs: Token ids (1, tokens): the arguments of the model.
        axes: Tokens of the queries and keys of each kind of layer.
        title: The text, for the title of the trace.
        names: The tokens of some ids. Default: the ids.

    Raises:
        InvalidArgument: If there is no such layer, or it has too many numbers to show.
    """
    layers = model.attention_layers
    name = next(iter(layers)) if name is None else name
    with Checks() as checks:
        checks.choice("layer", name, layers)
    kind, number = name.split(".")
    residual = _residual(model, kind, int(number))
    captured = _capture(model, inputs, layers[name], residual)
    query_tokens, key_tokens = axes[kind]
    trace = trace_layer(
        layers[name],
        captured.query,
        *captured.memory,
        mask=captured.mask,
        tokens=query_tokens,
        key_tokens=key_tokens,
        title=f"{name}: {title}",
    )
    if residual is None:  # a recurrent decoder, whose state is the input
        return replace(trace, layer=name, layers=tuple(layers))
    builder = TraceBuilder(query=query_tokens, token=key_tokens)
    ids = inputs[-1] if kind == "decoder" else inputs[0]
    explained = {
        "input": _add_input_steps(builder, model, ids, kind, int(number), residual, captured.before_norm),
        "memory": (
            "Y",
            "The output of the encoder: a row for each token of the source, from which keys and values come.",
        ),
    }
    steps = [
        replace(step, formula=explained[step.name][0], explanation=explained[step.name][1])
        if step.name in explained
        else step
        for step in trace.steps
    ]
    after = TraceBuilder(query=query_tokens)
    hidden = captured.query[0] if captured.before_norm is None else captured.before_norm
    add_block(after, model, name, hidden, trace["output"], names)
    return Trace(trace.title, (*builder.steps, *steps, *after.steps), name, tuple(layers))


def _add_input_steps(
    builder: TraceBuilder,
    model: Model,
    ids: Tensor,
    kind: str,
    number: int,
    residual: Residual,
    before_norm: Tensor | None,
) -> tuple[str, str]:
    """Add the steps before the input of an attention layer, and return the formula of the input and its explanation."""
    if kind == "cross":
        norm = "" if residual.norm_first else " and norm"
        why = f"The output of the self-attention decoder.{number}, after its residual connection{norm}."
    else:
        why = f"The output of the layer below: what each token has become after {kind}.{number - 1}."
    formula = "X"
    if kind != "cross" and number == 0:
        with torch.no_grad():
            formula = f"X = {add_embedding(builder, model, ids, 'src' if kind == 'encoder' else 'tgt')}"
        why = "The embedding is the input of the first layer."
    if before_norm is None:
        return formula, why
    axis = "query" if kind == "cross" else "token"
    if not builder.steps:
        builder.add("hidden state", "x", f"{axis} feature", before_norm.cpu().double(), why)
    norm = residual.norm
    assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
    formula = add_norm(builder, norm, before_norm, axis)
    return f"X = {formula}", "The result of the norm is the input of the layer."


@dataclass
class _Captured:
    """What an attention layer and the norm before it were called with."""

    queries: list[Tensor] = field(default_factory=list)
    memory: tuple[Tensor, ...] = ()
    mask: Any = None
    before_norm: Tensor | None = None
    """(tokens, features); None without a norm before the attention."""

    @property
    def query(self) -> Tensor:
        """(1, queries, features): a recurrent decoder calls its layer at each step."""
        return torch.cat(self.queries, 1)


def _capture(model: Model, inputs: Sequence[Tensor], layer: nn.Module, residual: Residual | None) -> _Captured:
    """Run a model on one sequence, without a cache."""
    captured = _Captured()

    def on_attention(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        captured.queries.append(arguments[0])
        captured.memory, captured.mask = arguments[1:], options.get("mask")

    def on_norm(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        captured.before_norm = arguments[0][0]

    hooks = [layer.register_forward_pre_hook(on_attention, with_kwargs=True)]
    if residual is not None and residual.norm_first:
        hooks.append(residual.norm.register_forward_pre_hook(on_norm))
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return captured


def _residual(model: Model, kind: str, number: int) -> Residual | None:
    """The residual connection around an attention layer; None in models that are not Transformers."""
    stack = getattr(model, "encoder" if kind == "encoder" else "decoder", None)
    if stack is None or not hasattr(stack, "layers"):
        return None
    layer = stack.layers[number]
    return layer.cross_attention_residual if kind == "cross" else layer.self_attention_residual
