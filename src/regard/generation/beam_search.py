"""Beam search."""

from __future__ import annotations

from bisect import insort
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.checks import Checks
from regard.generation.model_states import start_decoding
from regard.generation.state import DecodingState, GenerationModel, Hypothesis
from regard.generation.topk import fast_topk

MAX_BEAM = 1000  # each beam is a row of every decoder step; a search takes minutes long before this
MAX_LENGTH_PENALTY = 10  # above this the length decides alone, and its power soon overflows


@torch.inference_mode()
def beam_search(
    model: GenerationModel,
    input_ids: Tensor,
    lengths: Tensor | None = None,
    *,
    beam: int = 5,
    nbest: int = 1,
    length_penalty: float = 1.0,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    cache: bool = True,
) -> list[list[Hypothesis]]:
    """Generate the most probable sequences that a beam search finds.

    A finished sequence has the score

        score = log p(tokens, EOS) / (number of tokens including EOS)^length_penalty

    An exponent of 0 favors short sequences, 1 takes the mean log-probability of a token, a larger one favors long
    sequences. (Wu et al. 2016, eq. 14, divide by ((5 + length) / 6)^α instead.) An input is done, and leaves the
    batch, when it has ``beam`` finished sequences and its best unfinished one would be worse if it ended now.

    Args:
        model: A GPT or an encoder-decoder in evaluation mode.
        input_ids: (batch, tokens), as for `greedy`.
        lengths: (batch,), as for `greedy`.
        beam: Number of unfinished sequences per input, from 1 to 1000.
        nbest: Number of sequences to return per input, at most beam.
        length_penalty: The exponent above, from 0 to 10.
        max_new_tokens: Maximum number of new tokens, including EOS. Default: as for `greedy`.
        min_new_tokens: Minimum number of new tokens, excluding EOS.
        cache: False recomputes all tokens at each step.

    Returns:
        list[list[Hypothesis]]: Up to nbest for each input, best first. Unfinished sequences of an encoder-decoder
        follow all finished ones; those of a GPT are ranked by score.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If an argument has a wrong value, the model returns NaN, or no token is possible before
            min_new_tokens.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", section 2.5 (beam search, scores divided by
        length). Candidates and the end of the search are those of transformers' ``generate``.

    Examples:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> results = beam_search(model, torch.randint(3, 100, (2, 7)), beam=4, nbest=3, max_new_tokens=5)
        >>> [len(hypotheses) for hypotheses in results]
        [3, 3]
    """
    with Checks() as checks:
        check_search(checks, beam, nbest, length_penalty)
    options = {"num_beams": beam, "min_new_tokens": min_new_tokens, "cache": cache}
    state = start_decoding(model, input_ids, lengths, max_new_tokens=max_new_tokens, **options)
    hypotheses = [BeamHypotheses(beam, length_penalty, state.rank_unfinished) for _ in input_ids]
    scores = torch.full((len(input_ids), beam), -torch.inf, device=input_ids.device)
    scores[:, 0] = 0  # all rows of an input are equal at first: expand only one of them
    while state.sequence_ids.numel():
        candidates = _store_finished(hypotheses, state, _candidates(state, scores))
        unfinished = _unfinished_inputs(hypotheses, state, candidates)
        scores, rows, tokens = (field[unfinished] for field in candidates)
        state.append(tokens.flatten(), rows.flatten(), unfinished)
    return [sequences.best(nbest) for sequences in hypotheses]


def check_search(checks: Checks, beam: Any, nbest: Any, length_penalty: Any) -> None:
    """Check the options of a beam search."""
    if checks.integer("beam", beam, low=1) and checks.integer("nbest", nbest, low=1):
        checks.that(beam <= MAX_BEAM, f"beam: expected at most {MAX_BEAM}, got {beam}")
        checks.that(nbest <= beam, f"nbest: expected at most beam = {beam}, got {nbest}")
    checks.number("length_penalty", length_penalty, low=0, high=MAX_LENGTH_PENALTY)


