"""How a text goes on: a language model with its tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from regard.analysis.head_scores import repeated_random_tokens
from regard.analysis.recording import Recording
from regard.analysis.trace import Trace
from regard.data.batching import pad_batch
from regard.errors import InvalidArgument, count_problems, raise_problems
from regard.generation.beam_search import beam_search
from regard.generation.greedy import argmax_token, decode_steps, greedy
from regard.generation.model_states import start_decoding
from regard.generation.sampling import SamplingParams, check_sampling, make_sampler, sample
from regard.generation.state import Hypothesis
from regard.metrics.classification import perplexity
from regard.models.gpt import GPT
from regard.pipelines.base import Pipeline
from regard.pipelines.packing import batches_by_length
from regard.pipelines.tracing import read_once, trace_once
from regard.text.pipeline import PipelineTokenizer
from regard.text.sentencepiece import SentencePieceTokenizer
from regard.text.validation import check_texts

BATCH_WORDS = 16384  # of prompts that are continued together, and of what they may get: GPT-2 keeps 1.2 GB of them
MAX_NEW_TOKENS = 200
CUT = "\ufffd"  # what stands for the bytes of a letter that is not whole yet


class Likelihood(NamedTuple):
    """How likely a text is.

    Args:
        nll: The negative log-likelihood of its words, in nats.
        num_tokens: Number of predicted tokens.
        num_characters: Number of characters in these tokens. A first token without context is not predicted.
    """

    nll: float
    num_tokens: int
    num_characters: int

    @property
    def perplexity(self) -> float:
        """E to the loss of a word."""
        return perplexity(self.nll / self.num_tokens)

    @property
    def bits_per_character(self) -> float:
        """How many bits a character costs, whatever the vocabulary."""
        return self.nll / math.log(2) / self.num_characters


class Generator(Pipeline[GPT, PipelineTokenizer | SentencePieceTokenizer]):
    """A language model with its tokenizer: a GPT of this library, or a GPT-2, Llama, Mistral or Qwen2.

    See `Pipeline` for the arguments and for ``load``.
    """

    model_type = GPT
    tokenizer_types = (PipelineTokenizer, SentencePieceTokenizer)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        sampling: SamplingParams | None = None,
        beam: int = 1,
        length_penalty: float = 1.0,
    ) -> list[str]:
        """Write how each text goes on.

        Args:
            prompts: The texts so far; an empty one begins where texts begin.
            max_new_tokens: Maximum number of tokens to add. Beyond its max_seq_len the model sees the last
                max_seq_len tokens at each step.
            sampling: Draw words at random, and take not the likeliest. Default: the likeliest.
            beam: How many texts are kept at each step of a search; 1 takes the likeliest word.
            length_penalty: As for :func:`regard.generation.beam_search`.

        Returns:
            What comes behind each prompt.

        Raises:
            InvalidType: If prompts are no sequence of str, or sampling is no SamplingParams.
            InvalidArgument: If an option does not fit, or a prompt is too long; all at once.
        """
        check_texts(prompts, "prompts")
        check_sampling(sampling)
        if sampling is not None and beam != 1:
            raise InvalidArgument(f"beam must be 1 where words are drawn, but is {beam}: leave out sampling, or beam")
        read = self.encode_prompts(prompts)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
        drawn = None if sampling is None else sampling.with_generator(self.device)
        found: list[Hypothesis] = [Hypothesis([], 0.0)] * len(read)
        raise_problems(count_problems(max_new_tokens=max_new_tokens))
        for places in batches_by_length([len(ids) for ids in read], BATCH_WORDS, max_new_tokens):
            batch, lengths = self._batch([read[place] for place in places])
            if drawn is not None:
                best = sample(self.model, batch, lengths, **vars(drawn), **options)
            elif beam == 1:
                best = greedy(self.model, batch, lengths, **options)
            else:
                found_here = beam_search(
                    self.model, batch, lengths, beam=beam, length_penalty=length_penalty, **options
                )
                best = [hypotheses[0] for hypotheses in found_here]
            for place, hypothesis in zip(places, best, strict=True):
                found[place] = hypothesis
        return [
            self._decode(ids, hypothesis.tokens)[len(self._decode(ids, [])) :]
            for ids, hypothesis in zip(read, found, strict=True)
        ]

    def stream(
        self, prompt: str, *, max_new_tokens: int = MAX_NEW_TOKENS, sampling: SamplingParams | None = None
    ) -> Iterator[str]:
        """Write how a text goes on, piece by piece as it is made; joined, the pieces are what :meth:`generate` gives.

        Args:
            prompt: The text so far.
            max_new_tokens: As for :meth:`generate`.
            sampling: As for :meth:`generate`.

        Yields:
            Parts of the text, each of whole characters.

        Raises:
            InvalidType: If the prompt is no str, or sampling no SamplingParams.
            InvalidArgument: As :meth:`generate`.
        """
        check_sampling(sampling)
        (ids,) = self.encode_prompts([prompt])
        next_token = argmax_token if sampling is None else make_sampler(sampling, self.device)
        state = start_decoding(self.model, *self._batch([ids]), max_new_tokens=max_new_tokens)
        told, words = len(self._decode(ids, [])), []
        for step in decode_steps(state, next_token):
            if not bool(step.is_eos):
                words.append(int(step.tokens))
            text = self._decode(ids, words)
            if not text.endswith(CUT) and len(text) > told:  # a letter's last bytes may still come
                yield text[told:]
                told = len(text)
        if len(text := self._decode(ids, words)) > told:
            yield text[told:]

    def _decode(self, prompt: Sequence[int], words: Sequence[int]) -> str:
        """A prompt and what was written, as one text: how a piece reads can depend on the one before."""
        return self.tokenizer.decode([[*prompt, *words]])[0]

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """The ids of prompts, at least one each.

        Raises:
            InvalidType: If one is no str.
            InvalidArgument: If one is too long, empty where nothing begins a text, or no text.
        """
        check_texts(prompts, "prompts")
        config = self.model.config
        begin = config.bos_id if config.bos_id is not None else (*config.eos_ids, None)[0]
        found = [ids or ([] if begin is None else [begin]) for ids in self.tokenizer.encode_prompts(prompts)]
        objections = [f"prompt {number} must not be empty" for number, ids in enumerate(found, start=1) if not ids]
        objections += [
            f"prompt {number} has {len(ids)} words of the vocabulary, but the model has positions for "
            f"{config.max_seq_len}, and one must be left: shorten it"
            for number, ids in enumerate(found, start=1)
            if len(ids) >= config.max_seq_len
        ]
        raise_problems(objections)
        return found

    @torch.inference_mode()
    def likelihood(self, text: str) -> Likelihood:
        """How likely a text is, in blocks of as many words as the model has positions for, each read anew.

        To a model that was trained here on lines, as ``documents: line`` says, each line is a text that ends.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text has fewer than two words.
        """
        check_texts([text], names=["text"])
        ids, characters = self._told(text)
        if len(ids) < 2:
            raise InvalidArgument(f"text must have at least two words of the vocabulary, but has {len(ids)}")
        nll, block = 0.0, self.model.config.max_seq_len
        for start in range(0, len(ids) - 1, block):
            words = torch.tensor([ids[start : start + block + 1]], device=self.device)
            logits = self.model(words[:, :-1]).logits[0].float()
            nll += float(torch.nn.functional.cross_entropy(logits, words[0, 1:], reduction="sum"))
        return Likelihood(nll, len(ids) - 1, characters)

    def _told(self, text: str) -> tuple[list[int], int]:
        """The ids of a text, of which all but the first are told, and how many characters these are."""
        end = self.tokenizer.eos_id
        if self.tokenizer.documents == "line" and end is not None:
            lines = [line for line in text.split("\n") if line.strip()]
            ids = [word for line in self.tokenizer.encode(lines) for word in (*line, end)]
            return [end, *ids], sum(map(len, lines))
        (ids,) = self.tokenizer.encode_prompts([text])
        first = self._decode(ids[:1], []).rstrip(CUT)  # nothing, where it is the mark that begins texts
        return ids, len(text) - len(first)

    def record(self, text: str, *, max_new_tokens: int | None = None) -> Recording:
        """Read a text, and keep what every layer and head attended to.

        Args:
            text: An empty one is the word that begins texts.
            max_new_tokens: Largest number of tokens to generate greedily and to record. Default: none.

        Returns:
            Recording: The layers; a row is a word that was read, which then told the next one.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is too long, or empty where no word begins texts.
        """
        raise_problems(count_problems(max_new_tokens=max_new_tokens))
        (ids,) = self.encode_prompts([text])
        if max_new_tokens is not None:
            (written,) = greedy(self.model, *self._batch([ids]), max_new_tokens=max_new_tokens)
            ids = [*ids, *written.tokens]
            text = self._decode(ids, [])
            ids = ids if written.finished else ids[:-1]  # the last word was read only if an end was told behind it
        return self._record(ids, text)

    def record_repeated_tokens(self, length: int = 50, seed: int = 0) -> Recording:
        """Read random words of the vocabulary twice, and keep what every layer and head attended to.

        Args:
            length: How many words; fewer where they would not fit.
            seed: Of the draw.

        Raises:
            InvalidArgument: If the length is no positive number of words.

        Reference: Olsson et al. 2022, "In-context Learning and Induction Heads".
        """
        raise_problems(count_problems(length=length))
        begin = self.encode_prompts([""])[0] if self.model.config.bos_id is not None else []
        length = min(length, (self.model.config.max_seq_len - len(begin)) // 2)
        ids = repeated_random_tokens(self.tokenizer.regular_token_ids, length, seed)
        return self._record([*begin, *ids], "random tokens, twice")

    def _record(self, ids: list[int], text: str) -> Recording:
        return read_once(self.model, "decoder", ids, self.tokenizer.convert_ids_to_tokens(ids), text, self.name)

    def trace(self, text: str, layer: str | None = None) -> Trace:
        """Read a text, and keep every number of one attention layer's calculation.

        Args:
            text: A few words, if one is to look at it.
            layer: ``"decoder.0"`` and so on. Default: the first.

        Returns:
            Trace: As `regard.trace` gives it, with an axis of heads.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is empty or too long, or there is no such layer.
        """
        (ids,) = self.encode_prompts([text])
        return trace_once(self.model, "decoder", ids, self.tokenizer.convert_ids_to_tokens(ids), text, layer)

    def _batch(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        input_ids, lengths = pad_batch(prompts, self.model.config.pad_id)
        return input_ids.to(self.device), lengths.to(self.device)
