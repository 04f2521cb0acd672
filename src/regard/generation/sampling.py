"""SamplingParams: each word is drawn at random, as likely as the model holds it to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real

import torch
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, count_problems, raise_problems
from regard.generation.model_states import start_decoding
from regard.generation.single import Choose, extend_singly
from regard.generation.state import Generating, Hypothesis

SEEDS = range(-(2**63), 2**64)  # what torch's generators take
TEMPERATURES = 1e-30, 1e30  # beyond these a quotient may leave float32; the draw is long that of the limit


@dataclass(frozen=True)
class SamplingParams:
    """How words are drawn at random; arguments and defaults are those of :func:`sample`.

    With a number as seed, equal calls draw equal words; a generator goes on where it stands.

    Raises:
        InvalidArgument: With everything that does not fit.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | torch.Generator | None = None

    def __post_init__(self) -> None:
        raise_problems(sampling_objections(self.temperature, self.top_k, self.top_p, self.seed))

    def started(self, device: torch.device) -> SamplingParams:
        """The same with a generator on the device in place of a number."""
        return replace(self, seed=generator_on(device, self.seed))


@torch.inference_mode()
def sample(
    model: Generating,
    src: Tensor,
    src_lengths: Tensor | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | torch.Generator | None = None,
    max_length: int | None = None,
    min_length: int = 0,
) -> list[Hypothesis]:
    """Draw one sequence for each source, or prompt of a `GPT`; to draw several, give the source several times.

    p(word) ∝ exp(logit / temperature), of those words that top_k and then top_p leave

    Args:
        model: In evaluation mode.
        src: (sentences, source), integers.
        src_lengths: (sentences,), number of real words of each source. Default: all are real.
        temperature: Below 1 keeps to likely words, above 1 strays.
        top_k: Draw from so many likeliest words. Default: all.
        top_p: Draw from the fewest likeliest words that together have this probability. Default: all.
        seed: The same seed draws the same sequences from the same batch; a generator goes on where it stands. Default:
            torch's own random state.
        max_length: The most words, the one that ends counted. Default: twice the source and 20, at most the model's
            max_seq_len; of a `GPT` what its max_seq_len leaves, beyond which it reads the last max_seq_len words.
        min_length: The fewest words, the one that ends not counted.

    Returns:
        One Hypothesis a sentence; its score is its log-probability at temperature 1, from all words.

    Raises:
        InvalidArgument: With everything that does not fit; or if the model gives no numbers.

    Reference:
        Fan et al. 2018, "Hierarchical neural story generation" (top_k); Holtzman et al. 2020, "The curious case of
        neural text degeneration" (top_p).

    Example:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> len(sample(model, torch.randint(3, 100, (2, 7)), top_k=5, seed=1, max_length=5))
        2
    """
    raise_problems(sampling_objections(temperature, top_k, top_p, seed))
    decoding = start_decoding(model, src, src_lengths, max_length=max_length, min_length=min_length)
    return extend_singly(decoding, drawing(src.device, temperature, top_k, top_p, seed))


def drawing(
    device: torch.device,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | torch.Generator | None = None,
) -> Choose:
    """What draws a word of each row; arguments and errors are those of :func:`sample`."""
    raise_problems(sampling_objections(temperature, top_k, top_p, seed))
    generator = generator_on(device, seed)
    coldest, hottest = TEMPERATURES
    divisor = min(max(temperature, coldest), hottest)

    def draw(likely: Tensor) -> Tensor:
        # The likeliest word has 0, which stays 0: no quotient of the others is too large for the softmax.
        kept = keep_likely((likely - likely.amax(-1, keepdim=True)) / divisor, top_k, top_p)
        return torch.multinomial(kept.softmax(-1), 1, generator=generator).squeeze(1)

    return draw


def generator_on(device: torch.device, seed: int | torch.Generator | None) -> torch.Generator | None:
    """A generator on the device that begins at a number; one that is given, as it stands.

    Raises:
        InvalidArgument: If it draws on another device.
    """
    if not isinstance(seed, torch.Generator):
        return None if seed is None else torch.Generator(device).manual_seed(int(seed))
    if seed.device.type != device.type:
        raise InvalidArgument(f"seed must be a generator on {device.type}, where the model is, but is on {seed.device}")
    return seed


def check_sampling(sampling: object) -> None:
    """Refuse what is neither None nor a `SamplingParams`.

    Raises:
        InvalidType: Then.
    """
    if not isinstance(sampling, SamplingParams | None):
        raise InvalidType(
            f"sampling must be a SamplingParams, but is a {type(sampling).__name__}: SamplingParams(temperature=0.8)"
        )


def keep_likely(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set to −∞ the logits (rows, vocab) of all words that top_k, and of the rest top_p, leave out.

    Exactly top_k words stay, also where several share the last place; the one of top_k = 1 is that of ``argmax``.

    Example:
        >>> keep_likely(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_k=None, top_p=0.7).exp()
        tensor([[0.5000, 0.3000, 0.0000]])
    """
    if top_k is not None and top_k < logits.shape[1]:
        words = logits.argmax(1, keepdim=True) if top_k == 1 else logits.topk(top_k, dim=1).indices
        logits = torch.full_like(logits, -torch.inf).scatter_(1, words, logits.gather(1, words))
    if top_p is not None and top_p < 1:
        ordered, words = logits.sort(dim=1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(1) - probability  # of all likelier words
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
        logits = torch.empty_like(logits).scatter_(1, words, ordered)
    return logits


def sampling_objections(
    temperature: float, top_k: int | None, top_p: float | None, seed: int | torch.Generator | None = None
) -> list[str]:
    """Say what is wrong with the rules of drawing."""
    objections = []
    if not (isinstance(temperature, Real) and 0 < temperature < math.inf):
        objections.append(f"temperature must be above 0 and finite, but is {temperature!r}")
    objections += count_problems(top_k=top_k)
    if top_p is not None and not (isinstance(top_p, Real) and 0 < top_p <= 1):
        objections.append(f"top_p must be above 0 and at most 1, but is {top_p!r}")
    if not isinstance(seed, torch.Generator | None) and not (isinstance(seed, Integral) and int(seed) in SEEDS):
        objections.append(f"seed must be an integer from -2^63 to 2^64 - 1, but is {seed!r}")
    return objections
