"""What a model attended to while it wrote a given translation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.analysis.layer import AttentionKind, Layer
from regard.models.encoder_decoder import EncoderDecoder
from regard.text.base import BaseTokenizer


def teacher_forced(
    model: EncoderDecoder, tokenizer: BaseTokenizer, source: Sequence[int], written: Sequence[int]
) -> tuple[Layer, ...]:
    """Run one forward pass in which every step reads the words before it, as when they were written.

    Args:
        model: In evaluation mode.
        tokenizer: The one that the model was trained with.
        source: Ids without special tokens.
        written: Ids of the translation, and the one that ends it unless the length limit did.

    Returns:
        The layers of the encoder, of the decoder's self-attention and of its cross-attention. A row of the latter two
        is a step, named by the word that it wrote; the keys of the decoder are the words that were read, the first
        ``<s>``.
    """
    src, tgt = fed_batch(model, source, written)
    with torch.no_grad():
        attentions = model(src, tgt, output_attentions=True).attentions
    assert attentions is not None
    kinds: tuple[AttentionKind, ...] = ("encoder", "decoder", "cross")
    axes = axes_of(model, tokenizer, source, written)
    return tuple(
        Layer(f"{kind}.{number}", kind, attended.weights, *axes[kind], value=attended.value)
        for kind, of_kind in zip(kinds, attentions, strict=True)
        for number, attended in enumerate(of_kind)
    )


def fed_batch(model: EncoderDecoder, source: Sequence[int], written: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A source and a target as the model takes them: one that ends, and one that begins and lacks its last word."""
    config, device = model.config, model.src_embedding.weight.device
    src = torch.tensor([[*source, config.eos_id]], device=device)
    return src, torch.tensor([[config.bos_id, *written[:-1]]], device=device)


def axes_of(
    model: EncoderDecoder, tokenizer: BaseTokenizer, source: Sequence[int], written: Sequence[int]
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """What stands at the rows and at the keys of each kind of layer."""
    read = tuple(tokenizer.convert_ids_to_tokens([*source, model.config.eos_id]))
    fed = tuple(tokenizer.convert_ids_to_tokens([model.config.bos_id, *written[:-1]]))
    steps = tuple(tokenizer.convert_ids_to_tokens(written))
    return {"encoder": (read, read), "decoder": (steps, fed), "cross": (steps, read)}
