"""Metrics of generated texts: distinct-n, self-BLEU and ROUGE."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from statistics import mean
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from regard.checks import Checks
from regard.errors import require

ORDERS = (1, 2, 3)
MAX_SELF_BLEU_TEXTS = 200
"""Number of texts for self-BLEU, whose cost is quadratic in it."""
ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}


def generation_metrics(texts: Sequence[str], references: Sequence[str] | None = None) -> dict[str, float | None]:
    """Measure the diversity of generated texts and their similarity to references.

    distinct-n is the number of distinct n-grams in all texts divided by the number of all n-grams (Li et al. 2016,
    section 5.2); words are those of sacreBLEU's 13a. Self-BLEU is the mean BLEU of each text with all others as
    references (Zhu et al. 2018), 100 if all texts are equal; of more than 200 texts, it takes 200 at even steps.
    ROUGE-1, -2 and -L are F1 without stemming (Lin 2004) over words of letters and digits of any alphabet.

    Args:
        texts: At least two texts.
        references: One reference per text. Default: none, and no ROUGE.

    Returns:
        ``texts`` and ``words``, their numbers; ``distinct_1`` to ``distinct_3``, from 0 to 1, None if no text has so
        many words; ``self_bleu`` and, with references, ``rouge_1``, ``rouge_2`` and ``rouge_l``, from 0 to 100.

    Raises:
        InvalidType: If texts or references are not a sequence of str.
        InvalidArgument: If there are fewer than two texts, none has words, or the number of references differs.
        MissingExtra: If rouge-score is not installed.

    Examples:
        >>> metrics = generation_metrics(["the cat sat", "the cat ran"], ["a cat sat", "a cat ran"])
        >>> metrics["distinct_1"], round(metrics["rouge_1"], 1)
        (0.666..., 66.7)
    """
    with Checks() as checks:
        if checks.strings("texts", texts):
            checks.that(len(texts) >= 2, f"texts: expected at least two to compare, got {len(texts)}")
            if references is not None and checks.strings("references", references) and len(references) != len(texts):
                checks.fail(f"references: expected as many as texts, {len(texts)}, got {len(references)}")
    ngrams = require("nltk.util", extra="scores", needed_by="generation_metrics").ngrams
    scorer = require("rouge_score.rouge_scorer", extra="scores", needed_by="generation_metrics").RougeScorer
    tokenize = Tokenizer13a()
    words = [tokenize(text).split() for text in texts]
    with Checks() as checks:
        checks.that(any(words), "texts: expected words, got empty texts only")
    metrics: dict[str, float | None] = {"texts": len(texts), "words": sum(map(len, words))}
    for order in ORDERS:
        grams = [gram for text in words for gram in ngrams(text, order)]
        metrics[f"distinct_{order}"] = len(set(grams)) / len(grams) if grams else None
    metrics["self_bleu"] = _self_bleu(texts)
    if references is not None:
        rouge = scorer(list(ROUGE.values()), tokenizer=_RougeTokenizer())
        scores: list[dict[str, Any]] = [rouge.score(*pair) for pair in zip(references, texts, strict=True)]
        metrics |= {name: 100 * mean(score[kind].fmeasure for score in scores) for name, kind in ROUGE.items()}
    return metrics


class _RougeTokenizer:
    """As the default of rouge-score, but with the letters of all alphabets instead of a to z."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


def generation_signature() -> str:
    """Settings and versions of the libraries behind `generation_metrics`, in the form of sacreBLEU's signatures."""
    versions = (f"{name}:{importlib.metadata.version(name)}" for name in ("sacrebleu", "nltk", "rouge-score"))
    settings = f"self-bleu-texts:{MAX_SELF_BLEU_TEXTS}|rouge-words:letters-and-digits"
    return "|".join(["tok:13a", settings, "stem:no", *versions])


def _self_bleu(texts: Sequence[str]) -> float:
    count = min(MAX_SELF_BLEU_TEXTS, len(texts))
    sample = [texts[index * len(texts) // count] for index in range(count)]
    bleu = BLEU(effective_order=True)  # texts may have fewer than four words
    return mean(bleu.sentence_score(text, sample[:i] + sample[i + 1 :]).score for i, text in enumerate(sample))
