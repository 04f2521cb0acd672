"""A batch while it is being decoded: what every way to generate shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InvalidArgument, refuse
from regard.models.transformer import Transformer
from regard.nn.cache import DecoderCache


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


class Decoding:
    """Sentences on their way: each has the same number of rows, side by side, and each row has its words so far.

    Args:
        model: In evaluation mode.
        src: (sentences, source), integers.
        src_lengths: (sentences,), number of real words of each source. Default: all are real.
        beams: Rows of each sentence.
        max_length: The most words that a row may get, the one that ends it counted. Default: twice its source and 20,
            at most the model's max_length.
        min_length: The fewest words that a row must get, the one that ends it not counted.
        cache: False computes all words anew at each step: slow, and what the cache is tested against.

    Raises:
        InvalidArgument: With everything that does not fit.
    """

    def __init__(
        self,
        model: Transformer,
        src: Tensor,
        src_lengths: Tensor | None = None,
        *,
        beams: int = 1,
        max_length: int | None = None,
        min_length: int = 0,
        cache: bool = True,
    ) -> None:
        longest = model.config.max_length
        refuse(_objections(model, max_length, min_length))
        self.model = model
        self.memory = model.encode(src, src_lengths)
        self.src_lengths = src_lengths
        self.beams = beams
        self.min_length = min_length
        self.cache: DecoderCache | None = model.new_cache() if cache else None
        self.numbers = torch.arange(src.shape[0], device=src.device)
        """Which of the sentences that were given are still on their way, (sentences,)."""
        self.words = src.new_full((src.shape[0] * beams, 1), model.config.bos_id, dtype=torch.int64)
        """The words of each row, the first is bos_id, (rows, 1 + length)."""
        given = torch.full_like(self.numbers, src.shape[1]) if src_lengths is None else src_lengths
        limits = 2 * given + 20 if max_length is None else torch.full_like(self.numbers, max_length)
        self.limits = limits.clamp(min=max(min_length, 1), max=longest)
        """The most words that each sentence may get, (sentences,)."""
        # Made once: several large tensors a step would go back to the system after each, and be mapped and zeroed anew.
        self._likely: Tensor | None = None

    @property
    def length(self) -> int:
        """How many words each row has."""
        return self.words.shape[1] - 1

    @property
    def at_last_word(self) -> Tensor:
        """Which sentences may get one word more and no further one, bool (sentences,)."""
        return self.length + 1 >= self.limits

    def next_words(self) -> Tensor:
        """The log-probability of each word that may come next, −∞ where it must not come, (rows, vocab), in float32.

        It is overwritten by the next call.

        Raises:
            InvalidArgument: If the model gives no numbers.
        """
        config = self.model.config
        recent = self.words if self.cache is None else self.words[:, -1:]
        hidden = self.model.decode(recent, self.memory, self.src_lengths, cache=self.cache)[:, -1]  # (rows, d_model)
        logits = self.model.project(hidden)  # (rows, vocab)
        if self._likely is None:
            self._likely = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        likely = torch.log_softmax(logits, -1, dtype=torch.float32, out=self._likely[: logits.shape[0]])
        # A single NaN or +∞ among the logits of a row makes all its log-probabilities NaN: one column tells.
        if likely[:, config.pad_id].isnan().any():
            raise InvalidArgument(
                f"the model's log-probabilities of word {self.length + 1} must be numbers, but some are NaN: "
                "its weights are damaged, or overflow in their dtype"
            )
        for word in (config.pad_id, config.bos_id, *([config.eos_id] if self.length < self.min_length else [])):
            likely[:, word] = -torch.inf
        return likely

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
            self.numbers, self.limits = self.numbers[staying], self.limits[staying]
            self.memory = self.memory.index_select(0, staying)
            self.src_lengths = None if self.src_lengths is None else self.src_lengths[staying]
        if self.cache is not None and rows is not None:
            if staying is None:
                self.cache.reorder(rows)
            else:
                self.cache.keep(staying, rows)
        before = self.words if rows is None else self.words.index_select(0, rows)
        self.words = torch.cat([before, words.unsqueeze(1)], dim=1)


def _objections(model: Transformer, max_length: int | None, min_length: int) -> list[str]:
    longest = model.config.max_length
    objections = []
    if model.training:
        objections.append("model is in training mode, where dropout acts: call model.eval() first")
    if max_length is not None and not 1 <= max_length <= longest:
        objections.append(f"max_length must be from 1 to the model's max_length {longest}, but is {max_length}")
    if not 0 <= min_length <= (longest if max_length is None else max_length):
        objections.append(
            f"min_length must be from 0 to max_length {longest if max_length is None else max_length}, "
            f"but is {min_length}"
        )
    return objections
