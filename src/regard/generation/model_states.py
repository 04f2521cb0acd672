"""What is decoded: translations of sources, or texts that go on from prompts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType, raise_problems
from regard.generation.state import DecodingState, Generating
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.gpt import GPT
from regard.models.inputs import check_ids, check_lengths


class EncoderDecoderState(DecodingState[EncoderDecoder]):
    """Sentences on their way from a source.

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
        model: EncoderDecoder,
        src: Tensor,
        src_lengths: Tensor | None = None,
        *,
        beams: int = 1,
        max_length: int | None = None,
        min_length: int = 0,
        cache: bool = True,
    ) -> None:
        config = model.config
        raise_problems(_objections(model, max_length, min_length))
        self.memory, self.src_lengths = model.encode(src, src_lengths), src_lengths
        given = src.new_full((src.shape[0],), src.shape[1]) if src_lengths is None else src_lengths
        given = given.long()  # in which lengths in bytes could not be counted on
        longest = 2 * given + 20 if max_length is None else torch.full_like(given, max_length)
        super().__init__(
            model,
            src.new_full((src.shape[0], 1), config.bos_id, dtype=torch.int64),
            longest.clamp(min=min_length + 1, max=max_length or config.max_seq_len),
            ends=[config.eos_id],
            never={config.pad_id, config.bos_id},
            beams=beams,
            min_length=min_length,
            cache=model.new_cache() if cache else None,
        )

    def hidden(self, words: Tensor) -> Tensor:
        return self.model.decode(words, self.memory, self.src_lengths, cache=self.cache)

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        self.memory = self.memory.index_select(0, sentences)
        self.src_lengths = None if self.src_lengths is None else self.src_lengths[sentences]


class CausalState(DecodingState[GPT]):
    """Texts on their way from a prompt.

    Prompts are moved to the right, so that all rows get their next word at the same place. Beyond the model's
    max_seq_len it reads the last max_seq_len tokens of each row, without a cache, as nanoGPT does.

    Args:
        model: In evaluation mode.
        prompts: (sentences, tokens), integers, filled up on the right.
        lengths: (sentences,), number of real words of each prompt. Default: all are real.
        beams: Rows of each sentence.
        max_length: The most words that a row may get. Default: as many as the model's max_seq_len leaves.
        min_length: The fewest words that a row must get, the one that ends it not counted.
        cache: False computes all words anew at each step.

    Raises:
        InvalidArgument: With everything that does not fit.
        InvalidType: If an argument is no tensor.
    """

    open_ended = True

    def __init__(
        self,
        model: GPT,
        prompts: Tensor,
        lengths: Tensor | None = None,
        *,
        beams: int = 1,
        max_length: int | None = None,
        min_length: int = 0,
        cache: bool = True,
    ) -> None:
        with Checks() as checks:
            checks.problems += _objections(model, max_length, min_length, limited=False)
            check_ids(checks, "prompts", prompts, model.config.vocab_size)
            check_lengths(checks, "lengths", lengths, "prompts", prompts)
        given = prompts.new_full((prompts.shape[0],), prompts.shape[1]) if lengths is None else lengths
        given = given.long()
        raise_problems(_prompt_objections(model, given, prompts.shape[1]))
        left_padding = prompts.shape[1] - given  # (sentences,)
        self.left_padding = None if not bool(left_padding.any()) else left_padding
        if self.left_padding is not None:
            places = torch.arange(prompts.shape[1], device=prompts.device) - left_padding[:, None]
            prompts = prompts.gather(1, places.clamp(min=0))
        left = model.config.max_seq_len - given
        limits = left if max_length is None else torch.full_like(left, max_length)
        super().__init__(
            model,
            prompts.to(torch.int64),
            limits,
            ends=model.config.eos_ids,
            beams=beams,
            min_length=min_length,
            cache=model.new_cache() if cache else None,
        )

    def hidden(self, words: Tensor) -> Tensor:
        left_padding, dropped = self.left_padding, self.words.shape[1] - self.model.config.max_seq_len
        if dropped > 0:  # positions of cached tokens would change with each step
            self.cache, words = None, self.words[:, dropped:]
            left_padding = None if left_padding is None else (left_padding - dropped).clamp(min=0)
        options = {"cache": self.cache, "output_attentions": False}
        return self.model.forward_features(words, left_padding, **options)[0]

    def spread(self) -> None:
        super().spread()
        self.left_padding = None if self.left_padding is None else self.left_padding.repeat_interleave(self.beams)

    def keep(self, sentences: Tensor) -> None:
        super().keep(sentences)
        if self.left_padding is not None:
            self.left_padding = self.left_padding.view(-1, self.beams)[sentences].flatten()


def start_decoding(
    model: Generating,
    src: Tensor,
    src_lengths: Tensor | None = None,
    *,
    beams: int = 1,
    max_length: int | None = None,
    min_length: int = 0,
    cache: bool = True,
) -> DecodingState:
    """Begin to decode: a translation of sources, or what goes on from prompts, as the model is.

    Arguments and errors are those of :class:`EncoderDecoderState` and :class:`CausalState`.

    Raises:
        InvalidType: If the model is another one.
    """
    options: dict[str, Any] = {"beams": beams, "max_length": max_length, "min_length": min_length, "cache": cache}
    if isinstance(model, GPT):
        return CausalState(model, src, src_lengths, **options)
    if isinstance(model, EncoderDecoder):
        return EncoderDecoderState(model, src, src_lengths, **options)
    raise InvalidType(f"model must be a GPT or a translator, which write, but is a {type(model).__name__}")


def _objections(model: Generating, max_length: int | None, min_length: int, *, limited: bool = True) -> list[str]:
    longest = model.config.max_seq_len if limited or max_length is None else max(max_length, 1)
    with Checks() as checks:
        checks.integer("max_length", max_length, optional=True)
        checks.integer("min_length", min_length)
    objections = []
    if model.training:
        objections.append("model is in training mode, where dropout acts: call model.eval() first")
    if max_length is not None and not 1 <= max_length <= longest:
        bound = f"from 1 to the model's max_seq_len {longest}" if limited else "at least 1"
        objections.append(f"max_length must be {bound}, but is {max_length}")
    if not 0 <= min_length <= (longest if max_length is None else max_length):
        objections.append(
            f"min_length must be from 0 to max_length {longest if max_length is None else max_length}, "
            f"but is {min_length}"
        )
    return objections


def _prompt_objections(model: GPT, lengths: Tensor, width: int) -> list[str]:
    shortest, longest = (int(bound) for bound in lengths.aminmax())
    objections = [] if shortest > 0 else ["lengths must be at least 1, but a prompt is empty: begin it with some word"]
    if longest > width:
        objections.append(f"lengths must be at most the {width} tokens of prompts, but holds {longest}")
    if longest >= model.config.max_seq_len:
        positions = model.config.max_seq_len
        objections.append(
            f"a prompt has {longest} words, but must leave room within the model's max_seq_len {positions}"
        )
    return objections
