"""Corpora come back as they were written, and bad files are refused with file and line."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from regard.errors import InvalidArgument, InvalidFile
from regard.text.corpus import build_corpus, read_lines, read_pairs
from regard.text.tokenizer import Tokenizer

PAIRS = [("Hello.", "Hallo."), ("How are you?", "Wie geht's?"), ("cafe\u0301", "Café")]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["Hello."], vocab_size=262)


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tsv_and_aligned_files_give_the_same_pairs(tmp_path: Path, suffix: str, ending: str) -> None:
    tsv = write(tmp_path / f"both.tsv{suffix}", ending.join("\t".join(pair) for pair in PAIRS) + ending)
    sides = [
        write(tmp_path / f"side{side}{suffix}", "\ufeff" + ending.join(pair[side] for pair in PAIRS)) for side in (0, 1)
    ]
    expected = [*PAIRS[:2], ("café", "Café")]  # NFC
    assert list(read_pairs([tsv])) == expected
    assert list(read_pairs(sides)) == expected


def test_further_columns_are_ignored_and_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "one\u2028line\teins\tlicence\n")
    assert list(read_pairs([path])) == [("one\u2028line", "eins")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.tsv", None, "missing.tsv: no such file"),
        (
            "bytes.tsv",
            b"a\tb\nc\t\xff\n",
            r"bytes.tsv, line 2: not UTF-8 \(invalid start byte\); convert the file to UTF-8",
        ),
        ("bytes.tsv.gz", b"a\tb\nc\t\xff\n", "bytes.tsv.gz, line 2: not UTF-8"),
        ("tabs.tsv", b"a\tb\nc d\n", "tabs.tsv, line 2: no tab; a line should be source, tab, target"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(InvalidFile, match=f"^{re.escape(str(tmp_path))}/{message}"):
        list(read_pairs([path]))


def test_files_that_are_no_gzip_or_end_early_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(b"a\tb\n")
    with pytest.raises(InvalidFile, match=r"plain.gz: cannot be read after line 0: Not a gzipped file"):
        list(read_lines(tmp_path / "plain.gz"))
    whole = gzip.compress(b"".join(b"%d\tx\n" % number for number in range(50_000)))
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidFile, match=r"cut.gz: cannot be read after line \d+: Compressed file ended"):
        list(read_lines(tmp_path / "cut.gz"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read after line 0: Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("counts", [(3, 5), (5, 3)])
def test_unequal_line_counts_are_refused_with_both(tmp_path: Path, counts: tuple[int, int]) -> None:
    files = [write(tmp_path / f"side{side}", "x\n" * count) for side, count in enumerate(counts)]
    has = " and ".join(f"{path} has {count}" for path, count in zip(files, counts, strict=True))
    message = f"line-aligned files should have equally many lines, but {has}"
    with pytest.raises(InvalidFile, match=re.escape(message)):
        list(read_pairs(files))


def test_three_files_are_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="one TSV or two line-aligned files, but 3 files were given"):
        list(read_pairs([tmp_path / "a"] * 3))


def test_a_corpus_is_tokenised_once_and_counts_what_it_skips(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tsv", "Hello.\tHello.\n\tleft\nright\t \n" + "long " * 30 + "\tlong\nabc\tde\n")
    corpus = build_corpus([path], tokenizer, tmp_path / "cache", max_length=20)
    assert (len(corpus), corpus.empty, corpus.too_long) == (2, 2, 1)
    assert corpus.dataset["line"][:] == [1, 5]
    assert [tokenizer.decode(corpus.dataset[side][:]) for side in ("src", "tgt")] == [
        ["Hello.", "abc"],
        ["Hello.", "de"],
    ]
    assert [lengths.tolist() for lengths in corpus.lengths()] == [
        [len(ids) for ids in corpus.dataset[side][:]] for side in ("src", "tgt")
    ]
    assert corpus.dataset.cache_files[0]["filename"].startswith(str(tmp_path / "cache"))  # mapped, not in memory
    monkeypatch.setattr(Tokenizer, "encode", None)  # a second time nothing is tokenised
    again = build_corpus([path], tokenizer, tmp_path / "cache", max_length=20)
    assert (again.dataset["src"][:], again.empty, again.too_long) == (corpus.dataset["src"][:], 2, 1)


def test_the_cache_knows_text_vocabulary_and_limit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path, cache = write(tmp_path / "a.tsv", "Hello.\tHello.\n"), tmp_path / "cache"
    build_corpus([path], tokenizer, cache)
    build_corpus([path], tokenizer, cache, max_length=50)
    build_corpus([path], Tokenizer.train(["x"], vocab_size=260), cache)
    write(path, "Hallo.\tHello.\n")
    corpus = build_corpus([path], tokenizer, cache)
    assert tokenizer.decode(corpus.dataset["src"][:]) == ["Hallo."]
    assert len(list(cache.iterdir())) == 4


def test_many_lines_go_through_in_chunks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"{number}\t{number}\n" for number in range(25_000)))
    corpus = build_corpus([path], tokenizer, tmp_path / "cache")
    assert len(corpus) == 25_000
    assert tokenizer.decode(corpus.dataset["tgt"][24_999:]) == ["24999"]
    assert len(corpus.lengths()[0]) == 25_000


def test_a_corpus_without_a_usable_pair_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "\tx\nabcdefgh\tx\n")
    with pytest.raises(InvalidFile, match=r"a.tsv: no usable pair \(1 empty, 1 too long\)"):
        build_corpus([path], tokenizer, tmp_path / "cache", max_length=3)


def test_a_bad_file_leaves_nothing_half_written(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n" * 20_000 + "no tab\n")
    with pytest.raises(InvalidFile, match="line 20001: no tab"):
        build_corpus([path], tokenizer, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(InvalidFile, match=r"b\.tsv: no such file"):
        build_corpus([tmp_path / "b.tsv"], tokenizer, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(InvalidFile, match="the tokenised corpus could not be written: Not a directory"):
        build_corpus([path], tokenizer, path)
