"""How good translations are: BLEU, chrF and TER by sacrebleu, with the signatures that make them comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from torch import Tensor

from regard.errors import InvalidArgument, did_you_mean, raise_problems

METRICS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # of sacrebleu's those that bring all they need


class Score(NamedTuple):
    """A score of a corpus, from 0 to 100 (TER may be more), and the signature that says how it was computed."""

    value: float
    signature: str


def perplexity(loss: float) -> float:
    """E to the loss of a word, in nats; infinite where no float can hold it."""
    return math.inf if loss > 709 else math.exp(loss)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    *,
    tokenize: str = "13a",
) -> dict[str, Score]:
    """Score translations against one or several references each.

    Args:
        hypotheses: One translation for each sentence.
        references: For each sentence its references, at least one; their number may differ.
        metrics: Any of ``"bleu"``, ``"chrf"``, ``"ter"``; default: all.
        tokenize: How BLEU cuts sentences into words; ``"none"`` where they are tokenized already.

    Returns:
        The corpus scores by the metrics' names.

    Raises:
        InvalidArgument: If the numbers do not fit, a sentence has no reference, or a metric or tokenizer is unknown.

    Reference:
        Post 2018, "A Call for Clarity in Reporting BLEU Scores".

    Example:
        >>> round(score(["Hallo , Welt !"], [["Hallo, Welt!", "Grüß Gott!"]], ["bleu"])["bleu"].value)
        100
    """
    objections = [
        f"metrics should be among {', '.join(METRICS)}, but {name!r} was given{did_you_mean(name, METRICS)}"
        for name in metrics
        if name not in METRICS
    ]
    if tokenize not in TOKENIZERS:
        known = ", ".join(TOKENIZERS)
        objections.append(f"tokenize should be one of {known}, but is {tokenize!r}{did_you_mean(tokenize, TOKENIZERS)}")
    if len(hypotheses) != len(references):
        objections.append(
            f"hypotheses and references should be equally many, but there are {len(hypotheses)} and {len(references)}"
        )
    if not hypotheses:
        objections.append("hypotheses should hold at least one sentence, but there is none")
    objections += [f"references[{place}] should hold at least one" for place, some in enumerate(references) if not some]
    raise_problems(objections, InvalidArgument)
    streams = [list(stream) for stream in zip_longest(*references)]  # sacrebleu wants the first of all, the second, ...
    found: dict[str, Score] = {}
    for name in metrics:
        # force: sacrebleu's advice on text that looks tokenized names options that nobody here has
        metric = BLEU(tokenize=tokenize, force=True) if name == "bleu" else METRICS[name]()
        value = metric.corpus_score(list(hypotheses), streams).score
        found[name] = Score(value, str(metric.get_signature()))
    return found


def classification_metrics(confusion: Tensor) -> dict[str, float]:
    """How well classes are told: accuracy, and the F1 of each class in the mean, both in percent.

    Args:
        confusion: (classes, classes), how many of each class (rows) were taken for which (columns).

    Returns:
        ``accuracy`` and ``f1``; a class that occurs on neither side has F1 0.

    Example:
        >>> import torch
        >>> classification_metrics(torch.tensor([[3, 1], [0, 4]]))
        {'accuracy': 87.5, 'f1': 87.3...}
    """
    right = confusion.diagonal().double()
    both = confusion.sum(0) + confusion.sum(1)
    f1 = 2 * right / both.clamp(min=1)
    return {"accuracy": 100 * float(right.sum() / confusion.sum()), "f1": 100 * float(f1.mean())}
