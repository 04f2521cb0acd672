"""A batch while it is being decoded: what every way to generate shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.gpt import GPT

Generating = EncoderDecoder | GPT
"""The models that write: they translate a source, or go on from a prompt."""
Model = TypeVar("Model", EncoderDecoder, GPT)


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that was generated.

    Args:
        tokens: Its words, without those that begin and end it.
        score: Its log-probability, in beam search divided by the length penalty.
        finished: Whether it ended by itself; False where the length limit cut it.
    """

    tokens: list[int]
    score: float
    finished: bool = True


class DecodingState(ABC, Generic[Model]):
    """Sentences on their way: each has the same number of rows, side by side, and each row has its words so far.

    Args:
        model: In evaluation mode.
        words: (sentences, begun), the words that all rows of a sentence begin with.
        limits: (sentences,), the most words that each sentence may get, the one that ends it counted.
        ends: The words that end a sentence.
        never: Words that must not come.
        beams: Rows of each sentence.
        min_length: The fewest words that a row must get, the one that ends it not counted.
        cache: The model's own, as new_cache gives it, empty; None computes all words anew at each step.
    """

    open_ended = False
    """Whether a sentence that the limit cuts is as good as one that ends: a text may go on, a translation is whole."""

    def __init__(
        self,
        model: Model,
        words: Tensor,
        limits: Tensor,
        *,
        ends: Iterable[int],
        never: Iterable[int] = (),
        beams: int,
        min_length: int,
        cache: Any,
    ) -> None:
        self.model, self.beams, self.min_length, self.cache = model, beams, min_length, cache
        self.numbers = torch.arange(words.shape[0], device=words.device)
        """Which of the sentences that were given are still on their way, (sentences,)."""
        self.words = words
        """The words of each row, behind those that it began with, (rows, begun + length); at first a row a sentence."""
        self.begun = words.shape[1]
        self.limits = limits
        """The most words that each sentence may get, (sentences,)."""
        self.ends = torch.tensor(sorted(ends), dtype=words.dtype, device=words.device)
        self.never = sorted(never)
        # Made once: several large tensors a step would go back to the system after each, and be mapped and zeroed anew.
        self._likely: Tensor | None = None

    @property
    def length(self) -> int:
        """How many words each row has got."""
        return self.words.shape[1] - self.begun

    @property
    def at_last_word(self) -> Tensor:
        """Which sentences may get one word more and no further one, bool (sentences,)."""
        return self.length + 1 >= self.limits

    def is_end(self, words: Tensor) -> Tensor:
        """Which of these words end a sentence, bool."""
        return words == self.ends if len(self.ends) == 1 else torch.isin(words, self.ends)

    @abstractmethod
    def hidden(self, words: Tensor) -> Tensor:
        """The hidden states (rows, words, d_model) of words that the cache does not hold yet."""

    def next_words(self) -> Tensor:
        """The log-probability of each word that may come next, −∞ where it must not come, (rows, vocab), in float32.

        It is overwritten by the next call.

        Raises:
            InvalidArgument: If the model gives no numbers.
        """
        first = self.length == 0
        recent = self.words if first or self.cache is None else self.words[:, -1:]
        logits = self.model.lm_head(self.hidden(recent)[:, -1])  # (rows, vocab)
        if self._likely is None:
            rows = logits.shape[0] * (self.beams if first else 1)
            self._likely = torch.empty(rows, logits.shape[1], dtype=torch.float32, device=logits.device)
        likely = torch.log_softmax(logits, -1, dtype=torch.float32, out=self._likely[: logits.shape[0]])
        # A single NaN or +∞ among the logits of a row makes all its log-probabilities NaN: one column tells.
        if likely[:, 0].isnan().any():
            raise InvalidArgument(
                f"the model's log-probabilities of word {self.length + 1} must be numbers, but some are NaN: "
                "its weights are damaged, or overflow in their dtype"
            )
        likely[:, self.never] = -torch.inf
        if self.length < self.min_length:
            likely[:, self.ends] = -torch.inf
        if first and self.beams > 1:  # all rows of a sentence begin alike: one was enough so far
            self.spread()
            likely = likely.repeat_interleave(self.beams, 0)
        return likely

    def spread(self) -> None:
        """Make as many rows of each sentence's as there are beams."""
        self.words = self.words.repeat_interleave(self.beams, 0)
        if self.cache is not None:
            self.cache.batch_repeat_interleave(self.beams)

    def go_on(self, words: Tensor, rows: Tensor | None = None, staying: Tensor | None = None) -> None:
        """Append a word to each row.

        Args:
            words: (rows,), as many as go on.
            rows: (rows,), which row each goes on from. Default: the same.
            staying: (sentences,), the sentences that go on, to whose rows ``rows`` must belong. Default: all.
        """
        if staying is not None and rows is None:
            places = torch.arange(self.beams, device=staying.device)
            rows = (staying[:, None] * self.beams + places).flatten()
        if staying is not None:
            self.keep(staying)
        if self.cache is not None and rows is not None:
            if staying is None:
                self.cache.reorder_cache(rows)
            else:
                self.cache.batch_select_indices(staying, rows)
        before = self.words if rows is None else self.words.index_select(0, rows)
        self.words = torch.cat([before, words.unsqueeze(1)], dim=1)

    def keep(self, sentences: Tensor) -> None:
        """Drop all but the sentences at these indices, of what is not in rows."""
        self.numbers, self.limits = self.numbers[sentences], self.limits[sentences]
