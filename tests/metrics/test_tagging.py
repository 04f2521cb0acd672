"""Spans of tags and their scores: numbers of seqeval 1.2.2, and of loops over all pairs of words."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from regard.errors import InvalidArgument, InvalidType
from regard.metrics import Span, count_spans, find_spans, span_f1, tagging_scores

TRUE = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "I-ORG", "I-ORG"], ["O", "B-PER"], ["O", "I-LOC", "I-LOC", "B-LOC"]]
PREDICTED = [
    ["B-PER", "I-PER", "O", "O"],
    ["B-ORG", "I-ORG", "B-ORG"],
    ["B-LOC", "I-PER"],
    ["I-LOC"] * 2 + ["O", "I-LOC"],
]
SEQEVAL = {  # precision, recall, f1, support
    "LOC": (1 / 3, 1 / 3, 1 / 3, 3),
    "ORG": (0.0, 0.0, 0.0, 1),
    "PER": (1.0, 1.0, 1.0, 2),
}


def test_scores_are_those_of_seqeval() -> None:
    scores = tagging_scores(TRUE, PREDICTED)
    for label, (precision, recall, f1, support) in SEQEVAL.items():
        each = [scores[f"{name}_{label}"].score for name in ("precision", "recall", "f1", "spans")]
        assert each == pytest.approx([100 * precision, 100 * recall, 100 * f1, support])
    micro = [scores[name].score for name in ("precision", "recall", "f1", "spans", "accuracy", "sentences", "words")]
    assert micro == pytest.approx([100 * 3 / 7, 50, 100 * 6 / 13, 6, 100 * 6 / 13, 4, 13])
    assert scores["f1_PER"].label == "F1 of spans of PER (%)"


def test_scores_of_bilou_are_those_of_seqeval_with_this_scheme() -> None:
    true = [["B-A", "L-A", "U-A", "U-A", "O", "B-B", "I-B", "L-B"]]
    scores = tagging_scores(true, [["U-A", "U-A", "U-A", "B-A", "L-A", "B-B", "I-B", "L-B"]])
    assert [scores[name].score for name in ("precision", "recall", "f1")] == pytest.approx([40, 50, 100 * 4 / 9])
    assert [scores[f"{name}_A"].score for name in ("precision", "recall")] == pytest.approx([25, 100 / 3])


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-A I-A O B-A", "A:0-2 A:3-4"),  # IOB2
        ("I-A I-A B-A I-A O I-B", "A:0-2 A:2-4 B:5-6"),  # IOB1: B only after a span of the same type
        ("S-A B-A I-A E-A S-A B-B E-B", "A:0-1 A:1-4 A:4-5 B:5-7"),  # IOBES
        ("U-A B-A I-A L-A U-A U-A", "A:0-1 A:1-4 A:4-5 A:5-6"),  # BILOU
        ("B-A M-A E-A S-A", "A:0-3 A:3-4"),  # BMES
        ("B-A I-B I-B", "A:0-1 B:1-3"),  # the type changes within a span
        ("I-A O E-A I-A", "A:0-1 A:2-3 A:3-4"),
        ("B I O B B I", "_:0-2 _:3-4 _:4-6"),  # one type, without a name
        ("B-x-y I-x-y", "x-y:0-2"),
        ("NN VB NN", "NN:0-1 VB:1-2 NN:2-3"),  # parts of speech
        ("O O", ""),
        ("", ""),
    ],
)
def test_spans_of_all_schemes(tags: str, spans: str) -> None:
    actual = find_spans(tags.split())
    assert " ".join(f"{span.label}:{span.start}-{span.stop}" for span in actual) == spans


def brute_force(tags: list[str]) -> set[Span]:
    """All pairs of words that begin and end a span of BIO, from its definition."""
    spans = set()
    for start, stop in combinations(range(len(tags) + 1), 2):
        label = tags[start][2:]
        before = tags[start - 1][2:] if start else ""
        begins = tags[start][0] == "B" or (tags[start][0] == "I" and before != label)
        goes_on = all(tag == f"I-{label}" for tag in tags[start + 1 : stop])
        ends = stop == len(tags) or tags[stop] != f"I-{label}"
        if begins and goes_on and ends:
            spans.add(Span(label, start, stop))
    return spans


def test_counts_are_those_of_all_pairs_of_words() -> None:
    draw, tags = random.Random(0), ["O", "B-A", "I-A", "B-B", "I-B"]
    sizes = [draw.randint(0, 9) for _ in range(300)]
    true, predicted = ([draw.choices(tags, k=size) for size in sizes] for _ in range(2))
    sets = [(brute_force(one), brute_force(other)) for one, other in zip(true, predicted, strict=True)]
    for label, counts in count_spans(true, predicted).items():
        expected = [0, 0, 0]
        for one, other in sets:
            for index, spans in enumerate((one & other, other, one)):
                expected[index] += sum(span.label == label for span in spans)
        assert list(counts) == expected
        assert counts.num_correct > 0


def test_nothing_true_and_nothing_predicted_is_0() -> None:
    assert span_f1([]) == {"precision": 0, "recall": 0, "f1": 0}
    assert tagging_scores([["O"]], [["B-A"]])["precision"].score == 0
    assert tagging_scores([["O"]], [["O"]])["accuracy"].score == 100


def test_invalid_tags_are_named() -> None:
    with pytest.raises(InvalidArgument, match="predicted: expected tags of as many sentences as true, 1, got 2"):
        count_spans([["O"]], [["O"], ["O"]])
    with pytest.raises(InvalidArgument, match=r"predicted\[1\]: expected as many tags as true\[1\], 1, got 2"):
        count_spans([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(InvalidArgument, match="true: expected tags of at least one word, got none"):
        tagging_scores([[]], [[]])
    with pytest.raises(InvalidType, match="tags: expected a sequence of str, got str; pass a list"):
        find_spans("B-A")
