"""Metrics of generated texts: distinct-n, self-BLEU and ROUGE."""

from __future__ import annotations

import importlib.metadata
import math
import unicodedata
from collections.abc import Sequence
from statistics import mean
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from regard.checks import Checks
from regard.errors import require
from regard.metrics.score import Score

ORDERS = (1, 2, 3)
MAX_SELF_BLEU_TEXTS = 200
"""Number of texts for self-BLEU, whose cost is quadratic in it."""
ROUGE = {"rouge_1": ("rouge1", "ROUGE-1"), "rouge_2": ("rouge2", "ROUGE-2"), "rouge_l": ("rougeL", "ROUGE-L")}
"""The name that rouge-score has for each metric, and its label."""


def diversity_scores(texts: Sequence[str]) -> dict[str, Score]:
    """Measure the diversity of generated texts.

    distinct-n is the number of distinct n-grams in all texts divided by the number of all n-grams (Li et al. 2016,
    section 5.2); words are those of sacreBLEU's 13a. Self-BLEU is the mean BLEU of each text with all others as
    references (Zhu et al. 2018), 100 if all texts are equal; of more than 200 texts, it takes 200 at even steps.

    Args:
        texts: At least two texts.

    Returns:
        ``words``, their number; ``distinct_1`` to ``distinct_3``, from 0 to 1, nan if no text has so many words; and
        ``self_bleu``, from 0 to 100.

    Raises:
        InvalidType: If texts are not a sequence of str.
        InvalidArgument: If there are fewer than two texts, or none has words.

    Examples:
        >>> diversity_scores(["the cat sat", "the cat ran"])["distinct_1"].score
        0.666...
    """
    with Checks() as checks:
        if checks.strings("texts", texts):
            checks.that(len(texts) >= 2, f"texts: expected at least two to compare, got {len(texts)}")
    tokenize = Tokenizer13a()
    words = [tokenize(text).split() for text in texts]
    with Checks() as checks:
        checks.that(any(words), "texts: expected words, got empty texts only")
    scores = {"words": Score(sum(map(len, words)), "words")}
    for order in ORDERS:
        grams = [gram for text in words for gram in zip(*(text[start:] for start in range(order)), strict=False)]
        share = len(set(grams)) / len(grams) if grams else math.nan
        scores[f"distinct_{order}"] = Score(share, f"distinct-{order} (0 to 1)", "tok:13a")
    signature = f"tok:13a|texts:{MAX_SELF_BLEU_TEXTS}|{_version('sacrebleu')}"
    return {**scores, "self_bleu": Score(_self_bleu(texts), "self-BLEU", signature)}


def rouge_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """Measure the similarity of generated texts to references.

    ROUGE-1, -2 and -L are F1 without stemming (Lin 2004) over words of letters, digits and combining marks of any
    alphabet.

    Args:
        texts: At least one text.
        references: One reference per text.

    Returns:
        ``rouge_1``, ``rouge_2`` and ``rouge_l``, the means over texts, from 0 to 100.

    Raises:
        InvalidType: If texts or references are not a sequence of str.
        InvalidArgument: If there is no text, or the number of references differs.
        MissingExtra: If rouge-score is not installed.

    Examples:
        >>> round(rouge_scores(["the cat sat", "the cat ran"], ["a cat sat", "a cat ran"])["rouge_1"].score, 1)
        66.7
    """
    with Checks() as checks:
        if checks.strings("texts", texts):
            checks.that(bool(texts), "texts: expected at least one text, got none")
            if checks.strings("references", references) and len(references) != len(texts):
                checks.fail(f"references: expected as many as texts, {len(texts)}, got {len(references)}")
    scorer = require("rouge_score.rouge_scorer", extra="scores", needed_by="rouge_scores")
    rouge = scorer.RougeScorer([kind for kind, _ in ROUGE.values()], tokenizer=_RougeTokenizer())
    scores: list[dict[str, Any]] = [rouge.score(*pair) for pair in zip(references, texts, strict=True)]
    signature = f"words:letters-digits-marks|stem:no|{_version('rouge-score')}"
    return {
        name: Score(100 * mean(score[kind].fmeasure for score in scores), label, signature)
        for name, (kind, label) in ROUGE.items()
    }


def _version(package: str) -> str:
    return f"{package}:{importlib.metadata.version(package)}"


class _RougeTokenizer:
    """As the default of rouge-score, but with the letters and marks of all alphabets instead of a to z."""

    def tokenize(self, text: str) -> list[str]:
        return [word for word in _separate(text).split(" ") if any(map(str.isalnum, word))]


def _separate(text: str) -> str:
    """The text in NFC, with a space for each character that is not part of a word."""
    text = unicodedata.normalize("NFC", text.lower())
    return "".join(character if _is_in_word(character) else " " for character in text)


def _is_in_word(character: str) -> bool:
    r"""Whether it is a letter, a digit, a combining mark, which ``\w`` leaves out, or a joiner between letters."""
    return character.isalnum() or character in "\u200c\u200d" or unicodedata.category(character)[0] == "M"


def _self_bleu(texts: Sequence[str]) -> float:
    count = min(MAX_SELF_BLEU_TEXTS, len(texts))
    sample = [texts[index * len(texts) // count] for index in range(count)]
    bleu = BLEU(effective_order=True)  # texts may have fewer than four words
    return mean(bleu.sentence_score(text, sample[:i] + sample[i + 1 :]).score for i, text in enumerate(sample))