class BeamHypotheses:
    """The ``num_beams`` best finished sequences of one input, and its unfinished ones at max_new_tokens.

    Unfinished sequences follow all finished ones, unless ``rank_unfinished`` ranks all by score.
    """

    def __init__(self, num_beams: int, length_penalty: float, rank_unfinished: bool = False) -> None:
        self.num_beams, self.length_penalty, self.rank_unfinished = num_beams, length_penalty, rank_unfinished
        self._finished: list[Hypothesis] = []  # best first, and of equal scores the first that was added
        self._unfinished: list[Hypothesis] = []

    def add(self, tokens: list[int], log_prob: float) -> None:
        """Add a sequence that ended with EOS after these tokens."""
        insort(self._finished, Hypothesis(tokens, self._score(log_prob, len(tokens) + 1)), key=_negative_score)
        del self._finished[self.num_beams :]

    def add_unfinished(self, tokens: list[int], log_prob: float) -> None:
        """Add a sequence that reached max_new_tokens, after all better ones."""
        self._unfinished.append(Hypothesis(tokens, self._score(log_prob, len(tokens)), finished=False))

    def is_done(self, best_log_prob: float, length: int) -> bool:
        """Whether ``num_beams`` sequences are finished and a sequence of this length is not better than any of them."""
        is_full = len(self._finished) == self.num_beams
        return is_full and self._finished[-1].score >= self._score(best_log_prob, length)

    def best(self, count: int) -> list[Hypothesis]:
        """The best sequences, best first."""
        ranked = self._finished + self._unfinished
        return (sorted(ranked, key=_negative_score) if self.rank_unfinished else ranked)[:count]

    def _score(self, log_prob: float, length: int) -> float:
        return log_prob / length**self.length_penalty


def _negative_score(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


class _Candidates(NamedTuple):
    """Continuations of each input, best first: (batch, candidates) each."""

    scores: Tensor
    rows: Tensor
    tokens: Tensor


def _candidates(state: DecodingState, scores: Tensor) -> _Candidates:
    """Enough candidates that ``beam`` unfinished ones remain even if every row ends with every EOS token."""
    batch, beam = scores.shape
    count = max(2, 1 + len(state.eos_ids)) * beam
    log_probs = state.next_token_log_probs()  # (batch · beam, vocab)
    row_scores, tokens = fast_topk(log_probs, min(count, log_probs.shape[1]))  # (batch · beam, candidates)
    totals = (row_scores + scores.view(-1, 1)).view(batch, -1)  # (batch, beam · candidates)
    top_scores, indices = totals.topk(min(count, totals.shape[1]), dim=1)
    first_rows = torch.arange(batch, device=scores.device)[:, None] * beam
    rows = first_rows + indices // row_scores.shape[1]
    return _Candidates(top_scores, rows, tokens.view(batch, -1).gather(1, indices))


def _store_finished(hypotheses: list[BeamHypotheses], state: DecodingState, candidates: _Candidates) -> _Candidates:
    """Store the candidates that end among the ``beam`` best; return the ``beam`` best that do not end."""
    beam = state.num_beams
    is_eos = state.is_eos(candidates.tokens)
    finished = is_eos[:, :beam] & candidates.scores[:, :beam].isfinite()
    for index, rank in finished.nonzero().tolist():
        tokens = state.tokens[candidates.rows[index, rank], state.prompt_length :].tolist()
        hypotheses[int(state.sequence_ids[index])].add(tokens, candidates.scores[index, rank].item())
    scores, ranks = candidates.scores.masked_fill(is_eos, -torch.inf).topk(beam, dim=1)
    return _Candidates(scores, candidates.rows.gather(1, ranks), candidates.tokens.gather(1, ranks))


def _unfinished_inputs(hypotheses: list[BeamHypotheses], state: DecodingState, candidates: _Candidates) -> Tensor:
    """Indices of the inputs that are not done; stores the candidates of those that reach max_new_tokens.

    Raises:
        InvalidArgument: If an input has neither a sequence nor a candidate.
    """
    at_max_length, length = state.at_max_length, state.num_new_tokens + 1
    for index in at_max_length.nonzero().flatten().tolist():
        sequences = hypotheses[int(state.sequence_ids[index])]
        for score, row, token in zip(*(field[index].tolist() for field in candidates), strict=True):
            if score > -torch.inf:
                sequences.add_unfinished([*state.tokens[row, state.prompt_length :].tolist(), token], score)
    best_scores = zip(state.sequence_ids.tolist(), candidates.scores[:, 0].tolist(), strict=True)
    is_done: list[bool] = []
    for sequence_id, score in best_scores:
        sequences = hypotheses[sequence_id]
        if score == -torch.inf and not sequences.best(1):
            raise state.no_token_error()
        is_done.append(score == -torch.inf or sequences.is_done(score, length))
    return (~(at_max_length | torch.tensor(is_done, device=at_max_length.device))).nonzero().flatten()
