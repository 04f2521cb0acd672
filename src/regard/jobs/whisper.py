"""word_timestamps: when each word was spoken, from the cross-attention of Whisper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from regard.errors import InvalidArgument, InvalidType, require
from regard.ops import WeightMatrix

NAME = "regard.jobs.word_timestamps"
"""The attention implementation within the context."""

_KEPT: WeakSet[nn.Module] = WeakSet()
"""The attention layers with alignment heads."""


@contextmanager
def word_timestamps(model: nn.Module) -> Iterator[None]:
    """Within this context, Whisper finds the times of tokens and words without eager attention.

    Transformers reads the times from the cross-attention of a few *alignment heads*, by dynamic time warping. For that
    it sets the whole model to eager attention for good, and keeps the weights of all heads, those of the encoder, too.
    Within the context the model runs `regard.attend`, and the same code gets the rows of the alignment heads alone:
    ``generate(..., return_token_timestamps=True)`` and the pipeline's ``return_timestamps="word"``, with long audio,
    batches and beams. The outputs have no attentions. Afterward the model's attention implementation is what it was.

    Args:
        model: A ``WhisperForConditionalGeneration`` of transformers.

    Raises:
        InvalidType: If it is another model.
        InvalidArgument: In `generate`, if it gets other `alignment_heads` than ``model.generation_config`` has.
        MissingExtra: If transformers is not installed.

    Examples:
        >>> import regard, torch
        >>> from transformers import WhisperConfig, WhisperForConditionalGeneration
        >>> config = WhisperConfig(d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        ...     decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=99, pad_token_id=0,
        ...     bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=[], begin_suppress_tokens=[])
        >>> model = WhisperForConditionalGeneration(config).eval()  # or .from_pretrained("openai/whisper-large-v3")
        >>> model.generation_config.alignment_heads = [[0, 1]]  # a checkpoint has its own
        >>> with regard.jobs.word_timestamps(model):
        ...     output = model.generate(torch.randn(1, 80, 3000), attention_mask=torch.ones(1, 3000).long(),
        ...         max_new_tokens=5, return_token_timestamps=True)
        >>> output["token_timestamps"].shape
        torch.Size([1, 5])
    """
    transformers = require("transformers", extra="hf", needed_by="word_timestamps")
    from regard.transformers import attention as attend
    from regard.transformers import make_mask

    if not isinstance(model, transformers.WhisperForConditionalGeneration):
        raise InvalidType(f"model: expected a WhisperForConditionalGeneration, got {type(model).__name__}")
    whisper: Any = model
    inner, config, implementation = whisper.model, whisper.config, whisper.config._attn_implementation
    if implementation == NAME:  # within another such context
        yield
        return
    extract, layers = whisper._extract_token_timestamps, inner.decoder.layers
    heads = getattr(whisper.generation_config, "alignment_heads", None) or ()  # without them, generate raises
    kept = {layers[layer].encoder_attn for layer, _ in heads}

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        """That of regard.transformers; weights of layers without alignment heads are left out."""
        output, matrix = attend(module, query, key, value, mask, **options)
        return output, matrix if module in _KEPT else query.new_empty(0)

    def extract_from_views(outputs: Any, heads: Sequence[tuple[int, int]], **options: Any) -> Tensor:
        """Pass the weights of the alignment heads alone, as if the first layer had them and the others had none."""
        if any(layers[layer].encoder_attn not in kept for layer, _ in heads):
            raise InvalidArgument(
                "alignment_heads: expected those of model.generation_config when the context began, got others; set "
                "them before"
            )
        rows = torch.cat([_rows(outputs.cross_attentions, *each) for each in heads], 1)
        for each in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            outputs[each] = ()  # generate would copy them for each sequence
        chosen = copy(outputs)
        chosen.cross_attentions = ((rows, *[rows[:, :0]] * (len(layers) - 1)),)
        return extract(chosen, [(0, number) for number in range(len(heads))], **options)

    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
    whisper.set_attn_implementation(NAME)
    _KEPT.update(kept)
    inner.config = copy(config)  # in which generate sets eager attention; the layers read the other one
    whisper._extract_token_timestamps = extract_from_views
    try:
        yield
    finally:
        del whisper._extract_token_timestamps
        inner.config = config
        whisper.set_attn_implementation(implementation)
        _KEPT.difference_update(kept)


def _rows(steps: Sequence[Sequence[WeightMatrix]], layer: int, head: int) -> Tensor:
    """The weights of one head in all steps of a generation, (batch, 1, tokens, frames): the frames stay the same."""
    parts = [step[layer].at(heads=head).request for step in steps]
    return WeightMatrix(replace(parts[0], query=torch.cat([part.query for part in parts], 2))).dense()
