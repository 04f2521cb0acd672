"""Greedy search, and the loop that adds one token to each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.generation.model_states import start_decoding
from regard.generation.state import DecodingState, GenerationModel, Hypothesis

NextToken = Callable[[Tensor], Tensor]
"""Choose the next tokens (batch,) from log-probabilities (batch, vocab)."""


@torch.inference_mode()
def greedy(
    model: GenerationModel,
    input_ids: Tensor,
    lengths: Tensor | None = None,
    *,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    cache: bool = True,
) -> list[Hypothesis]:
    """Generate the most probable token at each step.

    The result for one input does not depend on the rest of the batch.

    Args:
        model: A GPT or an encoder-decoder in evaluation mode.
        input_ids: (batch, tokens), sources of an encoder-decoder or prompts of a GPT, padded on the right.
        lengths: (batch,), number of tokens of each without padding. Default: no padding.
        max_new_tokens: Maximum number of new tokens, including EOS. Default: for an encoder-decoder twice the source
            plus 20, at most max_seq_len; for a GPT what its max_seq_len leaves. With a larger number, a GPT reads the
            last max_seq_len tokens at each step.
        min_new_tokens: Minimum number of new tokens, excluding EOS.
        cache: False recomputes all tokens at each step.

    Returns:
        list[Hypothesis]: One for each input; its score is its log-probability.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value, the model returns NaN, or no token is possible before
            min_new_tokens.

    Examples:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> len(greedy(model, torch.randint(3, 100, (2, 7)), max_new_tokens=5))
        2
    """
    state = start_decoding(
        model, input_ids, lengths, max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, cache=cache
    )
    return decode_rows(state, argmax_token)


def argmax_token(log_probs: Tensor) -> Tensor:
    """The most probable token of each row."""
    return log_probs.argmax(-1)


class DecodingStep(NamedTuple):
    """The next token of each unfinished sequence; every field is (batch,)."""

    sequence_ids: Tensor
    """Index of the sequence in the batch."""
    tokens: Tensor
    is_eos: Tensor
    scores: Tensor
    """Log-probability of the sequence so far."""


@torch.inference_mode()
def decode_steps(state: DecodingState, next_token: NextToken) -> Iterator[DecodingStep]:
    """Add tokens to each sequence, one row each, until it ends or reaches its max_new_tokens."""
    scores = torch.zeros(len(state.sequence_ids), device=state.tokens.device)
    while state.sequence_ids.numel():
        log_probs = state.next_token_log_probs()
        if log_probs.amax(-1).isneginf().any():
            raise state.no_token_error()
        tokens = next_token(log_probs)
        scores = scores + log_probs.gather(1, tokens[:, None]).squeeze(1)
        is_eos = state.is_eos(tokens)
        unfinished = (~(is_eos | state.at_max_length)).nonzero().flatten()
        yield DecodingStep(state.sequence_ids, tokens, is_eos, scores)
        scores = scores[unfinished]
        state.append(tokens[unfinished], unfinished, unfinished)


def decode_rows(state: DecodingState, next_token: NextToken) -> list[Hypothesis]:
    """Generate one sequence for each input; its score is its log-probability."""
    tokens: list[list[int]] = [[] for _ in state.sequence_ids]
    scores, finished = [0.0] * len(tokens), [False] * len(tokens)
    for step in decode_steps(state, next_token):
        for sequence, token, is_eos, score in zip(*(field.tolist() for field in step), strict=True):
            scores[sequence], finished[sequence] = score, is_eos
            if not is_eos:
                tokens[sequence].append(token)
    return [Hypothesis(*fields) for fields in zip(tokens, scores, finished, strict=True)]
