"""What a model attended to in one text, and the calculation of one of its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from regard.analysis.layer import AttentionKind, Layer, LayerList
from regard.analysis.recording import Recording
from regard.analysis.trace import Trace
from regard.analysis.trace_attention import trace_layer
from regard.errors import InvalidArgument, did_you_mean
from regard.models import GPT, Bert


def traced(
    layers: Mapping[str, Any],
    name: str | None,
    run: Callable[[], object],
    axes: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    title: str,
) -> Trace:
    """Run a model, and calculate step by step what one of its layers did.

    Args:
        layers: Those that attend, by kind and number, as ``"encoder.0"``.
        name: Which of them. Default: the first.
        run: Runs the model on one sequence; no words are held in a cache.
        axes: What stands at the queries and at the keys of each kind of layer.
        title: Stands behind the layer's name.

    Raises:
        InvalidArgument: If there is no such layer, or it has too many numbers to look at.
    """
    name = next(iter(layers)) if name is None else name
    if name not in layers:
        raise InvalidArgument(f"layer: unknown name {name!r}{did_you_mean(name, layers)} (known: {', '.join(layers)})")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append((given, named))

    hook = layers[name].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            run()
    finally:
        hook.remove()
    _, *memory = calls[0][0]  # a recurrent decoder calls its layer for each word
    query = torch.cat([given[0] for given, _ in calls], 1)
    mask = calls[0][1].get("mask")
    queries, keys = axes[name.partition(".")[0]]
    return trace_layer(
        layers[name], query, *memory, mask=mask, tokens=queries, key_tokens=keys, title=f"{name}: {title}"
    )


def read_once(
    model: Bert | GPT, kind: AttentionKind, ids: Sequence[int], tokens: Sequence[str], title: str, name: str
) -> Recording:
    """What every layer and head of a model attended to that read a text at once.

    Args:
        model: Of self-attention alone.
        kind: What its layers are.
        ids: Of the text.
        tokens: What they are called.
        title: What was read.
        name: What the recording calls the model.
    """
    words = torch.tensor([list(ids)], device=next(model.parameters()).device)
    with torch.no_grad():
        attentions = model(words, output_attentions=True).attentions
    layers = tuple(
        Layer(each, kind, attended.weights, tuple(tokens), tuple(tokens), value=attended.value)
        for each, attended in zip(model.attention_layers, attentions or (), strict=True)
    )
    return Recording(title=title, model_name=name, layers=LayerList(layers), texts={"text": title})


def trace_once(
    model: Bert | GPT, kind: AttentionKind, ids: Sequence[int], tokens: Sequence[str], title: str, layer: str | None
) -> Trace:
    """Every number of one attention layer's calculation of a model that read a text at once; see `read_once`."""
    words = torch.tensor([list(ids)], device=next(model.parameters()).device)
    return traced(model.attention_layers, layer, lambda: model(words), {kind: (tokens, tokens)}, title)
