"""TextGenerator: text from a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from regard.checks import Checks
from regard.generation.beam_search import beam_search, check_search
from regard.generation.greedy import NextToken, argmax_token, decode_steps, greedy
from regard.generation.model_states import start_decoding
from regard.generation.sampling import SamplingParams, check_sampling, make_sampler, sample
from regard.generation.state import DecodingState, Hypothesis
from regard.metrics.classification import perplexity
from regard.models.gpt import GPT
from regard.pipelines.base import SelfAttentionPipeline, check_token_counts
from regard.recordings.recording import Recording
from regard.text.validation import check_texts

MAX_NEW_TOKENS = 200
REPLACEMENT_CHARACTER = "\ufffd"  # decoded from the first bytes of a character whose other bytes are still to come


class Likelihood(NamedTuple):
    """Likelihood of a text.

    Args:
        nll: Negative log-likelihood of its tokens, in nats.
        num_tokens: Number of predicted tokens.
        num_characters: Number of characters in these tokens. A first token without context is not predicted.
    """

    nll: float
    num_tokens: int
    num_characters: int

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return perplexity(self.nll / self.num_tokens)

    @property
    def bits_per_character(self) -> float:
        """Bits per character, which can be compared between vocabularies."""
        return self.nll / math.log(2) / self.num_characters


class TextGenerator(SelfAttentionPipeline[GPT]):
    """A language model with its tokenizer: a GPT of this library, or a GPT-2, Llama, Mistral, Qwen2 or Gemma.

    See `Pipeline` for the arguments and for ``load``.
    """

    model_type = GPT
    layer_kind = "decoder"
    max_batch_tokens = 16384  # prompts and new tokens; the cache of GPT-2 is then 1.2 GB

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        min_new_tokens: int = 0,
        sampling: SamplingParams | None = None,
        beam: int = 1,
        length_penalty: float = 1.0,
    ) -> list[str]:
        """Continue each prompt.

        Args:
            prompts: An empty prompt is the token that begins texts.
            max_new_tokens: Maximum number of tokens to add. Beyond its max_seq_len the model reads the last max_seq_len
                tokens at each step.
            min_new_tokens: Minimum number of tokens to add, without EOS.
            sampling: Sample tokens. Default: the most probable token at each step.
            beam: Number of beams of a beam search; 1 is greedy.
            length_penalty: As for `regard.generation.beam_search`.

        Returns:
            The text after each prompt.

        Raises:
            InvalidType: If prompts are not a sequence of str, or an option has a wrong type.
            InvalidArgument: If an option has a wrong value, or a prompt is too long.
        """
        check_sampling(sampling)
        with Checks() as checks:
            checks.integer("max_new_tokens", max_new_tokens, low=1)
            checks.integer("min_new_tokens", min_new_tokens, low=0)
            check_search(checks, beam, 1, length_penalty)
            for name, value in {"beam": beam, "length_penalty": length_penalty}.items():
                checks.that(
                    sampling is None or value == 1,
                    f"{name}: expected 1 with sampling, got {value}; leave one of them out",
                )
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens}
        if sampling is not None:  # one generator for all batches, so that equal prompts get different samples
            options |= vars(sampling.with_generator(self.device))

        def run(prompts: list[list[int]]) -> list[Hypothesis]:
            batch = self._pad(prompts)
            if sampling is not None:
                return sample(self.model, *batch, **options)
            if beam == 1:
                return greedy(self.model, *batch, **options)
            hypotheses = beam_search(self.model, *batch, beam=beam, length_penalty=length_penalty, **options)
            return [best[0] for best in hypotheses]

        encoded = self.encode_prompts(prompts)
        continuations = self._run_batched(encoded, run, extra=max_new_tokens)
        return [
            self._decode([*ids, *continuation.tokens])[len(self._decode(ids)) :]
            for ids, continuation in zip(encoded, continuations, strict=True)
        ]

    def stream(
        self, prompt: str, *, max_new_tokens: int = MAX_NEW_TOKENS, sampling: SamplingParams | None = None
    ) -> Iterator[str]:
        """Continue a prompt and yield the text while it is generated; together it is the text of `generate`.

        Args:
            prompt: As for `generate`.
            max_new_tokens: As for `generate`.
            sampling: As for `generate`.

        Yields:
            Parts of the text, each of whole characters.

        Raises:
            InvalidType: As `generate`.
            InvalidArgument: As `generate`.
        """
        check_sampling(sampling)
        check_texts([prompt], names=["prompt"])
        (ids,) = self._encode([prompt], ["prompt"])
        next_token = argmax_token if sampling is None else make_sampler(sampling, self.device)
        return self._stream(
            start_decoding(self.model, *self._pad([ids]), max_new_tokens=max_new_tokens), next_token, ids
        )

    def _stream(self, state: DecodingState, next_token: NextToken, ids: list[int]) -> Iterator[str]:
        text = self._decode(ids)
        length = len(text)  # number of characters that need no more output
        for step in decode_steps(state, next_token):
            if not bool(step.is_eos):
                ids = [*ids, int(step.tokens)]
            text = self._decode(ids)
            if not text.endswith(REPLACEMENT_CHARACTER) and len(text) > length:
                yield text[length:]
                length = len(text)
        if len(text) > length:
            yield text[length:]

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts, at least one each.

        Raises:
            InvalidType: If prompts are not a sequence of str.
            InvalidArgument: If a prompt is too long, or empty for a model without a token that begins texts.
        """
        check_texts(prompts, "prompts")
        return self._encode(prompts, [f"prompts[{index}]" for index in range(len(prompts))])

    def _encode(self, prompts: Sequence[str], names: Sequence[str]) -> list[list[int]]:
        config = self.model.config
        first = [config.bos_id] if config.bos_id is not None else list(config.eos_ids[:1])
        encoded = [ids or first for ids in self._tokenize(prompts)]
        with Checks() as checks:
            for name, ids in zip(names, encoded, strict=True):
                checks.that(bool(ids), f"{name}: expected a text, got an empty one; the model has no BOS token")
        check_token_counts(zip(names, encoded, strict=True), config.max_seq_len - 1)
        return encoded

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts. Only checkpoints of transformers read special tokens in a text as such."""
        is_trained_here = self.model.config.sample_by is not None
        return self.tokenizer.encode_prompts(prompts, split_special_tokens=is_trained_here)

    def _encode_text(self, text: str) -> list[int]:
        check_texts([text], names=["text"])
        return self._encode([text], ["text"])[0]

    @property
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        return (self._encode_text("") if self.model.config.bos_id is not None else []), []

    def _decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt and its continuation: how a token reads can depend on the one before."""
        return self.tokenizer.decode([ids])[0]

    @torch.inference_mode()
    def likelihood(self, text: str) -> Likelihood:
        """Likelihood of a text, in consecutive blocks of max_seq_len tokens without context from other blocks.

        For a model that was trained here on lines (``sample_by`` of its configuration), each line is a text that ends.

        Raises:
            InvalidType: If the text is not a str.
            InvalidArgument: If the text has fewer than two tokens.
        """
        check_texts([text], names=["text"])
        ids, num_characters = self._prediction_ids(text)
        with Checks() as checks:
            checks.that(len(ids) >= 2, f"text: expected at least two tokens, got {len(ids)}")
        nll, block_size = 0.0, self.model.config.max_seq_len
        for start in range(0, len(ids) - 1, block_size):
            block = torch.tensor([ids[start : start + block_size + 1]], device=self.device)
            logits = self.model(block[:, :-1]).logits[0]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            nll += float(cross_entropy(logits, block[0, 1:], reduction="sum"))
        return Likelihood(nll, len(ids) - 1, num_characters)

    def _prediction_ids(self, text: str) -> tuple[list[int], int]:
        """Token ids of a text, all but the first of which are predicted, and the number of characters in these."""
        eos_id = self.tokenizer.eos_id
        if self.model.config.sample_by == "line" and eos_id is not None:
            lines = [line for line in text.split("\n") if line.strip()]
            ids = [token for line in self.tokenizer.encode(lines) for token in (*line, eos_id)]
            return [eos_id, *ids], sum(map(len, lines))
        (ids,) = self._tokenize([text])
        first = self._decode(ids[:1]).rstrip(REPLACEMENT_CHARACTER)  # empty for a BOS token
        return ids, len(text) - len(first)

    def record(self, text: str, *, max_new_tokens: int | None = None) -> Recording:
        """Record what every layer and head attends to in a text.

        Args:
            text: An empty text is the token that begins texts.
            max_new_tokens: Maximum number of tokens to generate greedily and to record. Default: none.

        Returns:
            Recording: A row is a token, from which the next one is predicted.

        Raises:
            InvalidType: If the text is not a str.
            InvalidArgument: If the text is too long, also with max_new_tokens, or empty for a model without a token
                that begins texts.
        """
        ids = self._encode_text(text)
        if max_new_tokens is not None:
            room = self.model.config.max_seq_len + 1 - len(ids)  # the model does not read the last token
            with Checks() as checks:
                checks.integer("max_new_tokens", max_new_tokens, low=1, below=room + 1)
            (continuation,) = greedy(self.model, *self._pad([ids]), max_new_tokens=max_new_tokens)
            ids = [*ids, *continuation.tokens]
            text = self._decode(ids)
            ids = ids if continuation.finished else ids[:-1]  # the model has not read the last token
        return self._record(ids, text)
