"""Words from pieces: those of the text, and never a command to a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.tokenizer import Tokenizer, train_translation_bpe
from regard.text.words import group_into_words, is_special

WORDS = {
    "The animal didn't cross the street.": ["The", "animal", "didn't", "cross", "the", "street", "."],
    "Ein Straßen-Café: „ja“!": ["Ein", "Straßen-Café", ":", "„", "ja", "“!"],
    "1984 ☃ snow\tmen": ["1984", "☃", "snow", "men"],
    "</s> is text": ["</", "s", ">", "is", "text"],
    "ﬁ Ǆ 日本語 e\u0301": ["ﬁ", "Ǆ", "日本語", "é"],
    "a 👩\u200d👩\u200d👧 b": ["a", "👩\u200d👩\u200d👧", "b"],
    "او می\u200cخواهد": ["او", "می\u200cخواهد"],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_translation_bpe([*WORDS, "the street the animal"] * 2, vocab_size=300)


@pytest.mark.parametrize("text", WORDS)
def test_pieces_make_the_words_of_the_text(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    found = group_into_words(tokenizer.convert_ids_to_tokens(ids))
    assert [word for word, _ in found] == WORDS[text]
    for word, positions in found:
        assert tokenizer.decode([[ids[position] for position in positions]]) == [word]


def test_marks_are_words_of_their_own(tokenizer):
    ids = [tokenizer.bos_id, *tokenizer.encode(["the street"])[0], tokenizer.eos_id]
    found = group_into_words(tokenizer.convert_ids_to_tokens(ids))
    assert [word for word, _ in found] == ["<s>", "the", "street", "</s>"]
    assert [is_special(word) for word, _ in found] == [True, False, False, True]


def test_what_would_command_a_terminal_is_shown_as_a_mark():
    shown = [word for word, _ in group_into_words(["▁a\x1b[2J", "<0x1B>b", "\u202e", "\ud800", "<0xFF>", "▁c"])]
    assert "".join(shown).isprintable()
    assert shown[-1] == "c"


@given(
    st.lists(
        st.text(max_size=4) | st.sampled_from(["▁", "<s>", "</s>", "<0xC3>", "<0x9F>", "▁a", "'", "."]), max_size=12
    )
)
def test_every_position_is_in_exactly_one_word_and_in_order(tokens):
    positions = [position for _, own in group_into_words(tokens) for position in own]
    assert positions == list(range(len(tokens)))


@pytest.mark.parametrize("token", ["<start_of_turn>", "<extra_id_0>", "</s>", "<|im_end|>", "[MASK]"])
def test_special_tokens(token):
    assert is_special(token)
    assert group_into_words(["▁a", token]) == [("a", [0]), (token, [1])]


@pytest.mark.parametrize("token", ["<0xC3>", "<", "▁<b", "<3"])
def test_tokens_that_are_not_special(token):
    assert not is_special(token)
