"""How varied generated texts are, and how close to given ones: distinct-n, self-BLEU and ROUGE, by libraries."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from statistics import mean
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from regard.errors import InvalidArgument, InvalidType, MissingExtra, raise_problems

ORDERS = (1, 2, 3)
COMPARED = 200
"""Self-BLEU compares each of so many texts with all the others, which takes as many comparisons as their square."""
ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}


def generation_metrics(texts: Sequence[str], references: Sequence[str] | None = None) -> dict[str, float | None]:
    """Measure generated texts by themselves, and beside what was wanted.

    distinct-n is the number of different n-grams in all texts over that of all n-grams (Li et al. 2016, section 5.2);
    words are those of sacreBLEU's 13a. Self-BLEU is the mean BLEU of a text with all others as its references (Zhu et
    al. 2018): 100 where all are alike; of more than 200 texts it takes 200 in even steps. ROUGE-1, -2 and -L are F1
    without stemming (Lin 2004), whose words are runs of letters and digits.

    Args:
        texts: At least two.
        references: One of each text. Default: none, and no ROUGE.

    Returns:
        ``texts`` and ``words``, their numbers; ``distinct_1`` to ``distinct_3``, from 0 to 1, None where no text has so
        many words; ``self_bleu`` and, with references, ``rouge_1``, ``rouge_2`` and ``rouge_l``, from 0 to 100.

    Raises:
        InvalidType: If texts or references are a single str.
        InvalidArgument: If there are fewer than two texts, none has words, or the references are not as many.
        MissingExtra: If rouge-score is not installed.

    Example:
        >>> found = generation_metrics(["the cat sat", "the cat ran"], ["a cat sat", "a cat ran"])
        >>> found["distinct_1"], round(found["rouge_1"], 1)
        (0.666..., 66.7)
    """
    single = [name for name, given in (("texts", texts), ("references", references)) if isinstance(given, str)]
    raise_problems([f"{name} must be a sequence of str, but is one str: give a list" for name in single], InvalidType)
    objections = []
    if len(texts) < 2:
        objections.append(f"texts should be at least two, to be compared with each other, but are {len(texts)}")
    if references is not None and len(references) != len(texts):
        objections.append(f"references should be as many as the {len(texts)} texts, but are {len(references)}")
    raise_problems(objections, InvalidArgument)
    try:
        from nltk.util import ngrams
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        needed = f"scores of generated text need {error.name}"
        raise MissingExtra(f"{needed}: install it with `pip install 'regard[scores]'`") from None
    cut = Tokenizer13a()
    words = [cut(text).split() for text in texts]
    if not any(words):
        raise InvalidArgument("texts should hold words, but all of them are empty")
    found: dict[str, float | None] = {"texts": len(texts), "words": sum(map(len, words))}
    for order in ORDERS:
        grams = [gram for text in words for gram in ngrams(text, order)]
        found[f"distinct_{order}"] = len(set(grams)) / len(grams) if grams else None
    found["self_bleu"] = _self_bleu(texts)
    if references is not None:
        scorer = RougeScorer(list(ROUGE.values()), tokenizer=_Words())
        scored: list[dict[str, Any]] = [scorer.score(*pair) for pair in zip(references, texts, strict=True)]
        found |= {name: 100 * mean(each[kind].fmeasure for each in scored) for name, kind in ROUGE.items()}
    return found


class _Words:
    """Cuts as rouge-score itself does, but knows the letters of all alphabets, not a to z alone."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"[^\W_]+", text.lower())


def signature() -> str:
    """What computed the scores."""
    versions = (f"{name}:{importlib.metadata.version(name)}" for name in ("sacrebleu", "nltk", "rouge-score"))
    return "|".join(["tok:13a", f"self-bleu-texts:{COMPARED}", "rouge-words:letters-and-digits", "stem:no", *versions])


def _self_bleu(texts: Sequence[str]) -> float:
    count = min(COMPARED, len(texts))
    chosen = [texts[number * len(texts) // count] for number in range(count)]
    bleu = BLEU(effective_order=True)  # texts may have fewer than four words
    return mean(
        bleu.sentence_score(text, chosen[:place] + chosen[place + 1 :]).score for place, text in enumerate(chosen)
    )
