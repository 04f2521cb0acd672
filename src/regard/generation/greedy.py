"""Greedy search: at each step the likeliest word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.generation.model_states import start_decoding
from regard.generation.single import extend_singly
from regard.generation.state import Generating, Hypothesis


@torch.inference_mode()
def greedy(
    model: Generating,
    src: Tensor,
    src_lengths: Tensor | None = None,
    *,
    max_length: int | None = None,
    min_length: int = 0,
    cache: bool = True,
) -> list[Hypothesis]:
    """Generate for each source, or prompt of a `GPT`, the sequence whose every word is the likeliest one.

    A sentence that has ended leaves the batch; what a sentence gets does not depend on the others beside it.

    Args:
        model: In evaluation mode.
        src: (sentences, source), integers.
        src_lengths: (sentences,), number of real words of each source. Default: all are real.
        max_length: The most words, the one that ends counted. Default: twice the source and 20, at most the model's
            max_seq_len; of a `GPT` what its max_seq_len leaves, beyond which it reads the last max_seq_len words.
        min_length: The fewest words, the one that ends not counted.
        cache: False computes all words anew at each step.

    Returns:
        One Hypothesis a sentence; its score is its log-probability.

    Raises:
        InvalidArgument: With everything that does not fit; or if the model gives no numbers.

    Example:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> len(greedy(model, torch.randint(3, 100, (2, 7)), max_length=5))
        2
    """
    options: dict[str, Any] = {"max_length": max_length, "min_length": min_length, "cache": cache}
    return extend_singly(start_decoding(model, src, src_lengths, **options), likeliest)


def likeliest(likely: Tensor) -> Tensor:
    """The likeliest word of each row."""
    return likely.argmax(-1)
