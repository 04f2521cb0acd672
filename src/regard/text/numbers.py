"""Numbers of a text: in digits, and in English and German words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

_ENGLISH = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"""
_GERMAN = """null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn
    siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"""
_OTHER_FORMS = (
    """first=1 once=1 twice=2 third=3 fif=5 eigh=8 nin=9 twelf=12 twentie=20 thirtie=30 fortie=40 fiftie=50 sixtie=60
    seventie=70 eightie=80 ninetie=90""",
    "erst=1 zwo=2 dritt=3 sieb=7 dreissig=30 einhalb=0.5 anderthalb=1.5",
)
_SCALES = (
    {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    {"hundert": 100, "tausend": 1000, "million": 10**6, "milliarde": 10**9, "billion": 10**12},
)
_SHORT_SCALES = {"million": "mio", "milliarde": "mrd"}
_ENDINGS = (r"(?:th|s|ths)?", r"(?:s|st|s?te[nmrs]?|e[nmrs]?|mal)?")
"""What may follow a number word that is counted: two, twos, fourth; zwei, zweite, zweimal. No other word begins so."""


def _language(index: int) -> tuple[dict[str, Decimal], re.Pattern[str], re.Pattern[str]]:
    """Values of the parts of number words, a pattern that finds a part, and one that splits a word into parts."""
    small = (_ENGLISH, _GERMAN)[index].split()
    values = {word: Decimal(place if place < 20 else 10 * (place - 18)) for place, word in enumerate(small)}
    values |= {word: Decimal(value) for word, value in (pair.split("=") for pair in _OTHER_FORMS[index].split())}
    values |= {word: Decimal(value) for word, value in _SCALES[index].items()}
    part = "|".join(sorted(values, key=len, reverse=True))
    joined = f"(?:{part})(?:(?:und)?(?:{part}))*" if index else f"(?:{part})"
    return values, re.compile(f"und|{part}"), re.compile(f"(?P<parts>{joined})(?P<ending>{_ENDINGS[index]}$)?")


_LANGUAGES = tuple(map(_language, range(2)))
_WORD = re.compile(r"[^\W\d_]+")
_DIGITS = re.compile(r"\d{1,3}(?: \d{3})+(?:[.,]\d+)?(?![.,]?\d)|\d+(?:[.,'’]\d+)*")
_NEGATIVE = re.compile(r"(?:(?:^|[\s(\[\"„“])[-−–]|\bminus\s+)$", re.IGNORECASE)
_BELOW_ZERO = re.compile(r"\W*(?:\w+\W+){0,2}?(?:unter null|below (?:zero|freezing)|(?<=grad )minus)", re.IGNORECASE)


class Number(NamedTuple):
    """A number in a text.

    Args:
        text: As it is written.
        values: What it can mean: 1.000 is a thousand or one.
        start: Its first character.
        end: The character after its last one.
        whole: False if it begins another word, such as ``zwei`` in Zweifel or ``ten`` in tent.
    """

    text: str
    values: frozenset[Decimal]
    start: int
    end: int
    whole: bool = True


def find_numbers(text: str) -> list[Number]:
    """The numbers of a text.

    In digits, either of ``.`` and ``,`` separates thousands or decimals, whatever the language. In words, English and
    German numbers are found.

    Args:
        text: A text in NFKC.

    Examples:
        >>> [(number.text, sorted(map(int, number.values))) for number in find_numbers("1.000 or forty-four")]
        [('1.000', [1, 1000]), ('forty-four', [44])]
    """
    found: list[Number] = []
    numbers = [*_in_digits(text), *_in_words(text, 0), *_in_words(text, 1)]
    for number in sorted(numbers, key=lambda number: (number.start, -number.end)):
        if found and number.start < found[-1].end:  # a word of both languages, or a part of a number
            same = (number.start, number.end) == (found[-1].start, found[-1].end)
            found[-1] = found[-1]._replace(values=found[-1].values | number.values) if same else found[-1]
        else:
            found.append(number)
    return [_in_context(text, number) for number in found]


def _in_context(text: str, number: Number) -> Number:
    """The number with its sign, and with a half that follows it."""
    before, after = text[max(0, number.start - 8) : number.start], text[number.end : number.end + 40]
    if after.lower().startswith(" and a half"):
        return number._replace(values=number.values | {value + Decimal("0.5") for value in number.values})
    if _NEGATIVE.search(before) or _BELOW_ZERO.match(after):
        return number._replace(values=frozenset(-value for value in number.values))
    return number


def _in_digits(text: str) -> Iterator[Number]:
    for match in _DIGITS.finditer(text):
        start, end = match.span()
        values = _readings(match.group())
        word = _WORD.match(text, end + 1) if text[end : end + 1] in (" ", "-") else None
        scales = {each[name] for each in _SCALES for name in each if word and _is_scale(word.group(), name)}
        if word and scales:
            end = word.end()
            values = {value * scale for value in values for scale in scales}
        yield Number(text[start:end], frozenset(values), start, end)


def _is_scale(word: str, name: str) -> bool:
    return word.lower() in (name, f"{name}s", f"{name}n", f"{name}en", _SHORT_SCALES.get(name))


def _readings(token: str) -> set[Decimal]:
    """The values of digits with separators."""
    *first, last = re.split(r"\D", token)
    separators = re.findall(r"\D", token)
    if not first:
        return {Decimal(token)}
    values = set()
    is_grouped = 1 <= len(first[0]) <= 3 and all(len(part) == 3 for part in first[1:]) and first[0] != "0"
    if is_grouped and len(last) == 3 and len(set(separators)) == 1:  # 1,000,000
        values.add(Decimal("".join([*first, last])))
    if is_grouped and len(first) > 1 and separators[-1] not in separators[:-1]:  # 1,000.50
        values.add(Decimal("".join(first) + "." + last))
    if len(first) == 1 and separators[0] in ".,":  # 63.5
        values.add(Decimal(f"{first[0]}.{last}"))
    if not values or " " in separators:  # 13.05.2018, May 10 300 people
        values |= {Decimal(part) for part in [*first, last]}
    return values


def _in_words(text: str, index: int) -> Iterator[Number]:
    """The numbers in words of one language."""
    values, part, pattern = _LANGUAGES[index]
    lower = text.lower() if len(text.lower()) == len(text) else text
    number: Number | None = None
    total = current = previous = Decimal(0)  # of number: its thousands, what is below them, and its last part
    for word in _WORD.finditer(lower):
        match = pattern.match(lower, word.start(), word.end())
        if match is None:
            continue
        whole = match["ending"] is not None
        gap = "" if number is None else lower[number.end : word.start()]
        goes_on = whole and number is not None and number.whole
        goes_on = goes_on and (gap in (" ", "-", " und ") or (gap == " and " and previous >= 100))
        after_und = gap == " und "
        for name in part.findall(match["parts"]):
            if name == "und":
                after_und = True
                continue
            value = values[name]
            fits = value >= 100 or value < 1 or previous >= 100
            if index == 0:
                fits = fits or (previous >= 20 and value < 10)  # forty-four
            else:
                fits = fits or (previous < 10 and after_und and value >= 20)  # vierundvierzig
            if number is None or not (goes_on and fits):
                if number is not None:
                    yield number
                number, total, current = Number("", frozenset(), word.start(), word.start()), Decimal(0), Decimal(0)
            if value > 100:
                total, current = total + (current or 1) * value, Decimal(0)
            else:
                current = (current or 1) * value if value == 100 else current + value
            previous, goes_on, after_und = value, True, False
            text_of_number = text[number.start : word.end()]
            number = Number(text_of_number, frozenset({total + current}), number.start, word.end(), whole)
    if number is not None:
        yield number
