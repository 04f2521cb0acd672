"""Metrics of translations: BLEU, chrF and TER by sacrebleu, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.checks import Checks
from regard.metrics.score import Score

METRICS = {"bleu": (BLEU, "BLEU"), "chrf": (CHRF, "chrF2"), "ter": (TER, "TER")}
"""The class and the label of each metric."""
TOKENIZERS = ("13a", "none", "intl", "char", "zh")  # those of sacrebleu that need no further package


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    *,
    tokenize: str = "13a",
) -> dict[str, Score]:
    """Score translations against one or more references each.

    Args:
        hypotheses: One translation per sentence.
        references: At least one reference per sentence; their number may differ between sentences.
        metrics: Any of ``"bleu"``, ``"chrf"`` and ``"ter"``. Default: all.
        tokenize: sacreBLEU's tokenizer for BLEU: ``"13a"``, ``"intl"``, ``"char"``, ``"zh"``, or ``"none"`` for texts
            that are tokenized already.

    Returns:
        The corpus score of each metric with its signature, from 0 to 100; TER can be higher.

    Raises:
        InvalidType: If an argument is not a sequence of str, or references are not a sequence of those.
        InvalidArgument: If the numbers of hypotheses and references differ or are 0, a sentence has no reference, or a
            metric or tokenizer is unknown.

    Reference:
        Post 2018, "A Call for Clarity in Reporting BLEU Scores".

    Examples:
        >>> round(corpus_scores(["Hallo , Welt !"], [["Hallo, Welt!", "Grüß Gott!"]], ["bleu"])["bleu"].score)
        100
    """
    with Checks() as checks:
        if checks.strings("metrics", metrics):
            for name in metrics:
                checks.choice("metrics", name, METRICS)
        check_references(checks, "hypotheses", hypotheses, references, tokenize)
    streams = [list(stream) for stream in zip_longest(*references)]  # the first reference of each sentence, the second
    scores = {}
    for name in metrics:
        # force: silences sacrebleu's warning about tokenized text, which names options that do not exist here
        metric_type, label = METRICS[name]
        metric = BLEU(tokenize=tokenize, force=True) if metric_type is BLEU else metric_type()
        value = metric.corpus_score(list(hypotheses), streams).score
        scores[name] = Score(value, label, str(metric.get_signature()))
    return scores


def max_words(hypotheses: Sequence[str], tokenize: str = "13a") -> int:
    """Number of words of the longest text, as BLEU counts them; below 4, its n-grams, BLEU is 0.

    Examples:
        >>> max_words(["Er geht.", "Guten Tag"])
        3
    """
    tokenizer = BLEU(tokenize=tokenize, force=True).tokenizer
    return max((len(tokenizer(text.rstrip()).split()) for text in hypotheses), default=0)


def check_references(checks: Checks, name: str, texts: Any, references: Any, tokenize: Any) -> None:
    """Check arguments of `corpus_scores`; ``name`` is what messages call the texts."""
    checks.choice("tokenize", tokenize, TOKENIZERS)
    if checks.strings(name, texts):
        checks.that(bool(texts), f"{name}: expected at least one sentence, got none")
        if checks.sequence("references", references, "references of each sentence"):
            expected = f"as many as {name}, {len(texts)}"
            checks.that(len(references) == len(texts), f"references: expected {expected}, got {len(references)}")
            for index, each in enumerate(references):
                if checks.strings(f"references[{index}]", each):
                    checks.that(bool(each), f"references[{index}]: expected at least one reference, got none")
