"""State of a batch during decoding, shared by greedy search, sampling and beam search."""

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

GenerationModel = EncoderDecoder | GPT
"""Models that generate: an encoder-decoder from a source, a GPT from a prompt."""
Model = TypeVar("Model", EncoderDecoder, GPT)


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence.

    Args:
        tokens: Its token ids, without prompt, BOS and EOS.
        score: Its log-probability including EOS; beam search divides it by the length penalty.
        finished: Whether it ended with EOS; False if it reached max_new_tokens.
    """

    tokens: list[int]
    score: float
    finished: bool = True


class DecodingState(ABC, Generic[Model]):
    """The tokens of each unfinished sequence so far, in ``num_beams`` adjacent rows per sequence.

    Args:
        model: A model in evaluation mode.
        tokens: (batch, prompt_length), the tokens that all rows of a sequence start with.
        max_new_tokens: (batch,), maximum number of new tokens of each sequence, including EOS.
        eos_ids: Token ids that end a sequence.
        suppress_tokens: Token ids that are never generated.
        num_beams: Rows per sequence.
        min_new_tokens: Minimum number of new tokens, excluding EOS.
        cache: An empty cache from ``model.new_cache()``; None recomputes all tokens at each step.
    """

    rank_unfinished = False
    """Whether beam search ranks unfinished sequences with finished ones: true for text, false for translations."""

    def __init__(
        self,
        model: Model,
        tokens: Tensor,
        max_new_tokens: Tensor,
        *,
        eos_ids: Iterable[int],
        suppress_tokens: Iterable[int] = (),
        num_beams: int,
        min_new_tokens: int,
        cache: Any,
    ) -> None:
        self.model, self.num_beams, self.min_new_tokens, self.cache = model, num_beams, min_new_tokens, cache
        self.sequence_ids = torch.arange(tokens.shape[0], device=tokens.device)
        """(batch,), index in the initial batch of each unfinished sequence."""
        self.tokens = tokens
        """(rows, prompt_length + num_new_tokens); one row per sequence until the first step."""
        self.prompt_length = tokens.shape[1]
        self.max_new_tokens = max_new_tokens
        self.eos_ids = torch.tensor(sorted(eos_ids), dtype=tokens.dtype, device=tokens.device)
        self.suppress_tokens = sorted(suppress_tokens)
        self._log_probs: Tensor | None = None  # reused: a new allocation at each step would map and zero its pages

    @property
    def num_new_tokens(self) -> int:
        """Number of tokens generated so far in each row."""
        return self.tokens.shape[1] - self.prompt_length

    @property
    def at_max_length(self) -> Tensor:
        """Whether the next token of each sequence is its last one, bool (batch,)."""
        return self.num_new_tokens + 1 >= self.max_new_tokens

    def is_eos(self, tokens: Tensor) -> Tensor:
        """Which tokens end a sequence, bool."""
        return tokens == self.eos_ids if len(self.eos_ids) == 1 else torch.isin(tokens, self.eos_ids)

    @abstractmethod
    def hidden_states(self, tokens: Tensor) -> Tensor:
        """The hidden states (rows, tokens, d_model) of tokens that are not in the cache yet."""

    def next_token_log_probs(self) -> Tensor:
        """Log-probabilities of the next token in float32, (rows, vocab); −∞ for tokens that are not allowed.

        The first call expands the one row of each sequence to ``num_beams`` rows, which are equal until then. The next
        call overwrites the result.

        Raises:
            InvalidArgument: If they are NaN.
        """
        is_first = self.num_new_tokens == 0
        inputs = self.tokens if is_first or self.cache is None else self.tokens[:, -1:]
        logits = self.model.lm_head(self.hidden_states(inputs)[:, -1])  # (rows, vocab)
        if self._log_probs is None:
            rows = logits.shape[0] * (self.num_beams if is_first else 1)
            self._log_probs = torch.empty(rows, logits.shape[1], dtype=torch.float32, device=logits.device)
        log_probs = torch.log_softmax(logits, -1, dtype=torch.float32, out=self._log_probs[: len(logits)])
        # One NaN or +∞ among the logits of a row makes all its log-probabilities NaN, so one column is enough.
        if log_probs[:, 0].isnan().any():
            expected = f"expected log-probabilities of new token {self.num_new_tokens + 1} without NaN"
            hint = f"check the weights for NaN and for overflow in {logits.dtype}"
            raise InvalidArgument(f"model: {expected}, got NaN; {hint}")
        log_probs[:, self.suppress_tokens] = -torch.inf
        if self.num_new_tokens < self.min_new_tokens:
            log_probs[:, self.eos_ids] = -torch.inf
        if is_first and self.num_beams > 1:
            self.tokens = self.tokens.repeat_interleave(self.num_beams, 0)
            log_probs = log_probs.repeat_interleave(self.num_beams, 0)
            if self.cache is not None:
                self.cache.batch_repeat_interleave(self.num_beams)
        return log_probs

    def no_token_error(self) -> InvalidArgument:
        """The error of a sequence that cannot go on: what may follow has probability 0, and the rest is excluded."""
        number = self.num_new_tokens + 1
        if self.num_new_tokens < self.min_new_tokens:
            expected = f"expected a token other than EOS to have a probability above 0 as new token {number}"
            return InvalidArgument(f"min_new_tokens: {expected}, got none; lower min_new_tokens={self.min_new_tokens}")
        ids = ", ".join(map(str, self.suppress_tokens))
        return InvalidArgument(
            f"model: expected a token to have a probability above 0 as new token {number}, got none but {ids}, which "
            "are never generated"
        )

    def append(self, tokens: Tensor, rows: Tensor, indices: Tensor) -> None:
        """Append one token to each row that is kept.

        Args:
            tokens: (rows,).
            rows: (rows,), index of the row that each token continues.
            indices: (batch,), indices of the sequences to keep, to which ``rows`` belong.
        """
        if len(indices) < len(self.sequence_ids):
            self.select_sequences(indices)
            if self.cache is not None:
                self.cache.batch_select_indices(indices, rows)
        elif self.num_beams > 1 and self.cache is not None:
            self.cache.reorder_cache(rows)
        self.tokens = torch.cat([self.tokens.index_select(0, rows), tokens.unsqueeze(1)], dim=1)

    def select_sequences(self, indices: Tensor) -> None:
        """Keep only the sequences at these indices in what has one entry per sequence."""
        self.sequence_ids, self.max_new_tokens = self.sequence_ids[indices], self.max_new_tokens[indices]
