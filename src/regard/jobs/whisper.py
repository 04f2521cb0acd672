"""word_timestamps: when each word was spoken, from the cross-attention of Whisper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InvalidType, require
from regard.ops import WeightMatrix


@contextmanager
def word_timestamps(model: nn.Module) -> Iterator[None]:
    """Within this context, Whisper finds the times of tokens and words without eager attention.

    Transformers reads the times from the cross-attention of a few *alignment heads*, by dynamic time warping. For that
    it sets the whole model to eager attention for good, and keeps the weights of all heads, those of the encoder, too.
    Within the context the same code runs on weight matrices, which compute the rows of the alignment heads alone:
    ``generate(..., return_token_timestamps=True)`` and the pipeline's ``return_timestamps="word"``, with long audio,
    batches and beams. The model's attention implementation is what it was before, afterward.

    Args:
        model: A ``WhisperForConditionalGeneration`` of transformers.

    Raises:
        InvalidType: If it is another model.
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
    from regard.transformers import NAME

    if not isinstance(model, transformers.WhisperForConditionalGeneration):
        raise InvalidType(f"model: expected a WhisperForConditionalGeneration, got {type(model).__name__}")
    whisper: Any = model
    inner, config, implementation = whisper.model, whisper.config, whisper.config._attn_implementation
    extract = whisper._extract_token_timestamps

    def extract_from_alignment_heads(outputs: Any, heads: Sequence[tuple[int, int]], **options: Any) -> Tensor:
        """Pass the weights of the alignment heads alone, as if the first layer had them and the others had none."""
        rows = torch.cat([_rows(outputs.cross_attentions, *each) for each in heads], 1)
        chosen = copy(outputs)
        chosen.cross_attentions = ((rows, *[rows[:, :0]] * (config.decoder_layers - 1)),)
        return extract(chosen, [(0, number) for number in range(len(heads))], **options)

    whisper.set_attn_implementation(NAME)
    inner.config = copy(config)  # in which generate sets eager attention; the layers read the other one
    whisper._extract_token_timestamps = extract_from_alignment_heads
    try:
        yield
    finally:
        del whisper._extract_token_timestamps
        inner.config = config
        whisper.set_attn_implementation(implementation)


def _rows(steps: Sequence[Sequence[WeightMatrix]], layer: int, head: int) -> Tensor:
    """The weights of one head in all steps of a generation, (batch, 1, tokens, frames): the frames stay the same."""
    parts = [step[layer].at(heads=head).request for step in steps]
    return WeightMatrix(replace(parts[0], query=torch.cat([part.query for part in parts], 2))).dense()
