"""Metrics of generated texts: distinct-n, self-BLEU and ROUGE."""

from __future__ import annotations

import importlib.metadata
import unicodedata
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
    ROUGE-1, -2 and -L are F1 without stemming (Lin 2004) over words of letters, digits and combining marks of any
    alphabet.

    Args:
        texts: At least two texts.
        references: One reference per text. Default: none, and no ROUGE.

    Returns:
        ``texts`` and ``words``, their numbers; ``distinct_1`` to ``distinct_3``, from 0 to 1, None if no text has so
        many words; ``self_bleu`` and, with references, ``rouge_1``, ``rouge_2`` and ``rouge_l``, from 0 to 100.

    Raises:
        InvalidType: If texts or references are not a sequence of str.
        InvalidArgument: If there are fewer than two texts, none has words, or the number of references differs.
        MissingExtra: If there are references, and rouge-score is not installed.

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
    tokenize = Tokenizer13a()
    words = [tokenize(text).split() for text in texts]
    with Checks() as checks:
        checks.that(any(words), "texts: expected words, got empty texts only")
    metrics: dict[str, float | None] = {"texts": len(texts), "words": sum(map(len, words))}
    for order in ORDERS:
        grams = [gram for text in words for gram in zip(*(text[start:] for start in range(order)), strict=False)]
        metrics[f"distinct_{order}"] = len(set(grams)) / len(grams) if grams else None
    metrics["self_bleu"] = _self_bleu(texts)
    if references is not None:
        scorer = require("rouge_score.rouge_scorer", extra="scores", needed_by="generation_metrics with references")
        rouge = scorer.RougeScorer(list(ROUGE.values()), tokenizer=_RougeTokenizer())
        scores: list[dict[str, Any]] = [rouge.score(*pair) for pair in zip(references, texts, strict=True)]
        metrics |= {name: 100 * mean(score[kind].fmeasure for score in scores) for name, kind in ROUGE.items()}
    return metrics


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


def generation_signature(*, has_references: bool = True) -> str:
    """Settings and versions of the libraries behind `generation_metrics`, in the form of sacreBLEU's signatures.

    Args:
        has_references: Whether there are references, and so ROUGE.
    """
    parts = ["tok:13a", f"self-bleu-texts:{MAX_SELF_BLEU_TEXTS}"]
    libraries = ["sacrebleu"]
    if has_references:
        parts += ["rouge-words:letters-digits-marks", "stem:no"]
        libraries.append("rouge-score")
    return "|".join(parts + [f"{name}:{importlib.metadata.version(name)}" for name in libraries])


def _self_bleu(texts: Sequence[str]) -> float:
    count = min(MAX_SELF_BLEU_TEXTS, len(texts))
    sample = [texts[index * len(texts) // count] for index in range(count)]
    bleu = BLEU(effective_order=True)  # texts may have fewer than four words
    return mean(bleu.sentence_score(text, sample[:i] + sample[i + 1 :]).score for i, text in enumerate(sample))
