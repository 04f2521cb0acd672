"""Any text survives the tokenizer, and other values are refused."""

from __future__ import annotations

import errno
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.byte_level import BYTE_DECODER
from regard.text.tokenizer import (
    Tokenizer,
    check_vocab_size,
    train_bpe,
    train_char,
    train_translation_bpe,
)

LINES = [
    "The animal didn't cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "The animals cross the streets in 1998.",
    "Die Tiere überquerten die Straßen.",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_translation_bpe(LINES, vocab_size=400)


def expected(text: str) -> str:
    """The expected text, computed without the tokenizer: NFC, and single spaces instead of white space of Unicode."""
    space = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
    return re.sub(space, " ", unicodedata.normalize("NFC", text)).strip(" ")


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # every character but halves of surrogate pairs


@given(ANY_TEXT)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode([text])
    assert tokenizer.decode(ids) == [expected(text)]
    assert all(3 <= index < tokenizer.vocab_size for index in ids[0])


@pytest.mark.parametrize(
    "text", ["</s>", "<s> and <pad>", "a</s>b", "emoji 👩‍👩‍👧 and ẞ", "tab\tand\nline", "e\u0301", " ", ""]
)
def test_odd_texts_come_back_and_specials_are_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode([text])[0]
    assert not {0, 1, 2}.intersection(ids)
    assert tokenizer.decode([ids]) == [expected(text)]


def test_invalid_character_is_refused_and_every_such_text_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tokenizer.encode(["fine", "\udcff abc", "ab\ud800"])
    assert r"texts[1]: expected Unicode text, got the lone surrogate '\udcff' at character 1" in str(caught.value)
    assert r"texts[2]: expected Unicode text, got the lone surrogate '\ud800' at character 3" in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "came"),
    [
        ("abc", "texts: expected a sequence of str, got str; pass a list"),
        (None, "texts: expected a sequence of str, got NoneType"),
        (["a", 3, None], r"texts\[1\]: expected a str, got int\n.*texts\[2\]: expected a str"),
    ],
)
def test_invalid_list_of_texts_is_refused(tokenizer: Tokenizer, texts: Any, came: str) -> None:
    characters = train_char(["abc"])
    for encode in (tokenizer.encode, characters.encode):
        with pytest.raises(InvalidType, match=came):
            encode(texts)


def test_special_ids_are_left_out_of_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(["the street"])[0]
    assert tokenizer.decode([[1, *ids, 2, 0, 0]]) == ["the street"]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)


def test_pieces_are_readable(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(["The animal didn't ☃"])[0]
    pieces = tokenizer.convert_ids_to_tokens([*ids, 2])
    assert pieces[0] == "▁The"
    assert "'t" in pieces
    assert pieces[-4:] == ["<0xE2>", "<0x98>", "<0x83>", "</s>"]
    assert "".join(pieces[:-5]).replace("▁", " ") == " The animal didn't"


def test_digits_are_pieces_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(["in 1998"])[0])[-4:] == ["▁1", "9", "9", "8"]


@given(st.lists(st.integers(0, 258)))
def test_ids_that_a_model_made_up_have_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert isinstance(tokenizer.decode([ids])[0], str)
    assert len(tokenizer.convert_ids_to_tokens(ids)) == len(ids)


def test_byte_letters_are_those_of_tokenizers() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(BYTE_DECODER) == sorted(ByteLevel.alphabet())
    letters = ByteLevel(add_prefix_space=False).pre_tokenize_str("ü")[0][0]
    assert bytes(BYTE_DECODER[letter] for letter in letters) == "ü".encode()


def test_save_and_load_give_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "model")
    loaded = Tokenizer.load(tmp_path / "model")
    assert loaded.encode([*LINES, "</s> ☃"]) == tokenizer.encode([*LINES, "</s> ☃"])
    assert loaded.fingerprint == tokenizer.fingerprint
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_training_twice_gives_the_same_vocabulary(tokenizer: Tokenizer) -> None:
    assert train_translation_bpe(iter(LINES), vocab_size=400).fingerprint == tokenizer.fingerprint


def test_a_small_text_fills_no_large_vocabulary() -> None:
    assert train_translation_bpe(["a b"], vocab_size=5000).vocab_size < 270


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="vocab_size: expected at least 259 for 3 special tokens and 256 bytes, got 100"
    ):
        train_translation_bpe(["a"], vocab_size=100)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file; a model folder has its tokenizer with its weights"),
        (b"{", "cannot be read as a tokenizer: "),
        (b"\xff", "cannot be read as a tokenizer: "),
        (b'{"version": "1.0"}', "cannot be read as a tokenizer: "),
    ],
)
def test_an_invalid_tokenizer_file_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InvalidFile, match=f"{re.escape(str(tmp_path / 'tokenizer.json'))}: {reason}"):
        Tokenizer.load(tmp_path)


def test_a_full_disk_keeps_the_old_file(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.save(tmp_path)
    before = (tmp_path / "tokenizer.json").read_bytes()

    def fail(_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("regard.files.os.fsync", fail)
    with pytest.raises(InvalidFile, match=r"tokenizer\.json: could not be written: No space left on device"):
        train_translation_bpe(["b"], vocab_size=300).save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert json.loads(before)


def test_ids_with_gaps():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 5}, unk_token="<unk>"))
    backend.add_special_tokens(["<unk>"])
    tokenizer = Tokenizer({"tokenizer.json": backend.to_str().encode()})
    assert (tokenizer.vocab_size, tokenizer.non_special_ids) == (6, [1, 5])
    with pytest.raises(
        InvalidArgument, match="model: expected a tokenizer with at most 5 tokens as in the model, got 6"
    ):
        check_vocab_size(tokenizer, 5, "model")


@pytest.mark.parametrize(
    ("special_tokens", "error", "message"),
    [
        (None, InvalidType, "special_tokens: expected a sequence of str, got NoneType; pass a list"),
        ([0, "a", "b", "c"], InvalidType, r"special_tokens\[0\]: expected a str, got int"),
        (["a", "b", "c"], InvalidArgument, r"special_tokens: expected four different tokens, got \['a', 'b', 'c'\]"),
        (["a", "b", "c", "a"], InvalidArgument, "special_tokens: expected four different tokens"),
    ],
)
def test_invalid_special_tokens_are_refused(special_tokens: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train_bpe(["a"], 300, special_tokens=special_tokens)


@pytest.mark.parametrize("token", [5, None, {"content": 5}, {}])
def test_special_tokens_that_are_not_str_are_ignored(tokenizer: Tokenizer, tmp_path: Path, token: Any) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": token}))
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.bos_id, loaded.eos_id) == (None, 2)
