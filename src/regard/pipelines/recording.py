"""Recordings of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.models import GPT, Bert
from regard.models.encoder_decoder import EncoderDecoder
from regard.recordings.layer import AttentionKind, Layer, LayerList
from regard.recordings.recording import Recording
from regard.text.base import BaseTokenizer

Axes = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""Tokens of the queries and of the keys, by kind of layer."""


def record_forward(
    model: Bert | GPT, kind: AttentionKind, ids: Sequence[int], tokens: Sequence[str], title: str, name: str
) -> Recording:
    """Record every layer of a model with self-attention only.

    Args:
        model: The model, in evaluation mode.
        kind: Kind of its layers.
        ids: Token ids of one text.
        tokens: Readable tokens of the text.
        title: The text.
        name: Name of the model in the recording.
    """
    with torch.no_grad():
        attentions = model(as_batch(model, ids), output_attentions=True).attentions
    layers = tuple(
        Layer(layer, kind, attention.weights, tuple(tokens), tuple(tokens), value=attention.value)
        for layer, attention in zip(model.attention_layers, attentions or (), strict=True)
    )
    return Recording(title=title, model_name=name, layers=LayerList(layers), texts={"text": title})


def record_teacher_forced(
    model: EncoderDecoder, tokenizer: BaseTokenizer, source: Sequence[int], target: Sequence[int]
) -> tuple[Layer, ...]:
    """Record every layer of an encoder-decoder in one forward pass over a whole translation.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        source: Token ids without special tokens.
        target: Token ids of the translation, with EOS if it is complete.

    Returns:
        The layers of the encoder, of the decoder's self-attention and of its cross-attention. A row of the latter two
        is a step, named by the token that it generates; the keys of the decoder are its input, which begins with BOS.
    """
    with torch.no_grad():
        attentions = model(*teacher_forcing_batch(model, source, target), output_attentions=True).attentions
    assert attentions is not None
    kinds: tuple[AttentionKind, ...] = ("encoder", "decoder", "cross")
    axes = axis_tokens(model, tokenizer, source, target)
    return tuple(
        Layer(f"{kind}.{number}", kind, attention.weights, *axes[kind], value=attention.value)
        for kind, layers in zip(kinds, attentions, strict=True)
        for number, attention in enumerate(layers)
    )


def teacher_forcing_batch(model: EncoderDecoder, source: Sequence[int], target: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Input of the encoder, with EOS, and of the decoder, with BOS and without the last token; both (1, tokens)."""
    config = model.config
    return as_batch(model, [*source, config.eos_id]), as_batch(model, [config.bos_id, *target[:-1]])


def axis_tokens(model: EncoderDecoder, tokenizer: BaseTokenizer, source: Sequence[int], target: Sequence[int]) -> Axes:
    """Readable tokens of the queries and keys of each kind of layer; see `record_teacher_forced`."""
    encoder = tuple(tokenizer.convert_ids_to_tokens([*source, model.config.eos_id]))
    decoder = tuple(tokenizer.convert_ids_to_tokens([model.config.bos_id, *target[:-1]]))
    steps = tuple(tokenizer.convert_ids_to_tokens(target))
    return {"encoder": (encoder, encoder), "decoder": (steps, decoder), "cross": (steps, encoder)}


def as_batch(model: nn.Module, ids: Sequence[int]) -> Tensor:
    """One sequence of token ids, (1, tokens), on the device of the model."""
    return torch.tensor([list(ids)], device=next(model.parameters()).device)
