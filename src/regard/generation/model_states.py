"""Decoding states of encoder-decoders, which start from a source, and of GPTs, which start from a prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidType
from regard.generation.state import DecodingState, GenerationModel
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.gpt import GPT
from regard.models.inputs import check_ids, check_lengths


class EncoderDecoderState(DecodingState[EncoderDecoder]):
    """State of a batch of target sequences; arguments as for :func:`start_decoding`, which checks them."""

    def __init__(
        self,
        model: EncoderDecoder,
        input_ids: Tensor,
        lengths: Tensor | None,
        *,
        max_new_tokens: int | None,
        min_new_tokens: int,
        **options: Any,
    ) -> None:
        config = model.config
        self.memory, self.lengths = model.encode(input_ids, lengths), lengths
        limits = (2 * _int64_lengths(input_ids, lengths) + 20).clamp(min=min_new_tokens + 1, max=config.max_seq_len)
        if max_new_tokens is not None:
            limits.fill_(max_new_tokens)
        super().__init__(
            model,
            input_ids.new_full((len(input_ids), 1), config.bos_id, dtype=torch.int64),
            limits,
            eos_ids=[config.eos_id],
            suppress_tokens={config.pad_id, config.bos_id},
            min_new_tokens=min_new_tokens,
            **options,
        )

    def hidden_states(self, tokens: Tensor) -> Tensor:
        return self.model.decode(tokens, self.memory, self.lengths, cache=self.cache)

    def select_sentences(self, sentences: Tensor) -> None:
        super().select_sentences(sentences)
        self.memory = self.memory.index_select(0, sentences)
        self.lengths = None if self.lengths is None else self.lengths[sentences]


class CausalState(DecodingState[GPT]):
    """State of a batch of prompts and their continuations; arguments as for :func:`start_decoding`, which checks them.

    Prompts are padded on the left, so that the next token has the same index in all rows. Beyond its max_seq_len the
    model reads the last max_seq_len tokens of each row without a cache, as nanoGPT does.
    """

    rank_unfinished = True

    def __init__(
        self, model: GPT, input_ids: Tensor, lengths: Tensor | None, *, max_new_tokens: int | None, **options: Any
    ) -> None:
        width = input_ids.shape[1]
        prompt_lengths = _int64_lengths(input_ids, lengths)
        left_padding = width - prompt_lengths  # (sentences,)
        self.left_padding = left_padding if left_padding.any() else None
        if self.left_padding is not None:
            indices = torch.arange(width, device=input_ids.device) - left_padding[:, None]
            input_ids = input_ids.gather(1, indices.clamp(min=0))
        limits = model.config.max_seq_len - prompt_lengths
        if max_new_tokens is not None:
            limits.fill_(max_new_tokens)
        super().__init__(model, input_ids.to(torch.int64), limits, eos_ids=model.config.eos_ids, **options)

    def hidden_states(self, tokens: Tensor) -> Tensor:
        left_padding, overflow = self.left_padding, self.tokens.shape[1] - self.model.config.max_seq_len
        if left_padding is not None:
            left_padding = left_padding.repeat_interleave(len(tokens) // len(left_padding))  # (rows,)
        if overflow > 0:  # the positions of cached tokens would change at each step
            self.cache, tokens = None, self.tokens[:, overflow:]
            left_padding = None if left_padding is None else (left_padding - overflow).clamp(min=0)
        return self.model.forward_features(tokens, left_padding, cache=self.cache, output_attentions=False)[0]

    def select_sentences(self, sentences: Tensor) -> None:
        super().select_sentences(sentences)
        self.left_padding = None if self.left_padding is None else self.left_padding[sentences]


def start_decoding(
    model: GenerationModel,
    input_ids: Tensor,
    lengths: Tensor | None = None,
    *,
    num_beams: int = 1,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    cache: bool = True,
) -> DecodingState:
    """Check the arguments of a search and return the state of its batch before the first step.

    Args:
        model: An encoder-decoder or a GPT in evaluation mode.
        input_ids: (sentences, tokens), sources or prompts, padded on the right.
        lengths: (sentences,), number of tokens of each without padding. Default: no padding.
        num_beams: Rows per sentence.
        max_new_tokens: Maximum number of new tokens, including EOS. Default: for an encoder-decoder twice the source
            plus 20, at most max_seq_len; for a GPT what its max_seq_len leaves.
        min_new_tokens: Minimum number of new tokens, excluding EOS.
        cache: False recomputes all tokens at each step.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value; lists all problems.
    """
    _check_inputs(model, input_ids, lengths, max_new_tokens, min_new_tokens)
    options: dict[str, Any] = {
        "num_beams": num_beams,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "cache": model.new_cache() if cache else None,
    }
    if isinstance(model, GPT):
        return CausalState(model, input_ids, lengths, **options)
    return EncoderDecoderState(model, input_ids, lengths, **options)


def _check_inputs(
    model: GenerationModel, input_ids: Tensor, lengths: Tensor | None, max_new_tokens: int | None, min_new_tokens: int
) -> None:
    if not isinstance(model, GenerationModel):
        raise InvalidType(f"model: expected a GPT or an encoder-decoder, got {type(model).__name__}")
    is_gpt = isinstance(model, GPT)
    max_seq_len = model.config.max_seq_len
    with Checks() as checks:
        checks.that(not model.training, "model: expected evaluation mode, got training mode; call model.eval()")
        is_int = checks.integer("max_new_tokens", max_new_tokens, low=1, optional=True)
        fits = checks.integer("min_new_tokens", min_new_tokens, low=0) and is_int
        if fits:
            limit = max_seq_len if max_new_tokens is None else max_new_tokens
            source = "the model's max_seq_len" if max_new_tokens is None else "max_new_tokens"
            checks.that(
                is_gpt or limit <= max_seq_len,
                f"max_new_tokens: expected at most the model's max_seq_len {max_seq_len}, got {limit}",
            )
            fits = checks.that(
                min_new_tokens <= limit, f"min_new_tokens: expected at most {source} {limit}, got {min_new_tokens}"
            )
        valid = check_ids(checks, "input_ids", input_ids, model.config.vocab_size)
        # Values are checked on the CPU only; decoding synchronizes at each step anyway.
        on_cpu = lengths.cpu() if isinstance(lengths, Tensor) else lengths
        low = 1 if is_gpt else model.min_source_length
        valid = check_lengths(checks, "lengths", on_cpu, "input_ids", input_ids, low) and valid
        if is_gpt and valid:
            longest = input_ids.shape[1] if on_cpu is None else int(on_cpu.max())
            room = max_seq_len - longest
            is_short = checks.that(
                room > 0,
                f"input_ids: expected prompts shorter than the model's max_seq_len {max_seq_len}, got one of {longest} "
                "tokens; truncate it",
            )
            if fits and is_short and max_new_tokens is None:
                expected = f"at most the {room} tokens that a prompt of {longest} leaves of the model's max_seq_len"
                checks.that(
                    min_new_tokens <= room,
                    f"min_new_tokens: expected {expected}, got {min_new_tokens}; pass max_new_tokens",
                )


def _int64_lengths(input_ids: Tensor, lengths: Tensor | None) -> Tensor:
    """The lengths in int64, so that sums do not overflow; without padding the width of the batch."""
    full = input_ids.new_full((len(input_ids),), input_ids.shape[1], dtype=torch.int64)
    return full if lengths is None else lengths.long()
