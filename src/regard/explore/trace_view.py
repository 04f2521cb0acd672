"""What a trace's page shows of its numbers for one head and one query."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from regard.explore.trace_numbers import TraceNumbers
from regard.explore.trace_screens import NumberTable, Row

_FILL = re.compile(r"\{([^{}]+)\}")
SLACK = 2
"""Rows that are shown rather than counted."""
LARGE = 99_999
"""Numbers from here on are shown as powers of ten."""


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Args:
        label: Its name.
        sources: What is in its columns.
        columns: The numbers in its columns; None for an empty cell.
        source: What its features are.
        features: The numbers of its features.
        kind: ``"result"``, ``"own"`` for the row of the query among all tokens, or empty.
        is_entry: Whether it is one of the entries of `NumberTable.each`.
        is_shown: Whether it is shown before the table is opened.
    """

    label: str
    sources: Sequence[str]
    columns: Sequence[float | None]
    source: str
    features: Sequence[float]
    kind: str = ""
    is_entry: bool = False
    is_shown: bool = True


@dataclass(frozen=True)
class View:
    """The numbers of a page for a head and a query.

    Args:
        numbers: The numbers.
        head: The head.
        query: The query.
        labels: Labels of the entries of the axes ``"query"``, ``"key"`` and, in self-attention, ``"token"``.
    """

    numbers: TraceNumbers
    head: int
    query: int
    labels: Mapping[str, Sequence[str]]

    @cached_property
    def index(self) -> dict[str, int]:
        """The entry of each axis; of the axis ``"key"`` the one with the largest weight."""
        index = {"head": self.head, "query": self.query, "token": self.query, "dim": 0, "feature": 0}
        return index | {"key": int(self.numbers.values("weights", index, "key").argmax())}

    def fill(self, text: str) -> Iterator[tuple[str, str]]:
        """The parts of a text, each with the name of what was filled in, or an empty str."""
        end = 0
        for match in _FILL.finditer(text):
            yield "", text[end : match.start()]
            yield match[1], self._number(match[1]) if match[1].startswith("#") else self._name(match[1])
            end = match.end()
        yield "", text[end:]

    def lines(self, table: NumberTable) -> list[Line]:
        """The rows of a table."""
        index = self.index | ({"token": self.index["key"]} if table.follows_key else {})
        first, last = ([self._line(table, row, index) for row in rows] for rows in (table.rows, table.tail))
        return [*first, *self._each(table, index), *last]

    def _line(self, table: NumberTable, row: Row, index: Mapping[str, int]) -> Line:
        label = "".join(part for _, part in self.fill(row.label))
        sources = row.columns or ("",) * len(table.columns)
        return Line(label, sources, *self._evaluate(table, sources, row.source, index), kind="result" * row.is_result)

    def _each(self, table: NumberTable, index: Mapping[str, int]) -> Iterator[Line]:
        if not table.each:
            return
        sources = tuple(column.source for column in table.columns)
        count = self.numbers.size(table.source or sources[0], table.each)
        labels = self.labels.get(table.each, range(count))
        visible = self._visible_entries(table, count)
        for entry in range(count):
            kind = "own" * (table.each == "token" and entry == self.query)
            numbers = self._evaluate(table, sources, table.source, {**index, table.each: entry})
            yield Line(str(labels[entry]), sources, *numbers, kind=kind, is_entry=True, is_shown=entry in visible)

    def _evaluate(
        self, table: NumberTable, sources: Sequence[str], source: str, index: Mapping[str, int]
    ) -> tuple[list[float | None], str, list[float]]:
        columns = [float(self.numbers.values(each, index)) if each else None for each in sources]
        return columns, source, self.numbers.values(source, index, table.axis).tolist() if source else []

    def _visible_entries(self, table: NumberTable, count: int) -> set[int]:
        """The rows that a closed table shows: the first features, or the keys with the largest weights."""
        if count <= table.limit + SLACK:
            return set(range(count))
        if table.each not in ("key", "token"):
            return set(range(table.limit))
        weights = self.numbers.values("weights", self.index, "key")
        largest = weights.argsort(descending=True, stable=True)[: table.limit].tolist()
        if table.each == "token" and self.query not in largest:
            largest[-1] = self.query
        return set(largest)

    def _number(self, name: str) -> str:
        source, _, entries = name.lstrip("#(").partition("|")
        pairs = (pair.split("=") for pair in entries.split(",") if pair)
        text = format_number(float(self.numbers.values(source, self.index | {axis: int(at) for axis, at in pairs})))
        return f"({text})" if name.startswith("#(") and text.startswith("−") else text

    def _name(self, name: str) -> str:
        if name in ("head", "position"):
            return str(self.head if name == "head" else self.query)
        return self.labels[name if name in self.labels else "query"][self.index[name]]


@dataclass
class Scale:
    """The range of the numbers that share their colors and bars."""

    largest: float = 0.0
    has_negative: bool = False


def scales(table: NumberTable, lines: Sequence[Line]) -> dict[str, Scale]:
    """The range of each source in a table, of finite numbers; the features of a sum share one."""
    found: dict[str, Scale] = {}

    def extend(source: str, numbers: Sequence[float | None]) -> None:
        scale = found.setdefault(source, Scale())
        finite = [number for number in numbers if number is not None and math.isfinite(number)]
        scale.largest = max([scale.largest, *map(abs, finite)])
        scale.has_negative |= any(number < 0 for number in finite)

    for line in lines:
        for source, number in zip(line.sources, line.columns, strict=True):
            extend(source, [number])
        extend(feature_scale(table, line), line.features)
    return found


def feature_scale(table: NumberTable, line: Line) -> str:
    """The name of the scale of a row's features."""
    return "sum" if table.is_sum else line.source


def format_number(number: float) -> str:
    """A number in about seven characters: four decimals, fewer if it is large."""
    size = abs(number)
    if not math.isfinite(number):
        return "−∞" if number < 0 else "–"
    if size >= LARGE:
        return f"{number:.1e}".replace("e+0", "e").replace("e+", "e").replace("-", "−")
    text = f"{size:.{4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 1}f}"
    return f"−{text}" if number < 0 and float(text) else text


def shade(number: float, scale: Scale, power: float = 1.0) -> str:
    """The class of a cell: its sign, and nine levels of its share of the largest number to a power."""
    if not math.isfinite(number):
        return "none"
    level = math.floor(9 * (abs(number) / scale.largest) ** power + 0.5) if scale.largest else 0
    return f"{'down' if number < 0 else 'up'}{level}" if level else ""


def bar(number: float, source: str, scale: Scale) -> tuple[float, float]:
    """Where a bar begins and how long it is, in percent; bars of both signs begin in the middle."""
    if not math.isfinite(number) or not scale.largest:
        return 0.0, 0.0
    share = number if source == "weights" else number / scale.largest
    length = abs(share) * (50 if scale.has_negative else 100)
    start = (50 - length if number < 0 else 50) if scale.has_negative else 0
    return round(start, 2), round(length, 2)
