"""Sampling with temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType
from regard.generation.greedy import NextToken, decode_rows
from regard.generation.model_states import start_decoding
from regard.generation.state import GenerationModel, Hypothesis

SEED_RANGE = range(-(2**63), 2**64)  # seeds that torch.Generator accepts
TEMPERATURE_RANGE = 1e-30, 1e30  # beyond these the quotient may overflow float32; the distribution no longer changes


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of `sample`, with its defaults.

    With an int as seed, equal calls return equal samples; a generator keeps its state between calls.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value; lists all problems.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | torch.Generator | None = None

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.number("temperature", self.temperature, above=0)
            checks.integer("top_k", self.top_k, low=1, optional=True)
            checks.number("top_p", self.top_p, above=0, high=1, optional=True)
            if not isinstance(self.seed, torch.Generator):
                checks.integer("seed", self.seed, low=SEED_RANGE.start, below=SEED_RANGE.stop, optional=True)

    def with_generator(self, device: torch.device) -> SamplingParams:
        """A copy in which an int seed is replaced by a generator on the device.

        Raises:
            InvalidArgument: If the seed is a generator on another device.
        """
        return replace(self, seed=as_generator(self.seed, device))


@torch.inference_mode()
def sample(
    model: GenerationModel,
    input_ids: Tensor,
    lengths: Tensor | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | torch.Generator | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
) -> list[Hypothesis]:
    """Sample one sequence for each source or prompt; repeat rows of ``input_ids`` for several samples.

    p(token) ∝ exp(logit / temperature), restricted by top_k and then by top_p

    Args:
        model: A GPT or an encoder-decoder in evaluation mode.
        input_ids: (batch, tokens), as for `greedy`.
        lengths: (batch,), as for `greedy`.
        temperature: Below 1 sharpens the distribution, above 1 flattens it.
        top_k: Sample from this number of most probable tokens. Default: all.
        top_p: Sample from the fewest most probable tokens whose total probability is at least this. Default: all.
        seed: An int returns the same samples for the same batch; a generator keeps its state between calls. Default:
            torch's global generator.
        max_new_tokens: Maximum number of new tokens, including EOS. Default: as for `greedy`.
        min_new_tokens: Minimum number of new tokens, excluding EOS.

    Returns:
        list[Hypothesis]: One for each input; its score is its log-probability at temperature 1 among all tokens.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value, the model returns NaN, or no token is possible before
            min_new_tokens.

    Reference:
        Fan et al. 2018, "Hierarchical neural story generation" (top_k); Holtzman et al. 2020, "The curious case of
        neural text degeneration" (top_p).

    Examples:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> len(sample(model, torch.randint(3, 100, (2, 7)), top_k=5, seed=1, max_new_tokens=5))
        2
    """
    sampling = SamplingParams(temperature, top_k, top_p, seed)
    state = start_decoding(model, input_ids, lengths, max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens)
    return decode_rows(state, make_sampler(sampling, input_ids.device))


def make_sampler(sampling: SamplingParams, device: torch.device) -> NextToken:
    """The function that samples the next token of each row."""
    generator = as_generator(sampling.seed, device)
    lowest, highest = TEMPERATURE_RANGE
    temperature = min(max(sampling.temperature, lowest), highest)

    def next_token(log_probs: Tensor) -> Tensor:
        # The maximum becomes 0 before the division, so that the softmax cannot overflow.
        logits = (log_probs - log_probs.amax(-1, keepdim=True)) / temperature
        probs = filter_top_k_top_p(logits, sampling.top_k, sampling.top_p).softmax(-1)
        return torch.multinomial(probs, 1, generator=generator).squeeze(1)

    return next_token


def as_generator(seed: int | torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """A new generator on the device for an int seed; None and a generator on the device are returned unchanged."""
    if not isinstance(seed, torch.Generator):
        return None if seed is None else torch.Generator(device).manual_seed(int(seed))
    if seed.device.type != device.type:
        raise InvalidArgument(f"seed: expected a generator on {device.type} like the model, got one on {seed.device}")
    return seed


def check_sampling(sampling: object) -> None:
    """Raise `InvalidType` unless an argument is a `SamplingParams` or None."""
    if not isinstance(sampling, SamplingParams | None):
        hint = "pass for example SamplingParams(temperature=0.8)"
        raise InvalidType(f"sampling: expected a SamplingParams or None, got {type(sampling).__name__}; {hint}")


def filter_top_k_top_p(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the logits (rows, vocab) of all tokens outside top_k, then of those outside top_p, to −∞.

    Exactly top_k tokens are kept, also among equal logits; top_k = 1 keeps that of ``argmax``.

    Examples:
        >>> filter_top_k_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_k=None, top_p=0.7).exp()
        tensor([[0.5000, 0.3000, 0.0000]])
    """
    if top_k is not None and top_k < logits.shape[1]:
        indices = logits.argmax(1, keepdim=True) if top_k == 1 else logits.topk(top_k, dim=1).indices
        logits = torch.full_like(logits, -torch.inf).scatter_(1, indices, logits.gather(1, indices))
    if top_p is not None and top_p < 1:
        ordered, indices = logits.sort(dim=1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        more_probable = probs.cumsum(1) - probs  # total probability of the tokens before each one
        ordered = ordered.masked_fill(more_probable >= top_p, -torch.inf)
        logits = torch.empty_like(logits).scatter_(1, indices, ordered)
    return logits
