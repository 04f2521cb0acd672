"""Datasets that are tokenized once."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from regard.data.blocks import tokenize_stream
from regard.data.texts import tokenize_texts
from regard.data.token_dataset import chunked, hash_samples, tokenize_once
from regard.errors import InvalidFile, InvalidType
from regard.text.tokenizer import Tokenizer, train_bpe, train_char


def fast(files, counts):
    counts["fast"] += 1
    yield ([[1, 2], [], [3]],)


def slow(files, counts, *, target):
    """While it runs, another process writes the same dataset."""
    (folder,) = (path for path in Path(target).parent.iterdir() if path.name == "other")
    tokenize_once(folder, ["column"], fast, files)
    (written,) = folder.iterdir()
    (staging,) = (path for path in Path(target).iterdir() if path.is_dir())
    (draft,) = staging.iterdir()
    written.rename(Path(target) / draft.name)
    counts["slow"] += 1
    yield ([[4]],)


def test_two_processes_that_write_one_dataset_share_the_first(tmp_path):
    cache = tmp_path / "cache"
    (tmp_path / "other").mkdir()
    (column,), counts = tokenize_once(cache, ["column"], slow, [], target=str(cache))
    assert [row.tolist() for row in column] == [[1, 2], [], [3]]
    assert column.lengths.tolist() == [2, 0, 1]
    assert counts == {"fast": 1}
    assert len(list(cache.iterdir())) == 1


def nothing(files, counts):
    yield from ()


def test_a_dataset_without_tokens_can_be_opened(tmp_path):
    (column,), counts = tokenize_once(tmp_path, ["column"], nothing, [])
    assert (len(column), column.ids.tolist(), counts) == (0, [], {})


def characters(files, counts, *, tokenizer, upper, extra=None):
    for path in files:
        text = Path(path).read_text()
        yield ([[ord(letter) for letter in (text.upper() if upper else text)]],)


def test_every_argument_is_an_ingredient_of_the_cache(tmp_path):
    """Equal arguments share a dataset, and each other value of one makes another."""
    cache, text, extra = (tmp_path / name for name in ("cache", "text", "extra"))
    text.write_text("ab")
    extra.write_text("1")
    options = {"tokenizer": train_char(["ab"]), "upper": False, "extra": extra}

    def count(*files, tokenize=characters, **changes):
        tokenize_once(cache, ["column"], tokenize, files or [text], **{**options, **changes})
        return len(list(cache.iterdir()))

    def same(files, counts, **options):
        yield from characters(files, counts, **options)

    assert [count(), count(), count(tokenizer=train_char(["ab"]))] == [1, 1, 1]
    shutil.copy(text, tmp_path / "renamed")
    assert count(tmp_path / "renamed") == 1
    assert count(upper=True) == 2
    assert count(tokenizer=train_char(["abc"])) == 3
    assert count(text, text) == 4
    extra.write_text("2")
    assert count() == 5
    text.write_text("b")
    assert count() == 6
    assert count(tokenize=same) == 7


def test_an_ingredient_that_is_forgotten_is_refused(tmp_path):
    upper = True

    def forgetful(files, counts):
        yield ([[1 if upper else 2]],)

    with pytest.raises(InvalidType, match="tokenize: expected a function of its arguments alone, got one of upper"):
        tokenize_once(tmp_path, ["column"], forgetful, [])
    with pytest.raises(InvalidType, match=r"tokenize: expected a function .*, got one of partial"):
        tokenize_once(tmp_path, ["column"], partial(characters, upper=True), [])
    with pytest.raises(InvalidType, match=r"options: expected a tokenizer, a Path or a value that JSON .* got <object"):
        tokenize_once(tmp_path, ["column"], characters, [], tokenizer=object(), upper=True)
    with pytest.raises(TypeError, match="upper"):
        tokenize_once(tmp_path, ["column"], characters, [], tokenizer=None)
    assert list(tmp_path.iterdir()) == []


def test_another_special_token_is_another_dataset(tmp_path):
    tokenizer = train_char(["ab\n"], sample_by="document")
    text = tmp_path / "text"
    text.write_text("ab")
    ends = []
    for name in ("</s>", "<mask>"):
        tokenizer.save(tmp_path / "tokenizer")
        path = tmp_path / "tokenizer" / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": name}))
        changed = Tokenizer.load(tmp_path / "tokenizer")
        ends.append(tokenize_stream([text], changed, tmp_path / "cache").ids[-1] == changed.eos_id)
    assert ends == [True, True]


def two_lines(files, counts):
    counts["lines"] += 2
    yield [[[1, 2, 3], [4, 5]]]


@pytest.mark.parametrize("name", ["a.bin", "a.npy", "counts.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_dataset_is_refused_and_can_be_removed(tmp_path, name, damage):
    def tokenized():
        (column,), counts = tokenize_once(tmp_path, ["a"], two_lines, [])
        return [row.tolist() for row in column], counts

    expected = tokenized()
    assert expected == ([[1, 2, 3], [4, 5]], {"lines": 2})
    (folder,) = tmp_path.iterdir()
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(
            data[: len(data) // 2] if damage == "truncated" else bytes([*data[:-3], data[-3] ^ 1, *data[-2:]])
        )
    with pytest.raises(InvalidFile) as error:
        tokenized()
    assert str(error.value).startswith(f"{folder}/")
    assert str(error.value).endswith(f"; remove the folder {folder}, which is then written again")
    shutil.rmtree(folder)
    assert tokenized() == expected


def test_memory_is_a_few_bytes_per_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "__defaults__", (50_000,))
    tokenizer = train_bpe(["one two three"], 260)
    peaks = []
    sizes = (2_000, 8_000)  # of more characters than two chunks
    for size in sizes:
        path = tmp_path / f"{size}.txt"
        path.write_text("".join(f"{'one two three ' * 10}{number}\n" for number in range(size)))
        tracemalloc.start()
        texts = tokenize_texts([path], tokenizer, tmp_path / "cache", max_length=40)
        stream = tokenize_stream([path], tokenizer, tmp_path / "cache", sample_by="line", fraction_range=(0.0, 0.9))
        assert len(texts) == size
        assert len(stream) > size
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 40  # bytes; a line is a str of 200


def test_a_sample_of_files_has_their_sizes_and_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    content = bytearray(range(256)) * 4000
    hashes = set()
    for change in (None, 0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        if change is not None:
            changed[change] ^= 1
        path.write_bytes(changed)
        hashes.add(hash_samples([path]))
    path.write_bytes(content + b"1")
    hashes.add(hash_samples([path]))
    assert len(hashes) == 5
    path.write_bytes(content)
    assert hash_samples([str(path)]) in hashes
    path.write_bytes(b"")
    assert hash_samples([path]) != hash_samples([path, path])
    with pytest.raises(InvalidFile, match=r"missing: no such file"):
        hash_samples([tmp_path / "missing"])
