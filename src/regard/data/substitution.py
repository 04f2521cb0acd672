"""Derived pairs: the same number, date or name on both sides of a pair, replaced by another on both sides.

A translation model copies numbers and names only if it has seen many; a corpus of sentences has few, which it learns by
heart. Here are as many as a training needs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from regard.data.names import FEMININE, MASCULINE, PLACES, SURNAMES, made_up_name, street
from regard.text.numerals import ENGLISH, GERMAN, Numeral

SUBSTITUTED = "numbers", "dates", "names", "places"
"""What is substituted: dates are ordinals, months, weekdays and times; places are names, too."""
NameKind = Literal["masculine", "feminine", "surname", "place"]
LISTS: Mapping[NameKind, tuple[str, ...]] = {
    "masculine": MASCULINE,
    "feminine": FEMININE,
    "surname": SURNAMES,
    "place": PLACES,
}
_KIND_OF: dict[str, NameKind] = {name: kind for kind, names in reversed(LISTS.items()) for name in names}
_WORD = re.compile(r"[^\W\d_]+")
_SENTENCE_START = re.compile(r"(?:^\W*|[.!?:…][\"“”„»«')]*\s|[\"“„»«])[^\w]*$")
_DETERMINER = re.compile(
    r"\b(?:the|an?|this|that|my|your|his|her|our|their|de[rmns]|die|das|eine?[mnrs]?|[ia]m|[ia]ns|zu[mr]|vo[mn]\sde[mr]|"
    r"vom|beim|diese[mnrs]?|[mds]eine?[mnrs]?|ihre?[mnrs]?|unsere?[mnrs]?|eure?[mnrs]?)\s$",
    re.IGNORECASE,
)
_TITLE = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Professor|Miss|Herrn?|Frau|Fräulein)\.?\s$")
_PLACE = re.compile(r"\b(?:in|to|from|aus|nach|von)\s$")
_ADDRESS = re.compile(r"\b[Ii]n\s$")
_UNCOUNTED = ("number", "0"), ("number", "1")  # their nouns have other forms
_SIBILANTS = "sxzß"
_NUM_DIGITS = (1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7)


class _Edit(NamedTuple):
    """What replaces a part of a text.

    Args:
        start: Position of the first character of the part.
        end: Position after its last character.
        text: What replaces it.
    """

    start: int
    end: int
    text: str


@dataclass
class _Row:
    """What can be replaced in a pair: keys of numbers, and names with their kinds."""

    english: str
    german: str
    numerals: list[tuple[str, str]] = field(default_factory=list)
    names: dict[str, NameKind] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        kinds = {"numbers" if kind == "number" else "dates" for kind, _ in self.numerals}
        return kinds | ({"names"} if self.names else set()) | ({"places"} if "place" in self.names.values() else set())


class Substitution:
    """Derives pairs from those of a corpus, all in memory.

    Args:
        pairs: The pairs of the corpus.
        languages: The languages of the sources and of the targets, ``("en", "de")`` or ``("de", "en")``.
        seed: Decides what is replaced by what.
        names: What names are replaced by, besides made-up ones. Default: `LISTS` and the names of the corpus.

    Attributes:
        counts: Number of pairs that have the same on both sides, by what it is, as in `SUBSTITUTED`.

    Examples:
        >>> pairs = [("Tom came at 2:30.", "Tom kam um 2.30 Uhr."), ("I saw Tom.", "Ich sah Tom."), ("So?", "Also?")]
        >>> substitution = Substitution(pairs, ("en", "de"), seed=1)
        >>> substitution.counts
        {'numbers': 0, 'dates': 1, 'names': 2, 'places': 0}
        >>> list(substitution.derive(1))
        [...]
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        languages: tuple[str, str],
        seed: int,
        *,
        names: Mapping[NameKind, tuple[str, ...]] | None = None,
    ) -> None:
        self.is_reversed = languages[0] != "en"
        self.random = Random(seed)
        oriented = [self._oriented(pair) for pair in pairs]
        of_corpus = _corpus_names(oriented)
        rows = [_find(*pair, of_corpus) for pair in oriented]
        self._rows = {kind: [row for row in rows if kind in row.kinds] for kind in SUBSTITUTED}
        self.counts = {kind: len(found) for kind, found in self._rows.items()}
        found: dict[NameKind, dict[str, None]] = defaultdict(dict)  # in the order of the corpus
        for row in self._rows["names"]:
            for name, kind in row.names.items():
                if name not in _KIND_OF:
                    found[kind][name] = None
        if names is None:
            self._pools = {kind: (LISTS[kind], tuple(found[kind]) or LISTS[kind]) for kind in LISTS}
        else:
            self._pools = {kind: (names[kind], names[kind]) for kind in LISTS}

    def _oriented(self, pair: tuple[str, str]) -> tuple[str, str]:
        """English, then German; or the reverse."""
        return (pair[1], pair[0]) if self.is_reversed else pair

    def derive(self, count: int) -> Iterator[tuple[str, str]]:
        """Derived pairs, equally many from pairs of each kind; none if there are none."""
        pools = [rows for rows in self._rows.values() if rows]
        orders: list[list[_Row]] = [[] for _ in pools]
        for index in range(count if pools else 0):
            which = index % len(pools)
            if not orders[which]:
                orders[which] = self.random.sample(pools[which], len(pools[which]))
            yield self._oriented(self._replace(orders[which].pop()))

    def _replace(self, row: _Row) -> tuple[str, str]:
        """A pair with other numbers and names."""
        sides = (row.english, row.german)
        edits: tuple[list[_Edit], list[_Edit]] = ([], [])
        numerals = [language.find(text) for language, text in zip((ENGLISH, GERMAN), sides, strict=True)]
        for key in row.numerals:
            of_key = [[numeral for numeral in found if _key(numeral) == key] for found in numerals]
            value = self._draw(of_key, sides)
            for side, language in enumerate((ENGLISH, GERMAN)):
                edits[side].extend(_Edit(n.start, n.end, language.write(value, n)) for n in of_key[side])
        for name, kind in row.names.items():
            self._replace_name(name, kind, sides, edits)
        english, german = (_apply(text, found) for text, found in zip(sides, edits, strict=True))
        return english, german

    def _draw(self, numerals: list[list[Numeral]], sides: tuple[str, str]) -> str:
        """Another value of a numeral, which is at these places of both sides."""
        random, first = self.random, numerals[0][0]
        if first.kind == "month":
            return str(random.randrange(12))
        if first.kind == "weekday":
            return str(random.randrange(7))
        if first.kind == "ordinal":
            return str(random.randint(2, 31))
        if first.kind == "time":
            hours = random.randint(1, 12) if int(first.value.split(":")[0]) <= 12 else random.randint(13, 23)
            return f"{hours}:{random.choice((random.randrange(60), 5 * random.randrange(12))):02}"
        before, after = sides[0][: first.start], sides[0][first.end :]
        if re.match(r"\s?(?:o['’]clock|[ap]\.?m\b)", after):
            return str(random.randint(1, 12))
        if "." in first.value:
            return f"{random.randrange(1, 10 ** random.choice((1, 2, 2, 3)))}.{random.randrange(1, 100)}"
        if re.search(r"[-/\d]\s?$", before) or re.match(r"\s?[-/]\s?\d", after):  # of a telephone number
            return "".join(str(random.randrange(10)) for _ in first.value)
        if first.form == "digits" and len(first.value) == 4 and random.random() < 0.7:
            return str(random.randint(1000, 2100))
        length = random.choice(_NUM_DIGITS)
        number = random.randrange(max(2, 10 ** (length - 1)), 10**length)
        grouped = any(numeral.form == "grouped" for side in numerals for numeral in side)
        share = 1.0 if grouped else 0.7 if number >= 10_000 else 0.3
        return f"{number:,}" if random.random() < share else str(number)

    def _replace_name(
        self, name: str, kind: NameKind, sides: tuple[str, str], edits: tuple[list[_Edit], list[_Edit]]
    ) -> None:
        found = [_occurrences(text, name, side) for side, text in enumerate(sides)]
        if kind == "place" and self.random.random() < 0.35 and _can_be_address(sides, found):
            texts = self._draw_address()
            for side, (match,) in enumerate(found):
                start = match.start() - len("in ")
                is_start, text = sides[side][start].isupper(), texts[side]
                edits[side].append(_Edit(start, match.end(), text[0].upper() + text[1:] if is_start else text))
            return
        is_genitive = any(match[1] for match in found[1])
        other = self._draw_name(kind)
        while is_genitive and other[-1] in _SIBILANTS:
            other = self._draw_name(kind)
        for side, matches in enumerate(found):
            edits[side].extend(_Edit(match.start(), match.end(), other + match[1]) for match in matches)

    def _draw_address(self) -> tuple[str, str]:
        """At 12 Baker Street, in der Baker Street 12."""
        number, name = self.random.randint(1, 10 ** self.random.choice((1, 2, 3))), street(self.random)
        return f"at {number} {name}" if " " in name else f"at {name} {number}", f"in der {name} {number}"

    def _draw_name(self, kind: NameKind) -> str:
        """A name of a list, one of the corpus, or a word that sounds like one."""
        random = self.random
        chance = random.random()
        listed, of_corpus = self._pools[kind]
        name = made_up_name(random) if chance < 0.4 else random.choice(of_corpus if chance < 0.5 else listed)
        if kind in ("masculine", "feminine") and random.random() < 0.15:
            name += f" {self._draw_name('surname')}"
        return name


