"""Corpora are tokenized once, read back unchanged, and count what was skipped."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from regard.data.pairs import collate_sources, pair_loader, tokenize_pairs
from regard.errors import InvalidFile
from regard.text.tokenizer import EOS_ID, Tokenizer, train_bpe, train_translation_bpe


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_translation_bpe(["Hello."], vocab_size=262)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_corpus_is_tokenized_once_and_counts_skipped_pairs(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tsv", "Hello.\tHello.\n\tleft\nright\t \n" + "long " * 30 + "\tlong\nabc\tde\n")
    corpus = tokenize_pairs([path], tokenizer, tmp_path / "cache", max_length=20)
    assert (len(corpus), corpus.num_empty, corpus.num_too_long) == (2, 2, 1)
    assert [tokenizer.decode([*map(Tensor.tolist, side)]) for side in (corpus.source, corpus.target)] == [
        ["Hello.", "abc"],
        ["Hello.", "de"],
    ]
    assert corpus.source.lengths.tolist() == [len(ids) for ids in corpus.source]
    assert isinstance(corpus.source.ids.base, np.memmap)
    monkeypatch.setattr(Tokenizer, "encode", None)  # a second time nothing is tokenized
    again = tokenize_pairs([path], tokenizer, tmp_path / "cache", max_length=20)
    assert (again.source.ids.tolist(), again.num_empty, again.num_too_long) == (corpus.source.ids.tolist(), 2, 1)


def test_the_cache_depends_on_text_vocabulary_and_limit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path, cache = write(tmp_path / "a.tsv", "Hello.\tHello.\n"), tmp_path / "cache"
    tokenize_pairs([path], tokenizer, cache)
    tokenize_pairs([path], tokenizer, cache, max_length=50)
    tokenize_pairs([path], train_translation_bpe(["x"], vocab_size=260), cache)
    write(path, "Hallo.\tHello.\n")
    corpus = tokenize_pairs([path], tokenizer, cache)
    assert tokenizer.decode([corpus.source[0].tolist()]) == ["Hallo."]
    assert len(list(cache.iterdir())) == 4


def test_many_lines_are_tokenized_in_chunks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"{number}\t{number}\n" for number in range(25_000)))
    corpus = tokenize_pairs([path], tokenizer, tmp_path / "cache")
    assert len(corpus) == 25_000
    assert tokenizer.decode([corpus.target[24_999].tolist()]) == ["24999"]
    assert len(corpus.source.lengths) == 25_000


def test_a_corpus_without_a_usable_pair_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "\tx\nabcdefgh\tx\n")
    with pytest.raises(
        InvalidFile, match=r"a.tsv: expected at least one usable pair, got none \(1 empty, 1 too long\)"
    ):
        tokenize_pairs([path], tokenizer, tmp_path / "cache", max_length=3)


def test_an_invalid_file_leaves_no_partial_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n" * 20_000 + "no tab\n")
    with pytest.raises(InvalidFile, match="line 20001: expected source, tab, target, got no tab"):
        tokenize_pairs([path], tokenizer, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(InvalidFile, match=r"b\.tsv: no such file"):
        tokenize_pairs([tmp_path / "b.tsv"], tokenizer, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(InvalidFile, match=r"could not be written: File exists"):
        tokenize_pairs([path], tokenizer, path)


def test_sources_end_with_eos() -> None:
    input_ids, lengths = collate_sources([[5, 6, 7], [], [8]])
    assert input_ids.tolist() == [[5, 6, 7, 2], [2, 0, 0, 0], [8, 2, 0, 0]]
    assert lengths.tolist() == [4, 1, 2]


def test_word_alignments_become_token_alignments(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "Hello. ab\tcd Hello. x\n\tempty\nab  Hello.\tq\n")
    links = write(tmp_path / "a.align", "1-0 0-1 1-1\n\n\n")
    corpus = tokenize_pairs([path], tokenizer, tmp_path / "cache", alignments=links)
    assert corpus.alignment is not None
    first, second = map(Tensor.tolist, corpus.alignment)
    hello, word, x = (len(ids) for ids in tokenizer.encode(["Hello.", "cd", "x"]))
    assert first == [hello] * word + [0] * hello + [-1] * x
    assert second == [-1] * len(corpus.target[1])
    (batch,) = pair_loader(corpus, 100)
    assert batch.alignment is not None
    assert batch.alignment.shape == batch.labels.shape
    assert batch.alignment[batch.labels <= EOS_ID].eq(-1).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n", "a.align, line 2: expected one line per pair, got the end of the file"),
        ("0-0\n\n\n", "a.align: expected one line per pair, got more"),
        ("0-1\n\n", "a.align, line 1: expected a word of the target below 1, got 1"),
        ("0-0\n0:0\n", "a.align, line 2: expected word indices source-target such as '0-0 1-2', got '0:0'"),
    ],
)
def test_alignments_that_do_not_fit_are_named_with_their_line(
    tmp_path: Path, tokenizer: Tokenizer, text: str, message: str
) -> None:
    path, links = write(tmp_path / "a.tsv", "Hello.\tHello.\nb\tb\n"), write(tmp_path / "a.align", text)
    with pytest.raises(InvalidFile, match=re.escape(message)):
        tokenize_pairs([path], tokenizer, tmp_path / "cache", alignments=links)
    assert not list((tmp_path / "cache").iterdir())


def test_alignments_with_a_tokenizer_that_keeps_white_space(tmp_path: Path) -> None:
    tokenizer = train_bpe(["a b", "c d"], vocab_size=260)
    path, links = write(tmp_path / "a.tsv", "a b\tc d\n"), write(tmp_path / "a.align", "0-1 1-0\n")
    corpus = tokenize_pairs([path], tokenizer, tmp_path / "cache", alignments=links)
    assert corpus.alignment is not None
    assert tokenizer.convert_ids_to_tokens(corpus.source[0]) == ["a", "▁", "b"]
    assert corpus.alignment[0].tolist() == [1, 0, 0]
