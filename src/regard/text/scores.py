"""How good translations are: BLEU, chrF and TER by sacrebleu, with the signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.errors import InvalidArgument, nearest, refuse

METRICS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}


class Score(NamedTuple):
    """A score of a corpus, from 0 to 100 (TER may be more), and the signature that says how it was computed."""

    value: float
    signature: str


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str] = ("bleu", "chrf", "ter")
) -> dict[str, Score]:
    """Score translations against one or several references each.

    Args:
        hypotheses: One translation for each sentence.
        references: For each sentence its references, at least one; their number may differ.
        metrics: Any of ``"bleu"``, ``"chrf"``, ``"ter"``; default: all.

    Returns:
        The corpus scores by the metrics' names.

    Raises:
        InvalidArgument: If the numbers do not fit, a sentence has no reference, or a metric is unknown.

    Reference:
        Post 2018, "A Call for Clarity in Reporting BLEU Scores".

    Example:
        >>> round(score(["Hallo , Welt !"], [["Hallo, Welt!", "Grüß Gott!"]], ["bleu"])["bleu"].value)
        100
    """
    objections = [
        f"metrics should be among {', '.join(METRICS)}, but {name!r} was given{nearest(name, METRICS)}"
        for name in metrics
        if name not in METRICS
    ]
    if len(hypotheses) != len(references):
        objections.append(
            f"hypotheses and references should be equally many, but there are {len(hypotheses)} and {len(references)}"
        )
    if not hypotheses:
        objections.append("hypotheses should hold at least one sentence, but there is none")
    objections += [f"references[{place}] should hold at least one" for place, some in enumerate(references) if not some]
    refuse(objections, InvalidArgument)
    streams = [list(stream) for stream in zip_longest(*references)]  # sacrebleu wants the first of all, the second, ...
    found: dict[str, Score] = {}
    for name in metrics:
        metric = METRICS[name]()
        value = metric.corpus_score(list(hypotheses), streams).score
        found[name] = Score(value, str(metric.get_signature()))
    return found
