"""Beam search: at each step the likeliest sequences so far."""

from __future__ import annotations

import heapq
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import count_problems, raise_problems
from regard.generation.model_states import start_decoding
from regard.generation.state import DecodingState, Generating, Hypothesis
from regard.generation.topk import top_words

WIDEST_BEAM = 1000  # every beam costs a step of the decoder: far below this the search takes minutes already
LARGEST_PENALTY = 10.0  # beyond this a score is all length, and its power soon no number any more


@torch.inference_mode()
def beam_search(
    model: Generating,
    src: Tensor,
    src_lengths: Tensor | None = None,
    *,
    beam: int = 5,
    nbest: int = 1,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    min_length: int = 0,
    cache: bool = True,
) -> list[list[Hypothesis]]:
    """Generate for each source, or prompt of a `GPT`, the likeliest sequences that a beam finds.

    A finished sequence is rated by

        score = log p(words, end) / (number of words, the end counted)^length_penalty

    so that 0 prefers short sequences, 1 takes the mean log-probability of a word, and more prefers long ones. (Wu et
    al. 2016, eq. 14, divide by ((5 + length) / 6)^α instead.) A sentence is done when ``beam`` sequences are finished
    and the likeliest unfinished one, if it ended now, would be worse than all of them. It then leaves the batch.

    Args:
        model: In evaluation mode.
        src: (sentences, source), integers.
        src_lengths: (sentences,), number of real words of each source. Default: all are real.
        beam: How many sequences of a sentence are kept at each step, at most 1000.
        nbest: How many are returned, at most beam.
        length_penalty: The exponent above, from 0 to 10.
        max_length: The most words, the one that ends counted. Default: twice the source and 20, at most the model's
            max_seq_len; of a `GPT` what its max_seq_len leaves, beyond which it reads the last max_seq_len words.
        min_length: The fewest words, the one that ends not counted.
        cache: False computes all words anew at each step.

    Returns:
        For each sentence up to nbest Hypotheses, best first. A translation that the length limit cut is among them
        only where too few are finished; a text that goes on from a prompt counts by its score alone.

    Raises:
        InvalidArgument: With everything that does not fit; or if the model gives no numbers.

    Reference:
        Graves 2012, "Sequence transduction with recurrent neural networks", section 2.5 (beam search, scores divided by
        length). Candidates and the end of the search are those of transformers' ``generate``.

    Example:
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)).eval()
        >>> found = beam_search(model, torch.randint(3, 100, (2, 7)), beam=4, nbest=3, max_length=5)
        >>> [len(hypotheses) for hypotheses in found]
        [3, 3]
    """
    raise_problems(_objections(beam, nbest, length_penalty))
    options: dict[str, Any] = {"max_length": max_length, "min_length": min_length, "cache": cache}
    decoding = start_decoding(model, src, src_lengths, beams=beam, **options)
    found = [Finished(beam, length_penalty, decoding.open_ended) for _ in range(src.shape[0])]
    scores = torch.full((src.shape[0], beam), -torch.inf, device=src.device)
    scores[:, 0] = 0  # all rows of a sentence begin alike: one of them is enough
    while decoding.numbers.numel():
        scores, rows, words = _finish(found, decoding, _candidates(decoding, scores))
        leaving = _done(found, decoding, scores, rows, words)
        if not leaving.any():
            decoding.go_on(words.flatten(), rows.flatten())
            continue
        staying = (~leaving).nonzero().flatten()
        scores = scores[staying]
        decoding.go_on(words[staying].flatten(), rows[staying].flatten(), staying)
    return [finished.best(nbest) for finished in found]


def _objections(beam: int, nbest: int, length_penalty: float) -> list[str]:
    objections = count_problems(beam=beam, nbest=nbest)
    if objections:
        return objections
    if beam > WIDEST_BEAM:
        objections.append(f"beam must be at most {WIDEST_BEAM}, but is {beam}")
    if nbest > beam:
        objections.append(f"nbest must be at most beam = {beam}, but is {nbest}")
    if not (isinstance(length_penalty, Real) and 0 <= length_penalty <= LARGEST_PENALTY):  # which is false of NaN too
        objections.append(f"length_penalty must be from 0 to {LARGEST_PENALTY:g}, but is {length_penalty!r}")
    return objections


