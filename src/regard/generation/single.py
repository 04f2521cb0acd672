"""Generating one row a sentence, by whatever way the next word is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.generation.state import DecodingState, Hypothesis

Choose = Callable[[Tensor], Tensor]
"""Gives of log-probabilities (sentences, vocab) the words to come, (sentences,)."""


class Step(NamedTuple):
    """One more word of each sentence that is still on its way; all are (sentences,)."""

    numbers: Tensor
    """Which of the sentences that were given."""
    words: Tensor
    ended: Tensor
    """Whether the word ends the sentence; bool."""
    scores: Tensor
    """The log-probability of the sentence so far."""


@torch.inference_mode()
def steps(decoding: DecodingState, choose: Choose) -> Iterator[Step]:
    """Extend each sentence by chosen words until it ends or may get no more."""
    scores = torch.zeros(len(decoding.numbers), device=decoding.words.device)  # (sentences,)
    while decoding.numbers.numel():
        likely = decoding.next_words()
        words = choose(likely)
        scores = scores + likely.gather(1, words[:, None]).squeeze(1)
        ended = decoding.is_end(words)
        leaving = ended | decoding.at_last_word
        yield Step(decoding.numbers, words, ended, scores)
        if not leaving.any():
            decoding.go_on(words)
            continue
        staying = (~leaving).nonzero().flatten()
        scores = scores[staying]
        decoding.go_on(words[staying], staying=staying)


def extend_singly(decoding: DecodingState, choose: Choose) -> list[Hypothesis]:
    """Extend each sentence by chosen words until it ends.

    Returns:
        One Hypothesis a sentence, with its log-probability as score.
    """
    tokens: list[list[int]] = [[] for _ in decoding.numbers]
    scores, finished = [0.0] * len(tokens), [False] * len(tokens)
    for step in steps(decoding, choose):
        columns = (each.tolist() for each in step)
        for number, word, ended, score in zip(*columns, strict=True):
            scores[number], finished[number] = score, ended
            if not ended:
                tokens[number].append(word)
    return [Hypothesis(*each) for each in zip(tokens, scores, finished, strict=True)]
