"""Generating one row a sentence, by whatever way the next word is chosen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.generation.decoding import Decoding, Hypothesis
from regard.models.transformer import Transformer


def extend_singly(
    model: Transformer,
    src: Tensor,
    src_lengths: Tensor | None,
    choose: Callable[[Tensor], Tensor],
    *,
    max_length: int | None,
    min_length: int,
    cache: bool,
) -> list[Hypothesis]:
    """Extend each sentence by chosen words until it ends.

    Args:
        model: As for :class:`Decoding`, like the arguments that are not here.
        src: As for :class:`Decoding`.
        src_lengths: As for :class:`Decoding`.
        choose: Gives of log-probabilities (sentences, vocab) the words to come, (sentences,).
        max_length: As for :class:`Decoding`.
        min_length: As for :class:`Decoding`.
        cache: As for :class:`Decoding`.

    Returns:
        One Hypothesis a sentence, with its log-probability as score.
    """
    decoding = Decoding(model, src, src_lengths, max_length=max_length, min_length=min_length, cache=cache)
    found: list[Hypothesis | None] = [None] * src.shape[0]
    scores = torch.zeros(src.shape[0], device=src.device)  # (sentences,)
    while decoding.numbers.numel():
        likely = decoding.next_words()
        words = choose(likely)
        scores = scores + likely.gather(1, words[:, None]).squeeze(1)
        ended = words == model.config.eos_id
        leaving = ended | decoding.at_last_word
        for place in leaving.nonzero().flatten().tolist():
            tokens = decoding.words[place, 1:].tolist()
            finished = bool(ended[place])
            tokens += [] if finished else [int(words[place])]
            found[int(decoding.numbers[place])] = Hypothesis(tokens, scores[place].item(), finished)
        if not leaving.any():
            decoding.go_on(words)
            continue
        staying = (~leaving).nonzero().flatten()
        scores = scores[staying]
        decoding.go_on(words[staying], staying=staying)
    return [hypothesis for hypothesis in found if hypothesis is not None]
