"""Metrics of tagged words: spans of tags, with precision, recall and F1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from regard.checks import Checks
from regard.metrics.score import Score

OUTSIDE = "O"
"""The tag of a word that is in no span."""
_PREFIXED = re.compile(r"([BIEMSLU])(?:-(.*))?")
_BEGINS, _ENDS = "BSU", "ESLU"


class Span(NamedTuple):
    """Consecutive words with tags of one type, such as a name.

    Args:
        label: The type: what follows the prefix of the tags, ``"PER"`` of ``"B-PER"``.
        start: Index of the first word.
        stop: Index after the last word.
    """

    label: str
    start: int
    stop: int


class SpanCounts(NamedTuple):
    """Numbers of spans.

    Args:
        num_correct: Predicted spans with the words and the type of a true one.
        num_predicted: Predicted spans.
        num_true: True spans.
    """

    num_correct: int
    num_predicted: int
    num_true: int


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Find the spans of tags, as conlleval and seqeval do, which forgive tags that do not follow one another.

    A span begins at a word whose tag is not ``O`` if the prefix is B or S (or U), the word before is in no span, has
    another type, or ends a span by the prefix E or S (or L, U). It goes on until another begins, or an ``O``. This
    reads all of IOB1, IOB2 (BIO), IOBES and BILOU. A tag without a prefix, such as the part of speech ``NN``, is a span
    of one word.

    Args:
        tags: The tags of the words of a sentence.

    Raises:
        InvalidType: If tags are not a sequence of str.

    Reference:
        Tjong Kim Sang and De Meulder 2003, "Introduction to the CoNLL-2003 Shared Task".

    Examples:
        >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        [Span(label='PER', start=0, stop=2), Span(label='LOC', start=3, stop=4), Span(label='LOC', start=4, stop=5)]
    """
    with Checks() as checks:
        checks.strings("tags", tags)
    spans: list[Span] = []
    before, label_before = OUTSIDE, ""
    for index, tag in enumerate(tags):
        prefix, label = _split(tag)
        if prefix == OUTSIDE:
            pass
        elif prefix in _BEGINS or before == OUTSIDE or before in _ENDS or label != label_before:
            spans.append(Span(label, index, index + 1))
        else:
            spans[-1] = spans[-1]._replace(stop=index + 1)
        before, label_before = prefix, label
    return spans


def span_labels(tags: Iterable[str]) -> list[str]:
    """The types of spans that tags have, sorted.

    Examples:
        >>> span_labels(["O", "B-PER", "I-PER", "B-LOC"])
        ['LOC', 'PER']
    """
    return sorted({label for prefix, label in map(_split, tags) if prefix != OUTSIDE})


def count_spans(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, SpanCounts]:
    """Count true, predicted and correct spans of each type.

    Args:
        true: The true tags of each sentence.
        predicted: The predicted tags of each sentence, as many as words.

    Raises:
        InvalidType: If the tags of a sentence are not a sequence of str.
        InvalidArgument: If the numbers of sentences or words differ.
    """
    correct: Counter[str] = Counter()
    made: Counter[str] = Counter()
    real: Counter[str] = Counter()
    sentences, predictions = list(true), list(predicted)
    with Checks() as checks:
        expected = f"predicted: expected tags of as many sentences as true, {len(sentences)}"
        checks.that(len(predictions) == len(sentences), f"{expected}, got {len(predictions)}")
        for index, (tags, others) in enumerate(zip(sentences, predictions, strict=False)):
            expected = f"predicted[{index}]: expected as many tags as true[{index}], {len(tags)}"
            checks.that(len(tags) == len(others), f"{expected}, got {len(others)}")
    for tags, others in zip(sentences, predictions, strict=True):
        spans, predicted_spans = set(find_spans(tags)), set(find_spans(others))
        real.update(span.label for span in spans)
        made.update(span.label for span in predicted_spans)
        correct.update(span.label for span in spans & predicted_spans)
    return {label: SpanCounts(correct[label], made[label], real[label]) for label in sorted(real | made)}


def span_f1(counts: Iterable[SpanCounts]) -> dict[str, float]:
    """Precision, recall and F1 of all spans together (the micro average of types), in percent.

    Args:
        counts: Those of each type, or of one.

    Returns:
        ``precision``, ``recall`` and ``f1``; 0 where nothing is predicted or nothing is true.

    Examples:
        >>> span_f1([SpanCounts(1, 2, 4), SpanCounts(2, 2, 2)])
        {'precision': 75.0, 'recall': 50.0, 'f1': 60.0}
    """
    correct, predicted, real = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    return {
        "precision": 100 * correct / max(predicted, 1),
        "recall": 100 * correct / max(real, 1),
        "f1": 200 * correct / max(predicted + real, 1),
    }


def tagging_scores(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Score]:
    """Accuracy of tags; and precision, recall and F1 of spans, together and of each type, in percent.

    A predicted span is correct if its words and its type are those of a true span. The numbers are those of seqeval in
    its default mode, and of conlleval.

    Args:
        true: The true tags of each sentence; at least one word in all.
        predicted: The predicted tags of each sentence, as many as words.

    Returns:
        ``sentences``, ``words`` and ``spans``, their numbers; ``accuracy``; ``precision``, ``recall`` and ``f1`` of all
        spans (micro average); and for each type, such as PER, ``spans_PER``, ``precision_PER``, ``recall_PER`` and
        ``f1_PER``.

    Raises:
        InvalidType: If the tags of a sentence are not a sequence of str.
        InvalidArgument: If there are no words, or the numbers of sentences or words differ.

    Examples:
        >>> scores = tagging_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])
        >>> scores["precision"].score, scores["recall"].score, scores["f1_PER"].score
        (100.0, 50.0, 100.0)
    """
    counts = count_spans(true, predicted)
    num_words = sum(map(len, true))
    with Checks() as checks:
        checks.that(num_words > 0, "true: expected tags of at least one word, got none")
    pairs = (zip(tags, others, strict=True) for tags, others in zip(true, predicted, strict=True))
    num_correct = sum(tag == other for sentence in pairs for tag, other in sentence)
    scores = {
        "sentences": Score(len(true), "sentences"),
        "words": Score(num_words, "words"),
        "accuracy": Score(100 * num_correct / num_words, "accuracy of tags (%)"),
    }
    labels = {"": ("spans", counts.values())}
    labels |= {f"_{label}": (f"spans of {label}", [each]) for label, each in counts.items()}
    for suffix, (noun, each) in labels.items():
        scores[f"spans{suffix}"] = Score(sum(count.num_true for count in each), noun)
        for name, value in span_f1(each).items():
            title = "F1" if name == "f1" else name
            scores[f"{name}{suffix}"] = Score(value, f"{title} of {noun} (%)")
    return scores


def _split(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; a tag without a prefix is a span of one word, and ``B`` has the type ``_``."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _PREFIXED.fullmatch(tag)
    return ("S", tag) if match is None else (match[1], match[2] or "_")
