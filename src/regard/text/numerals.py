"""How English and German write numbers, ordinals, times, months and weekdays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

LanguageCode = Literal["en", "de"]
Kind = Literal["number", "ordinal", "time", "month", "weekday"]


class Numeral(NamedTuple):
    """A number, a part of a date, or a time in a text.

    Args:
        start: Position of its first character.
        end: Position after its last character.
        kind: What it is.
        value: The same in all languages: digits, with a point before decimals (``3.5``), ``2:30``, or the index of a
            month or weekday from 0.
        form: How it is written: ``digits``, ``grouped``, ``word`` or ``suffix``.
    """

    start: int
    end: int
    kind: Kind
    value: str
    form: str = "digits"


@dataclass(frozen=True)
class Language:
    """How a language writes numbers and dates.

    Args:
        decimal: The decimal point.
        group: Between thousands; a pattern.
        time: Between hours and minutes; a pattern.
        months: The months.
        weekdays: The weekdays from Monday.
        words: Values of number words.
    """

    decimal: str
    group: str
    time: str
    months: tuple[str, ...]
    weekdays: tuple[str, ...]
    words: Mapping[str, int]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches a time, a number, a number word, a month or a weekday."""
        months, weekdays, words = ("|".join(names) for names in (self.months, self.weekdays, self.words))
        decimal = re.escape(self.decimal)
        ordinal = "(?:st|nd|rd|th)" if self.decimal == "." else r"\.(?=\s[^\W\d_])"
        return re.compile(
            rf"(?<!\w)(?<!\d[.,:])(?:(?P<time>\d\d?{self.time}[0-5]\d)|(?P<grouped>\d{{1,3}}(?:{self.group}\d{{3}})+"
            rf"(?:{decimal}\d+)?)|(?P<digits>\d+(?:{decimal}\d+)?))(?!\d|[.,:]\d)(?:(?P<suffix>{ordinal})|(?![^\W\d_]))"
            rf"|\b(?:(?P<month>{months})|(?P<weekday>{weekdays}))\b|(?<![\w-])(?P<word>(?i:{words}))(?![\w-])"
        )

    def find(self, text: str) -> list[Numeral]:
        """All numbers, times, months and weekdays of a text.

        Examples:
            >>> [(each.kind, each.value, each.form) for each in GERMAN.find("Am 5. Mai um 2.30 Uhr kamen 1.000.")]
            [('ordinal', '5', 'suffix'), ('month', '4', 'digits'), ('time', '2:30', 'digits'),
            ('number', '1000', 'grouped')]
        """
        return [self._numeral(match, text) for match in self.pattern.finditer(text)]

    def _numeral(self, match: re.Match[str], text: str) -> Numeral:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        start, end = match.span()
        name = next(iter(groups))
        written = groups[name]
        if name == "time":
            hours, minutes = re.split(r"\D", written)
            return Numeral(start, match.end(name), "time", f"{int(hours)}:{minutes}")
        if name in ("month", "weekday"):
            names = self.months if name == "month" else self.weekdays
            return Numeral(start, end, name, str(names.index(written)))
        if name == "word":
            return Numeral(start, end, "number", str(self.words[written.lower()]), "word")
        value = re.sub(self.group, "", written) if name == "grouped" else written
        value = value.replace(self.decimal, ".")
        if "suffix" in groups:
            return Numeral(start, end, "ordinal", value, "suffix")
        if self._is_day(value, text, start, end):
            return Numeral(start, end, "ordinal", value)
        return Numeral(start, end, "number", value, name)

    def _is_day(self, value: str, text: str, start: int, end: int) -> bool:
        """Whether a number without a suffix is that of a day, as in ``October 5`` and ``5 October``."""
        if self.decimal != "." or not value.isdecimal() or not 0 < int(value) < 32:
            return False
        months = "|".join(self.months)
        return bool(
            re.search(rf"\b(?:{months})\s$", text[:start]) or re.match(rf"\s(?:of\s)?(?:{months})\b", text[end:])
        )

    def write(self, value: str, numeral: Numeral) -> str:
        """Write another value as a numeral of a text is written.

        Args:
            value: As that of `Numeral`; a number also with commas between thousands.
            numeral: The numeral that it replaces, of the same kind.
        """
        if numeral.kind == "month":
            return self.months[int(value)]
        if numeral.kind == "weekday":
            return self.weekdays[int(value)]
        if numeral.kind == "number":
            return value if self.decimal == "." else value.translate(str.maketrans(",.", ".,"))
        if numeral.kind == "ordinal" and numeral.form == "suffix":
            return value + ("." if self.decimal == "," else _ordinal_suffix(int(value)))
        return value


def _ordinal_suffix(number: int) -> str:
    return "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ENGLISH_ONES = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ENGLISH_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_GERMAN_ONES = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
_GERMAN_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")


def english_words(number: int) -> str:
    """A number below 100 in English words."""
    tens, ones = divmod(number, 10)
    if number < 20:
        return _ENGLISH_ONES[number]
    return _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH_ONES[ones]}" if ones else "")


def german_words(number: int) -> str:
    """A number below 100 in German words."""
    tens, ones = divmod(number, 10)
    if number < 20:
        return _GERMAN_ONES[number]
    before = {0: "", 1: "einund"}.get(ones, f"{_GERMAN_ONES[ones]}und")
    return before + _GERMAN_TENS[tens - 2]


ENGLISH = Language(
    decimal=".",
    group=",",
    time=":",
    months=_words("January February March April May June July August September October November December"),
    weekdays=_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    words=MappingProxyType({english_words(number): number for number in range(2, 100)}),
)
GERMAN = Language(
    decimal=",",
    group="[. ]",
    time="[:.]",
    months=_words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember"),
    weekdays=_words("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
    words=MappingProxyType({german_words(number): number for number in range(2, 100)}),
)
