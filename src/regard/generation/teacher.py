"""What a model attended to while it wrote a given translation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.analysis.recording import Kind, Layer
from regard.models.transformer import Transformer
from regard.text.tokenizer import Tokenizer


def teacher_forced(
    model: Transformer, tokenizer: Tokenizer, source: Sequence[int], target: Sequence[int]
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
    config = model.config
    device = model.src_embedding.weight.device
    src = torch.tensor([[*source, config.eos_id]], device=device)
    tgt = torch.tensor([[config.bos_id, *target]], device=device)
    with torch.no_grad():
        attentions = model(src, tgt, attentions=True).attentions
    assert attentions is not None
    read = tuple(tokenizer.tokens([*source, config.eos_id]))
    fed = tuple(tokenizer.tokens([config.bos_id, *target]))
    written = tuple(tokenizer.tokens([*target, config.eos_id]))
    kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    axes = ((read, read), (written, fed), (written, read))
    return tuple(
        Layer(f"{kind}.{number}", kind, attended.weights, queries, keys)
        for kind, of_kind, (queries, keys) in zip(kinds, attentions, axes, strict=True)
        for number, attended in enumerate(of_kind)
    )
