"""``regard segments``: how much attention goes to each part of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.models import load_any
from regard.cli.options import (
    TABLE_SUFFIXES,
    AnyModelOption,
    DeviceOption,
    FileOption,
    JsonOption,
    TextArgument,
    WeightsDtypeOption,
    check_suffix,
)
from regard.cli.texts import InputText, check_texts, find_recording, note_file_name, read_texts
from regard.errors import InvalidArgument, short_repr

if TYPE_CHECKING:
    from rich.table import Table

    from regard.analysis.segment_positions import Positions
    from regard.analysis.tables import Columns

MIN_WIDTH = 110
"""Width of the table: numbers are not to be cut, so a narrower terminal wraps lines."""
BAR, NUMBER = 10, len("0.00")
MAX_NAME = 16
"""Columns of the name of a segment; longer ones are wrapped."""
SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")


def segments(
    context: typer.Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="A segment: a part of the text, or positions of tokens as START:STOP. Can be repeated.",
            show_default="turns of a chat, else parts by position",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Count only these tokens: a part of the text, START:STOP, or the name of a segment."
        ),
    ] = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Split a chat by position, too, not into its turns.")
    ] = False,
    heads: Annotated[bool, typer.Option("--heads", help="Show all heads, not their mean.")] = False,
    sort_by: Annotated[str | None, typer.Option(help="Show all heads, sorted by this segment.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write a table of all heads (.csv, .parquet).")
    ] = None,
    as_json: JsonOption = False,
    model: AnyModelOption = None,
    dtype: WeightsDtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Show how much attention goes to the system prompt, a document, or the beginning, middle and end of a text.

    Prints the share of attention that each segment gets: one row for each layer, averaged over heads and queries.

        regard segments "Once upon a time there was a cat." --model gpt2/
        regard segments --file chat.txt --model qwen/ --queries assistant

    A chat with its special tokens, such as `<|im_start|>`, is split into its turns. Other texts are split by position:
    the first token, where many heads put attention that they do not need; the beginning, middle and end. In a decoder,
    `recent` replaces the end: the tokens up to each query, 10 % of the text and at most 64.

    Name other segments by their text or by positions. Tokens in none of them are `rest`.

        regard segments --file rag.txt --model llama/ --segment "question=Who wrote it?" --segment documents=20:900
        regard segments --file rag.txt --model llama/ --segment documents=20:900 --queries=-1: --sort-by documents

    `--queries=-1:` counts only the last token, from which the model predicts the next one. A recording needs no model:

        regard segments run.regard --by-position
    """
    path = find_recording(context, text, file, ("model", "dtype", "device"))
    (source,) = read_texts(text, file) if path is None else [InputText("", str(path))]
    check_texts({"--queries": queries})
    check_suffix(output, TABLE_SUFFIXES)
    named = _parse_segments(segment or [])
    if by_position and named:
        raise InvalidArgument("--by-position: --segment names the segments; leave one of them out")
    from regard.analysis.segments import segment_attention
    from regard.analysis.tables import save_table
    from regard.recordings.recording_file import load
    from regard.watching import TransformersModel

    if path is not None:
        recording = load(path)
    else:
        loaded = load_any(model, dtype=dtype, device=device)
        if not isinstance(loaded, TransformersModel) or loaded.tokenizer is not None:
            note_file_name(text)
        with source.naming_errors():
            recording = loaded.record(source.text)
    with source.naming_errors(), _naming_options():
        table = segment_attention(
            recording, named or ("positions" if by_position else None), queries and _parse_positions(queries)
        )
    _check_name(sort_by, table)
    if output is not None:
        save_table(table, output)
    if as_json:
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        print(json.dumps(rows, ensure_ascii=False))
        return
    _print(table, heads or sort_by is not None, sort_by)


@contextmanager
def _naming_options() -> Iterator[None]:
    """Name the option in errors of `segment_attention`: ``--segment`` for ``segments`` and ``segments['name']``."""
    try:
        yield
    except InvalidArgument as error:
        pattern = r"(?<![\w.-])segments(?:\[(['\"])(.*?)\1\])?(?=: )"
        message = re.sub(pattern, lambda match: f"--segment {match[2]}" if match[2] else "--segment", str(error))
        raise InvalidArgument(message) from None


