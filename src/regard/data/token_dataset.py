"""Token ids in memory-mapped files: texts are tokenized once, and again only if their content changes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from regard.errors import InvalidFile, InvalidType, short_repr
from regard.files import flush_to_disk, staging_folder
from regard.input_files import check_file, exists, hash_file, read_json
from regard.text.base import BaseTokenizer
from regard.text.lines import check_files
from regard.text.tables import is_table

Item = TypeVar("Item")
Columns = Sequence[Sequence[Sequence[int]]]
"""Rows of token ids of each column of a dataset."""
FORMAT_VERSION = 3
COUNTS_FILE, CHECKSUMS_FILE = "counts.json", "checksums.json"
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
CHUNK_CHARACTERS = 1 << 20  # of texts that are tokenized together


class TokenDataset(Dataset[Tensor]):
    """Token ids of texts: row ``i`` is ``ids[offsets[i] : offsets[i + 1]]``, as int64.

    Args:
        ids: Token ids of all rows (tokens,), int32.
        offsets: The start of each row and the end of the last (rows + 1,), int64.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def from_chunks(cls, chunks: Iterable[Columns], num_columns: int = 1) -> list[TokenDataset]:
        """Datasets in memory, one for each column of chunks, whose token ids are copied chunk by chunk."""
        ids = [[np.empty(0, np.int32)] for _ in range(num_columns)]
        offsets = [array("q", [0]) for _ in range(num_columns)]
        for chunk in chunks:
            for arrays, ends, rows in zip(ids, offsets, chunk, strict=True):
                arrays.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
                ends.extend(itertools.accumulate(map(len, rows), initial=ends.pop()))
        columns = zip(ids, offsets, strict=True)
        return [cls(np.concatenate(arrays), np.frombuffer(ends, np.int64)) for arrays, ends in columns]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Tensor:
        row = range(len(self))[row]  # negative ones count from the end; IndexError beyond
        return torch.from_numpy(self.ids[self.offsets[row] : self.offsets[row + 1]].astype(np.int64))

    def pad(self, rows: np.ndarray, pad_id: int) -> tuple[Tensor, Tensor]:
        """Rows padded on the right (rows, longest) and their lengths (rows,), int64: `pad_batch` without a loop."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        positions = np.arange(lengths.max())
        ids = self.ids[np.minimum(starts[:, None] + positions, len(self.ids) - 1)]
        padded = np.where(positions < lengths[:, None], ids, pad_id).astype(np.int64)
        return torch.from_numpy(padded), torch.from_numpy(lengths)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row (rows,), int64."""
        return np.diff(self.offsets)


def tokenize_once(
    cache: str | Path,
    columns: Sequence[str],
    tokenize: Callable[..., Iterator[Columns]],
    files: Sequence[str | Path],
    *,
    hashes: FileHashes | None = None,
    **options: Any,
) -> tuple[list[TokenDataset], Counter[str]]:
    """Write columns of token ids into a folder of the cache, unless it is there, and map them into memory.

    The folder's name is a hash of all arguments of `tokenize`: of the content of files and whether they are tables, of
    the fingerprint of a tokenizer, and of other values. A function has no other data than its arguments, so nothing
    that determines the token ids can be missing from the hash.

    The folder appears only when it is complete and on disk. Of several processes that write it, the first to finish
    wins. Its files have checksums, which are compared whenever it is opened.

    Args:
        cache: Folder of all cached datasets.
        columns: Names of the columns.
        tokenize: A function, called as ``tokenize(files, counts, **options)``, that yields the rows of all columns
            chunk by chunk; what it counts is saved with them. It must not use variables of a function around it.
        files: The files that it reads.
        hashes: Computes the hashes of files. Default: a new one.
        options: Its other arguments: tokenizers, files as `Path`, and what JSON can represent.

    Returns:
        The columns and the counts.

    Raises:
        InvalidType: If files are not a sequence, or the cache cannot know whether an option or `tokenize` is the same.
        InvalidFile: If a file cannot be read, or the cache cannot be written or is damaged. Errors of ``tokenize``
            propagate.
    """
    cache = Path(cache)
    key = _cache_key(tokenize, files, options, hashes or FileHashes())
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        if not exists(folder):
            with staging_folder(cache) as staging:
                draft = staging / folder.name
                draft.mkdir()
                _write(draft, columns, partial(tokenize, files, **options))
                for path in (*draft.iterdir(), draft):
                    flush_to_disk(path)
                try:
                    draft.rename(folder)
                except OSError:
                    if not folder.is_dir():  # else another process was faster
                        raise
                flush_to_disk(cache)
    except InvalidFile:
        raise
    except OSError as error:
        raise InvalidFile(f"{folder}: the tokenized data could not be written: {error.strerror or error}") from error
    counts = _check(folder, columns)
    return [_open(folder, name) for name in columns], counts


