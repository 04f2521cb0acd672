"""Splitting of lines and batches of them."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.pipelines.batching import batches_by_length, pack, split_sentences


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He said: “Stop.” Then he left.", ["He said: “Stop.”", "Then he left."]),
        ("It costs 3.50 at www.x.org now.", ["It costs 3.50 at www.x.org now."]),
        ("  no end  ", ["no end"]),
        ("", []),
    ],
)
def test_sentence_boundaries(line, sentences):
    assert split_sentences(line) == sentences


@given(st.text(alphabet='ab.!? \n"”'))
def test_no_letter_is_lost(line):
    assert "".join("".join(split_sentences(line)).split()) == "".join(line.split())


@given(st.lists(st.integers(1, 20), max_size=50), st.integers(1, 60))
def test_each_index_is_in_one_batch_that_fits(lengths, max_tokens):
    batches = list(batches_by_length(lengths, max_tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= max_tokens


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=5)))
def test_parts_hold_all_words_and_fit(sentences):
    parts = list(pack(sentences, 5))
    assert list(chain.from_iterable(parts)) == list(chain.from_iterable(sentences))
    assert all(0 < len(part) <= 5 for part in parts)