def _apply(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _key(numeral: Numeral) -> tuple[str, str]:
    return numeral.kind, numeral.value


def _corpus_names(pairs: Sequence[tuple[str, str]]) -> set[str]:
    """Words that stand capitalized within a sentence of one language, and in its translation, and not in lower case."""
    capitalized: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for english, german in pairs:
        translated = set(_WORD.findall(german))
        for match in _WORD.finditer(english):
            word = match[0]
            if word.islower():
                lower[word] += 1
            elif _is_name(word) and not translated.isdisjoint((word, f"{word}s")):
                before = english[max(0, match.start() - 8) : match.start()]
                capitalized[word] += not _SENTENCE_START.search(before)
    calendar = {*ENGLISH.months, *ENGLISH.weekdays, *GERMAN.months, *GERMAN.weekdays}
    return {word for word, count in capitalized.items() if count > 10 * lower[word.lower()] and word not in calendar}


def _is_name(word: str) -> bool:
    return len(word) > 2 and word[0].isupper() and word[1:].islower()


def _can_be_address(sides: tuple[str, str], found: list[list[re.Match[str]]]) -> bool:
    """Whether a place stands once on each side, after ``in``."""
    if any(len(matches) != 1 or matches[0][1] for matches in found):
        return False
    return all(_ADDRESS.search(text[: match.start()]) for text, (match,) in zip(sides, found, strict=True))


def _occurrences(text: str, name: str, side: int) -> list[re.Match[str]]:
    """Where a name stands in the text of a side; the group is an ``s`` of the German genitive."""
    ending = "(s?)" if side else "()"
    return list(re.finditer(rf"(?<![\w-]){name}{ending}(?![\w-])", text))


def _find(english: str, german: str, names: set[str]) -> _Row:
    if "Mary" in english and "Mary" not in german:
        german = re.sub(r"\bMaria(s?)\b", r"Mary\1", german)
    row = _Row(english, german)
    counts = [
        Counter(_key(numeral) for numeral in language.find(text))
        for language, text in ((ENGLISH, english), (GERMAN, german))
    ]
    row.numerals = [key for key, count in counts[0].items() if counts[1][key] == count and key not in _UNCOUNTED]
    if re.search(r"\b(?:hundred|thousand|dozen|score)", english):  # two hundred and five
        row.numerals = [key for key in row.numerals if key[0] != "number"]
    for word in dict.fromkeys(_WORD.findall(english)):
        if word in names and (kind := _name_kind(word, english, german)):
            row.names[word] = kind
    return row


def _name_kind(name: str, english: str, german: str) -> NameKind | None:
    """The kind of a name; None where another cannot stand for it."""
    found = [_occurrences(text, name, side) for side, text in enumerate((english, german))]
    prefixes = [[text[: match.start()] for match in of] for text, of in zip((english, german), found, strict=True)]
    if not all(found) or any(_DETERMINER.search(before) for side in prefixes for before in side):
        return None
    if any(len(re.findall(name, text)) != len(of) for text, of in zip((english, german), found, strict=True)):
        return None  # a part of it would remain
    if any(_TITLE.search(before) for before in prefixes[0]):
        return "surname"
    if name in _KIND_OF:
        return _KIND_OF[name]
    return "place" if all(_PLACE.search(side[0]) for side in prefixes) else "surname"
