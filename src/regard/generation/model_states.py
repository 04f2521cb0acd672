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
    """State of a batch of target sequences; `start_decoding` checks the arguments."""

    def __init__(self, model: EncoderDecoder, input_ids: Tensor, lengths: Tensor | None, **options: Any) -> None:
        config = model.config
        self.memory, self.lengths = model.encode(input_ids, lengths), lengths
        bos = input_ids.new_full((len(input_ids), 1), config.bos_id, dtype=torch.int64)
        suppressed = {config.pad_id, config.bos_id}
        super().__init__(model, bos, eos_ids=[config.eos_id], suppress_tokens=suppressed, **options)

    def hidden_states(self, tokens: Tensor) -> Tensor:
        return self.model.decode(tokens, self.memory, self.lengths, cache=self.cache)

    def select_sequences(self, indices: Tensor) -> None:
        super().select_sequences(indices)
        self.memory = self.memory.index_select(0, indices)
        self.lengths = None if self.lengths is None else self.lengths[indices]


class CausalState(DecodingState[GPT]):
    """State of a batch of prompts and their continuations; `start_decoding` checks the arguments.

    Prompts are padded on the left, so that the next token has the same index in all rows. Beyond its max_seq_len the
    model reads the last max_seq_len tokens of each row without a cache, as nanoGPT does.
    """

    rank_unfinished = True

    def __init__(self, model: GPT, input_ids: Tensor, lengths: Tensor | None, **options: Any) -> None:
        width = input_ids.shape[1]
        self.left_padding = None
        if lengths is not None and (lengths < width).any():
            self.left_padding = width - lengths  # (batch,)
            indices = torch.arange(width, device=input_ids.device) - self.left_padding[:, None]
            input_ids = input_ids.gather(1, indices.clamp(min=0))
        super().__init__(model, input_ids.to(torch.int64), eos_ids=model.config.eos_ids, **options)

    def hidden_states(self, tokens: Tensor) -> Tensor:
        left_padding, overflow = self.left_padding, self.tokens.shape[1] - self.model.config.max_seq_len
        if left_padding is not None:
            left_padding = left_padding.repeat_interleave(len(tokens) // len(left_padding))  # (rows,)
        if overflow > 0:  # the positions of cached tokens would change at each step
            self.cache, tokens = None, self.tokens[:, overflow:]
            left_padding = None if left_padding is None else (left_padding - overflow).clamp(min=0)
        return self.model.forward_features(tokens, left_padding, cache=self.cache)[0]

    def select_sequences(self, indices: Tensor) -> None:
        super().select_sequences(indices)
        self.left_padding = None if self.left_padding is None else self.left_padding[indices]


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

    Arguments are those of `regard.generation.greedy`, plus ``num_beams``, the number of rows per sequence.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value; lists all problems.
    """
    _check_inputs(model, input_ids, lengths, max_new_tokens, min_new_tokens)
    max_seq_len = model.config.max_seq_len
    lengths = None if lengths is None else lengths.long()  # uint8 would overflow in sums and comparisons
    widths = input_ids.new_full((len(input_ids),), input_ids.shape[1], dtype=torch.int64)
    num_tokens = widths if lengths is None else lengths
    if max_new_tokens is not None:
        limits = torch.full_like(num_tokens, max_new_tokens)
    elif isinstance(model, GPT):
        limits = max_seq_len - num_tokens
    else:
        limits = (2 * num_tokens + 20).clamp(min=min_new_tokens + 1, max=max_seq_len)
    options: dict[str, Any] = {
        "max_new_tokens": limits,
        "num_beams": num_beams,
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
    is_gpt, max_seq_len = isinstance(model, GPT), model.config.max_seq_len
    limit, limit_name, hint = max_seq_len, f"the model's max_seq_len {max_seq_len}", ""
    with Checks() as checks:
        checks.that(not model.training, "model: expected evaluation mode, got training mode; call model.eval()")
        are_counts = checks.integer("max_new_tokens", max_new_tokens, low=1, optional=True)
        are_counts = checks.integer("min_new_tokens", min_new_tokens, low=0) and are_counts
        is_batch = check_ids(checks, "input_ids", input_ids, model.config.vocab_size)
        # Values are checked on the CPU only; decoding synchronizes at each step anyway.
        on_cpu = lengths.cpu() if isinstance(lengths, Tensor) else lengths
        shortest = 1 if isinstance(model, GPT) else model.min_source_length
        is_batch = check_lengths(checks, "lengths", on_cpu, "input_ids", input_ids, shortest) and is_batch
        if is_gpt and is_batch:
            longest = input_ids.shape[1] if on_cpu is None else int(on_cpu.max())
            limit, hint = max_seq_len - longest, "; pass max_new_tokens"
            limit_name = f"the {limit} tokens that a prompt of {longest} leaves of the model's max_seq_len"
            expected = f"expected prompts shorter than the model's max_seq_len {max_seq_len}"
            checks.that(limit > 0, f"input_ids: {expected}, got one of {longest} tokens; truncate it")
        if max_new_tokens is not None and are_counts:
            expected = f"expected at most the model's max_seq_len {max_seq_len}"
            checks.that(is_gpt or max_new_tokens <= max_seq_len, f"max_new_tokens: {expected}, got {max_new_tokens}")
            limit, limit_name, hint = max_new_tokens, f"max_new_tokens {max_new_tokens}", ""
        if are_counts and limit > 0:
            fits = min_new_tokens <= limit
            checks.that(fits, f"min_new_tokens: expected at most {limit_name}, got {min_new_tokens}{hint}")