class Finished:
    """The best finished sequences of one sentence.

    Args:
        room: How many are kept.
        length_penalty: The exponent that a number of words is raised to.
        open_ended: Whether sequences that the limit cut are as good as others.
    """

    def __init__(self, room: int, length_penalty: float, open_ended: bool = False) -> None:
        self.room, self.length_penalty, self.open_ended = room, length_penalty, open_ended
        self._heap: list[tuple[float, int, Hypothesis]] = []  # worst first; of equals the later
        self._added = 0
        self._cut: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probability: float) -> None:
        """Take a sequence that ended after these words."""
        score = self.score(log_probability, len(tokens) + 1)
        self._added += 1
        push = heapq.heappush if len(self._heap) < self.room else heapq.heappushpop
        push(self._heap, (score, -self._added, Hypothesis(tokens, score)))

    def add_cut(self, tokens: list[int], log_probability: float) -> None:
        """Take a sequence that the length limit cut; to be given best first."""
        self._cut.append(Hypothesis(tokens, self.score(log_probability, len(tokens)), finished=False))

    def score(self, log_probability: float, length: int) -> float:
        """The log-probability divided by the penalty of a length."""
        return log_probability / length**self.length_penalty

    def beats(self, log_probability: float, length: int) -> bool:
        """Whether there are enough, all of them better than a sequence of this length."""
        return len(self._heap) == self.room and self._heap[0][0] >= self.score(log_probability, length)

    def best(self, count: int) -> list[Hypothesis]:
        """The best first; cut ones behind the finished, unless they are as good."""
        finished = [hypothesis for _, _, hypothesis in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
        found = finished + self._cut
        return (sorted(found, key=lambda each: -each.score) if self.open_ended else found)[:count]


class _Candidates(NamedTuple):
    """The likeliest ways to go on, best first: (sentences, candidates) each."""

    scores: Tensor
    rows: Tensor
    words: Tensor


def _candidates(decoding: DecodingState, scores: Tensor) -> _Candidates:
    """So many ways to go on that, when each row ends in every way there is, as many as there are rows still go on."""
    sentences, beam = scores.shape
    count = max(2, 1 + len(decoding.ends)) * beam
    likely = decoding.next_words()  # (sentences · beam, vocab)
    best, words = top_words(likely, min(count, likely.shape[1]))  # (sentences · beam, best)
    total = (best + scores.view(-1, 1)).view(sentences, -1)  # (sentences, beam · best)
    top_scores, places = total.topk(min(count, total.shape[1]), dim=1)
    first_rows = torch.arange(sentences, device=scores.device)[:, None] * beam
    rows = first_rows + places // best.shape[1]
    return _Candidates(top_scores, rows, words.view(sentences, -1).gather(1, places))


def _finish(found: list[Finished], decoding: DecodingState, candidates: _Candidates) -> tuple[Tensor, Tensor, Tensor]:
    """Put aside the candidates that end; the beam best others go on: scores, rows, words, (sentences, beam) each."""
    beam = decoding.beams
    ends = decoding.is_end(candidates.words)
    ending = ends[:, :beam] & candidates.scores[:, :beam].isfinite()
    for sentence, place in ending.nonzero().tolist():
        tokens = decoding.words[candidates.rows[sentence, place], decoding.begun :].tolist()
        found[int(decoding.numbers[sentence])].add(tokens, candidates.scores[sentence, place].item())
    scores, places = candidates.scores.masked_fill(ends, -torch.inf).topk(beam, dim=1)
    return scores, candidates.rows.gather(1, places), candidates.words.gather(1, places)


def _done(found: list[Finished], decoding: DecodingState, scores: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """Which sentences are done, bool (sentences,); what the limit cuts is put aside."""
    last = decoding.at_last_word
    length = decoding.length + 1
    for sentence in last.nonzero().flatten().tolist():
        finished = found[int(decoding.numbers[sentence])]
        for row, word, score in zip(rows[sentence], words[sentence], scores[sentence].tolist(), strict=True):
            if score > -torch.inf:
                finished.add_cut([*decoding.words[row, decoding.begun :].tolist(), int(word)], score)
    beaten = [
        found[number].beats(best, length)
        for number, best in zip(decoding.numbers.tolist(), scores[:, 0].tolist(), strict=True)
    ]
    return last | torch.tensor(beaten, device=last.device)
