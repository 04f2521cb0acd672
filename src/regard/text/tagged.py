"""Files of sentences whose words have tags, as for named entities: CoNLL columns, or JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from regard.errors import InvalidFile, short_repr
from regard.input_files import parse_json
from regard.text.lines import check_files, display_name, read_lines
from regard.text.tables import is_table

TAG_FIELDS = ("tags", "ner_tags")
"""Names that the field of the tags has in JSON Lines."""
DOCUMENT_START = "-DOCSTART-"
"""The first column of a line that begins a document in the files of CoNLL-2003; it is not a word."""


class TaggedSentence(NamedTuple):
    """The words of a sentence with a tag each.

    Args:
        where: Position of the sentence, for messages: ``"train.conll, line 3"``.
        words: At least one.
        tags: As many as words.
    """

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged_sentences(files: Sequence[str | Path]) -> Iterator[TaggedSentence]:
    r"""Read sentences whose words have tags.

    Columns: one word per line, with the word in the first column, its tag in the last, and an empty line between two
    sentences. Tabs separate columns, or white space in a line without tabs. Columns between are ignored, and so are
    lines with ``-DOCSTART-``. All lines of a file have equally many columns.

    JSON Lines, in a file whose name ends in ``.jsonl`` or ``.json``: one sentence per line, an object with the lists of
    str ``tokens`` and ``tags`` (or ``ner_tags``).

    Args:
        files: Plain or ``.gz``.

    Yields:
        The sentences, of which none is empty.

    Raises:
        InvalidType: If files are not a sequence, such as a single path.
        InvalidFile: If a file cannot be read, or a line has another form.
    """
    check_files(files)
    for path in files:
        if str(path).endswith(".parquet"):
            raise InvalidFile(
                f"{path}: expected columns of words and tags, or JSON Lines, got Parquet; convert the file"
            )
        yield from _read_json_lines(path) if is_table(path) else _read_columns(path)


def _read_columns(path: str | Path) -> Iterator[TaggedSentence]:
    name, num_columns, start = display_name(path), 0, 0
    words: list[str] = []
    tags: list[str] = []
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")] if "\t" in line else line.split()
        if not any(columns) or columns[0] == DOCUMENT_START:
            if words:
                yield TaggedSentence(f"{name}, line {start}", tuple(words), tuple(tags))
            words, tags = [], []
            continue
        expected = "word and tag in two or more columns, or an empty line"
        if len(columns) < 2 or not columns[0] or not columns[-1]:
            raise InvalidFile(f"{name}, line {number}: expected {expected}, got {short_repr(line)}")
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns:
            expected = f"{num_columns} columns as in the lines before"
            raise InvalidFile(f"{name}, line {number}: expected {expected}, got {len(columns)} in {short_repr(line)}")
        start = start if words else number
        words.append(columns[0])
        tags.append(columns[-1])
    if words:
        yield TaggedSentence(f"{name}, line {start}", tuple(words), tuple(tags))


def _read_json_lines(path: str | Path) -> Iterator[TaggedSentence]:
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{display_name(path)}, line {number}"
        values = parse_json(line, where) if line.strip() else {"tokens": [], "tags": []}
        values = values if isinstance(values, dict) else {}
        words, tags = values.get("tokens"), next((values[name] for name in TAG_FIELDS if name in values), None)
        if not _are_strings(words) or not _are_strings(tags):
            expected = f"an object with the lists of str 'tokens' and {' or '.join(map(repr, TAG_FIELDS))}"
            hint = "; write the names of the tags" if isinstance(tags, list) and int in map(type, tags) else ""
            raise InvalidFile(f"{where}: expected {expected}, got {short_repr(line)}{hint}")
        if len(words) != len(tags):
            raise InvalidFile(f"{where}: expected as many tags as tokens, {len(words)}, got {len(tags)}")
        if not all(word.strip() for word in (*words, *tags)):
            raise InvalidFile(f"{where}: expected tokens and tags that are not empty, got {short_repr(line)}")
        if words:
            yield TaggedSentence(where, tuple(words), tuple(tags))


def _are_strings(values: Any) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