def _cache_key(
    tokenize: Callable[..., Any], files: Sequence[str | Path], options: Mapping[str, Any], hashes: FileHashes
) -> str:
    """Everything that determines the token ids."""
    if not isfunction(tokenize) or tokenize.__closure__:
        names = tokenize.__code__.co_freevars if isfunction(tokenize) else [type(tokenize).__name__]
        raise InvalidType(f"tokenize: expected a function of its arguments alone, got one of {', '.join(names)}")

    def content_of(value: object) -> str:
        if isinstance(value, Path):
            return hashes([value])
        if isinstance(value, BaseTokenizer):
            return value.fingerprint
        expected = "a tokenizer, a Path or a value that JSON can represent"
        raise InvalidType(f"options: expected {expected}, got {short_repr(value)}")

    function = f"{tokenize.__module__}.{tokenize.__qualname__}"
    tables = [is_table(path) for path in files]  # the same bytes are other texts in a file with another suffix
    return json.dumps([FORMAT_VERSION, function, hashes(files), tables, options], default=content_of)


def _write(folder: Path, columns: Sequence[str], tokenize: Callable[[Counter[str]], Iterator[Columns]]) -> None:
    counts: Counter[str] = Counter()
    offsets = [array("q", [0]) for _ in columns]
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.bin").open("wb")) for name in columns]
        for chunk in tokenize(counts):
            for file, ends, rows in zip(files, offsets, chunk, strict=True):
                file.write(np.fromiter(itertools.chain.from_iterable(rows), np.int32).tobytes())
                ends.extend(itertools.accumulate(map(len, rows), initial=ends.pop()))
    for name, ends in zip(columns, offsets, strict=True):
        np.save(folder / f"{name}.npy", np.frombuffer(ends, np.int64))
    (folder / COUNTS_FILE).write_text(json.dumps(counts))
    checksums = {name: hash_file(folder / name) for name in _file_names(columns)}
    (folder / CHECKSUMS_FILE).write_text(json.dumps(checksums))


def _file_names(columns: Sequence[str]) -> list[str]:
    return [COUNTS_FILE, *(f"{name}.{suffix}" for name in columns for suffix in ("bin", "npy"))]


def _check(folder: Path, columns: Sequence[str]) -> Counter[str]:
    """The counts of a folder whose files are as they were written.

    Raises:
        InvalidFile: If one is damaged.
    """
    remedy = f"remove the folder {folder}, which is then written again"
    try:
        written = read_json(folder / CHECKSUMS_FILE)
        for name in _file_names(columns):
            if not isinstance(written, dict) or written.get(name) != hash_file(folder / name):
                raise InvalidFile(f"{folder / name}: expected tokenized data, got a damaged file")
        return Counter(read_json(folder / COUNTS_FILE))
    except InvalidFile as error:
        raise InvalidFile(f"{error}; {remedy}") from None


def _open(folder: Path, name: str) -> TokenDataset:
    offsets = np.load(folder / f"{name}.npy", mmap_mode="r")
    # an empty file cannot be mapped
    ids = np.memmap(folder / f"{name}.bin", np.int32, "r") if offsets[-1] else np.empty(0, np.int32)
    return TokenDataset(np.asarray(ids), np.asarray(offsets))  # arrays are sliced faster than np.memmap


def chunked(
    items: Iterable[Item], length: Callable[[Item], int], max_length: int = CHUNK_CHARACTERS
) -> Iterator[list[Item]]:
    """Lists of items that together reach a length, except the last.

    Args:
        items: The items.
        length: The characters of an item.
        max_length: Each list ends with the item that reaches this length, with one more for each item.

    Examples:
        >>> list(chunked(["a", "bc", "def", "g"], len, max_length=4))
        [['a', 'bc'], ['def'], ['g']]
    """
    chunk: list[Item] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += length(item) + 1  # empty ones count, too
        if total >= max_length:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


class FileHashes:
    """SHA-256 of what files contain; each file is read once, so a file that changes later keeps its hash.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> hashes = FileHashes()
        >>> with TemporaryDirectory() as folder:
        ...     paths = [Path(folder, name) for name in "ab"]
        ...     _ = [path.write_text("same") for path in paths]
        ...     hashes(paths[:1]) == hashes(paths[1:]), hashes(paths) == hashes(paths[:1])
        (True, False)
    """

    def __init__(self) -> None:
        self._digests: dict[str | Path, str] = {}
        self._known: dict[tuple[str | Path, ...], str] = {}

    def add(self, files: Sequence[str | Path], value: str) -> None:
        """Take the hash of files from another process that has read them."""
        self._known[tuple(files)] = value

    def __call__(self, files: Sequence[str | Path]) -> str:
        """The hash of files in their order, whatever their names are.

        Raises:
            InvalidType: If files are not a sequence, such as a single path.
            InvalidFile: If a file cannot be read.
        """
        check_files(files)
        if tuple(files) in self._known:
            return self._known[tuple(files)]
        for path in files:
            if path not in self._digests:
                self._digests[path] = hash_file(path)
        return hashlib.sha256("\n".join(self._digests[path] for path in files).encode()).hexdigest()


def hash_samples(files: Sequence[str | Path]) -> str:
    """SHA-256 of the sizes of files and of up to 64 pieces of each, whatever their size: most changes change it.

    Raises:
        InvalidFile: If a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        check_file(path)
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{size}\n".encode())
                for start in np.linspace(0, max(size - _SAMPLE_BYTES, 0), _NUM_SAMPLES, dtype=np.int64).tolist():
                    file.seek(start)
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise InvalidFile(f"{path}: could not be read: {error.strerror or error}") from None
    return digest.hexdigest()
