"""What a model attended to while it wrote a given translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.analysis.recording import Kind, Layer
from regard.analysis.steps import Trace
from regard.analysis.trace import trace_layer
from regard.errors import InvalidArgument, nearest
from regard.models.encoder_decoder import EncoderDecoder
from regard.text.marian import MarianTokenizer
from regard.text.tokenizer import Tokenizer

BothSides = Tokenizer | MarianTokenizer
"""What knows source and target."""


def teacher_forced(
    model: EncoderDecoder, tokenizer: BothSides, source: Sequence[int], target: Sequence[int]
) -> tuple[Layer, ...]:
    """Run one forward pass in which every step reads the words before it, as when they were written.

    Args:
        model: In evaluation mode.
        tokenizer: The one that the model was trained with.
        source: Ids without special tokens.
        target: Ids without special tokens.

    Returns:
        The layers of the encoder, of the decoder's self-attention and of its cross-attention. A row of the latter two
        is a step, named by the word that it wrote; the keys of the decoder are the words that were read, the first
        ``<s>``.
    """
    src, tgt = _batch(model, source, target)
    with torch.no_grad():
        attentions = model(src, tgt, attentions=True).attentions
    assert attentions is not None
    kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    axes = _axes(model, tokenizer, source, target)
    return tuple(
        Layer(f"{kind}.{number}", kind, attended.weights, *axes[kind])
        for kind, of_kind in zip(kinds, attentions, strict=True)
        for number, attended in enumerate(of_kind)
    )


def traced(
    model: EncoderDecoder, tokenizer: BothSides, source: Sequence[int], target: Sequence[int], name: str
) -> Trace:
    """The calculation of one attention layer in the same pass, step by step.

    Args:
        model: In evaluation mode.
        tokenizer: The one that the model was trained with.
        source: Ids without special tokens.
        target: Ids without special tokens.
        name: The layer, as ``"encoder.0"``, ``"decoder.0"`` or ``"cross.0"``.

    Raises:
        InvalidArgument: If there is no such layer, or it has too many numbers to look at.
    """
    layers = model.attention_layers
    if name not in layers:
        raise InvalidArgument(f"layer: unknown name {name!r}{nearest(name, layers)} (known: {', '.join(layers)})")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append((given, named))

    hook = layers[name].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            model(*_batch(model, source, target))
    finally:
        hook.remove()
    _, *memory = calls[0][0]  # a recurrent decoder calls its layer for each word
    query = torch.cat([given[0] for given, _ in calls], 1)
    mask = calls[0][1].get("mask")
    queries, keys = _axes(model, tokenizer, source, target)[name.partition(".")[0]]
    title = f"{name}: {tokenizer.decode([list(source)])[0]}"
    return trace_layer(layers[name], query, *memory, mask=mask, tokens=queries, key_tokens=keys, title=title)


def _batch(model: EncoderDecoder, source: Sequence[int], target: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    config, device = model.config, model.src_embedding.weight.device
    src = torch.tensor([[*source, config.eos_id]], device=device)
    return src, torch.tensor([[config.bos_id, *target]], device=device)


def _axes(
    model: EncoderDecoder, tokenizer: BothSides, source: Sequence[int], target: Sequence[int]
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """What stands at the rows and at the keys of each kind of layer."""
    read = tuple(tokenizer.tokens([*source, model.config.eos_id]))
    fed = tuple(tokenizer.tokens([model.config.bos_id, *target]))
    written = tuple(tokenizer.tokens([*target, model.config.eos_id]))
    return {"encoder": (read, read), "decoder": (written, fed), "cross": (written, read)}