def _parse_segments(options: list[str]) -> dict[str, Positions]:
    """The tokens of each segment by its name, from ``NAME=TEXT`` and ``NAME=START:STOP``."""
    named: dict[str, Positions] = {}
    for option in options:
        name, equals, value = option.partition("=")
        name = name.strip()
        if not name or not equals or not value.strip():
            raise InvalidArgument(f"--segment: expected NAME=TEXT or NAME=START:STOP, got {short_repr(option)}")
        if name in named:
            raise InvalidArgument(f"--segment: expected different names, got {short_repr(name)} twice")
        check_texts({"--segment": option})
        named[name] = _parse_positions(value)
    return named


def _parse_positions(value: str) -> Positions:
    match = SLICE.fullmatch(value.strip())
    return slice(*(None if part is None else int(part) for part in match.groups())) if match else value


def _check_name(sort_by: str | None, table: Columns) -> None:
    from regard.checks import Checks

    if sort_by is not None:
        with Checks() as checks:
            checks.choice("--sort-by", sort_by, list(dict.fromkeys(table["segment"])))


def _print(table: Columns, is_by_head: bool, sort_by: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    rows, num_heads = _rows(table, is_by_head)
    if sort_by is not None:
        rows = dict(sorted(rows.items(), key=lambda row: -row[1].get(sort_by, -1)))
    console = Console(width=max(Console().width, MIN_WIDTH))
    console.print(_as_table(rows, console.width))
    console.print()
    mean = "queries" if is_by_head else f"{num_heads} head{'' if num_heads == 1 else 's'} of a layer and over queries"
    console.print(Text(f"Share of attention, 0 to 1: mean over {mean}.{_counts(table)}"))


def _rows(table: Columns, is_by_head: bool) -> tuple[dict[str, dict[str, float]], int]:
    """The share of each segment, by its name, of each layer or head, by its name; and the number of heads."""
    shares: dict[str, dict[str, list[float]]] = {}
    for layer, head, segment, share in zip(
        *(table[name] for name in ("layer", "head", "segment", "share")), strict=True
    ):
        shares.setdefault(f"{layer}/{head}" if is_by_head else layer, {}).setdefault(segment, []).append(share)
    means = {row: {name: sum(each) / len(each) for name, each in parts.items()} for row, parts in shares.items()}
    return means, max(len(each) for parts in shares.values() for each in parts.values())


def _as_table(rows: dict[str, dict[str, float]], width: int) -> Table:
    from rich.text import Text

    from regard.explore.terminal import GAP, Bar, plain_table

    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    names.sort(key=lambda name: (name == "rest") - (name == "first"))
    widths = [min(MAX_NAME, max(BAR, len(name))) for name in names]
    has_bars = max(map(len, rows)) + sum(widths) + len(names) * (NUMBER + 2 * GAP) <= width
    table = plain_table()
    table.add_column("layer/head" if "/" in next(iter(rows)) else "layer", no_wrap=True)
    for name, bar_width in zip(names, widths, strict=True):
        if has_bars:
            table.add_column(Text(name), overflow="fold", width=bar_width)
            table.add_column("", no_wrap=True, justify="right")
        else:
            table.add_column(Text(name), overflow="fold", max_width=MAX_NAME, justify="right")
    for row, parts in rows.items():
        cells = []
        for name in names:
            share = parts.get(name)
            number = "" if share is None else f"{share:.2f}"
            cells += [Bar(share or 0.0, BAR), number] if has_bars else [number]
        table.add_row(Text(row), *cells)
    return table


def _counts(table: Columns) -> str:
    """Sentences with the number of tokens of each segment, one for each kind of layers in which they differ."""
    of_kind: dict[str, dict[str, int]] = {}
    for kind, name, count in zip(table["kind"], table["segment"], table["num_tokens"], strict=True):
        of_kind.setdefault(kind, {})[name] = count
    kinds: dict[str, list[str]] = {}
    for kind, counts in of_kind.items():
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        kinds.setdefault(listed, []).append(kind)
    if len(kinds) == 1:
        return f" Tokens: {next(iter(kinds))}."
    return "".join(f" Tokens of {' and '.join(names)}: {listed}." for listed, names in kinds.items())
