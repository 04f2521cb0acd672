"""Numbers and names of a source that its translation lacks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from difflib import SequenceMatcher

from regard.text.numbers import Number, find_numbers

_TIME = re.compile(r"(?<![\d.,:])(\d\d?)([:.])([0-5]\d)(?![\d:]|[.,]\d)")
_DATE = re.compile(r"(?<![\d.,])(\d\d?)\.(\d\d?)(?![\d,])")
_GROUPS = re.compile(r"(?<!\d)\d++(?:[-‐‑–/() ]{1,3}\d++)*+(?![.,]?\d)")
"""Digits in groups, such as those of a phone number."""
_AFTER_AN_HOUR = re.compile(r"\s*(?:[ap]\.?m\b|o['’]clock\b|uhr\b)", re.IGNORECASE)
_BEFORE_AN_HOUR = re.compile(r"\b(?:at|by|before|after|until|till|to|from|since|around|about|um|bis|ab|vor|nach)\s+$")
_BEFORE_A_PART_OF_AN_HOUR = re.compile(r"[ -](?:thirty|fifteen|forty-five)\b")
_AFTER_A_PART_OF_AN_HOUR = re.compile(
    r"\b(?:(?:half|quarter)[ -](?:past|to)|halb|viertel(?: vor| nach)?)\s+$", re.IGNORECASE
)
_DECADE = re.compile(r"['’]?s\b")
_VAGUE = re.compile(r"(?:hundred|thousand|million|billion|milliarde)\w+|acht(?:e[nmrs]?)?", re.IGNORECASE)
"""Number words that often are none: thousands of; German acht, also in *Gib acht*."""
_NUMBERS_OF_WORDS: dict[str, tuple[int | Decimal, ...]] = {
    **dict.fromkeys(["beide", "both", "paar", "pair", "couple", "doppel", "double", "second", "ii"], (2,)),
    **dict.fromkeys(["halb", "half"], (30, Decimal("0.5"))),
    **dict.fromkeys(["viertel", "quarter"], (4, 15, 45)),
    **dict.fromkeys(["dutzend", "dozen", "mittag", "noon"], (12,)),
    **dict.fromkeys(["mitternacht", "midnight"], (0, 12)),
    "dreiviertel": (45,),
    "iii": (3,),
}
"""Numbers that a word of the translation with this beginning can stand for."""

_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?][\"'”’»)]*\s*$")
_LETTERS = re.compile(r"[^\W\d_]+")
_CONTRACTION = re.compile(r"['’](?:s|m|d|ll|re|ve)?$")
_BEFORE_A_SENTENCE = re.compile(r"(?:^|(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bDr)(?<!\bSt)\.|[!?…:;]|[\"„“”»«(\[–—-])\W*$")
"""Before the first word of a sentence or quotation, which has a capital letter whatever it is."""
_GERMAN = re.compile(
    r"""(?x)
    (?:der|das|den|dem|des|ein|eine|einen|einem|einer|eines|und|oder|aber|nicht|kein|keine|keinen|ich|du|er
    |sie|es|wir|ihr|ihm|ihn|ihnen|mich|mir|dich|dir|uns|euch|sich|ist|sind|bist|bin|sein|seine|seinen
    |seiner|meine|meinen|mein|dein|deine|deinen|unser|ihre|ihren|eure|euren|diese|dieser|dieses|diesen
    |diesem|jede|jeder|jeden|haben|habe|habt|hast|hatte|wird|werden|wurde|kann|kannst|können|muss|müssen
    |soll|mit|von|zu|auf|für|im|um|bei|nach|aus|vor|über|unter|zum|zur|vom|beim|wenn|dass|daß|weil|wie|wo
    |wer|wann|warum|als|auch|noch|schon|nur|sehr|hier|dort|da|ja|bitte|alle|alles|etwas|viel|viele|mehr
    |immer|nie|jetzt|heute|geht|gibt|seit|gern|gerne|ganz)"""
)
"""Frequent German words that are not English ones."""
_TRANSLATED = re.compile(
    r"""(?x)
    (?:mon|tues|wednes|thurs|fri|satur|sun)days?$
    |january$|february$|march$|april$|may$|june$|july$|august$|september$|october$|november$|december$
    |christmas|easter|thanksgiving|new$|year|eve$|mr|mrs|ms|dr|miss$
    |god$|lord|santa|claus|bible|christian|catholic|jew|muslim|dad|mom$|mum$|mother|father|grand|uncle|aunt|sir$|queen
    |king|president|prime|minister|pope$|french|german|english|dutch|swiss|greek|danish|polish|pole|spanish|turkish
    |welsh|irish|basque|catalan|czech|soviet|native|canad|americ|austria|hungar|egypt|greece|switzerland|britain
    |british|ukrain|spain|korea|cuba|estonia|croat|serbia|africa|asia|europe|california|vienna|cologne|moscow|beijing
    |danube|rhine|united|states|great|world|war|union|kingdom|empire|republic|north|south|east|west|middle|central
    |federal|national|royal|civil|holy|old$|big$|black|white|red$|street|road|avenue|square|station|airport|embassy
    |zealand$|hotel|hall|house|room|park|bridge|tower|castle|temple|museum|university|school|college|church|city|town|bay$|sea$
    |ocean|lake|river|mount|mt$|island|coast|canal|channel|gulf|earth$|moon$|day$|statue|liberty|wall$|congress
    |department|organization|constitution|secretary|treasury|league|cup$|prize|games|battle|birthday|internet
    |.*(?:ian|ians|ish|ese|man|men)$""",
)
"""English names that other languages do not copy, and words that are part of a name; beginnings, unless ``$`` ends
them."""


def find_missing_words(source: str, translation: str) -> tuple[str, ...]:
    """Numbers and names of a source without a counterpart in its translation, in the order of the source.

    - **Numbers** in digits, and from two in English and German words, compared by value: 63.5 has the counterpart 63,5
      but not 635, and -12 is not 12. A time may be written as in German: 2:30 as halb drei, 5 p.m. as 17 Uhr. Digits in
      groups, such as a phone number, may be grouped otherwise.
    - **Names** are words with a capital letter within a sentence. Their counterpart may be spelled otherwise (Mary and
      Maria). Words that are usually translated (languages, weekdays, Street), words in capitals, and headlines are
      left out; so are all words of a German text, which has capitals on each noun.

    A converted unit or a name with an unlike counterpart is reported although the translation is right.

    Args:
        source: A text.
        translation: Its translation.

    Examples:
        >>> find_missing_words("The 44th president was born in 1961.", "Der 24. Präsident wurde 1961 geboren.")
        ('44',)
        >>> find_missing_words("I met Ann at 2:30.", "Ich traf Anna um halb drei.")
        ()
    """
    source, translation = (unicodedata.normalize("NFKC", text).replace("−", "-") for text in (source, translation))
    missing = [*_missing_numbers(source, translation), *_missing_names(source, translation)]
    return tuple(text for _, text in sorted(missing))


def _missing_numbers(source: str, translation: str) -> Iterator[tuple[int, str]]:
    """Start and text of each number of the source that the translation lacks."""
    numbers = [number for number in find_numbers(source) if number.whole]
    if not numbers:
        return
    found = set(_values(translation))
    groups = {_digits(match): match.group() for match in _GROUPS.finditer(translation)}
    is_checked = bytearray(len(source))
    for match in _GROUPS.finditer(source):
        if match.group() != groups.get(_digits(match), match.group()):  # grouped otherwise
            is_checked[slice(*match.span())] = b"1" * len(match.group())
    times = {(int(match[1]) % 12, int(match[3])) for match in _TIME.finditer(translation)}
    for match in _TIME.finditer(source):
        hour, minute = int(match[1]), int(match[3])
        if hour <= 24 and (match[2] == ":" or _AFTER_AN_HOUR.match(source, match.end())):
            is_checked[slice(*match.span())] = b"1" * len(match.group())
            if (hour % 12, minute) not in times and (times or not _has_time(hour, minute, found)):
                yield match.start(), match.group()
    for number in numbers:
        if is_checked[number.start] and is_checked[number.end - 1]:
            continue
        if not number.text[0].isdigit() and (max(map(abs, number.values)) < 2 or _VAGUE.fullmatch(number.text)):
            continue  # one is also a pronoun, first an adverb
        if found.isdisjoint(_counterparts(source, number)):
            yield number.start, number.text


def _counterparts(source: str, number: Number) -> Iterator[Decimal]:
    """Values that a translation of a number can have."""
    before = max(0, number.start - 16), number.start  # a part, because each search reads all of it
    yield from number.values
    if _DECADE.match(source, number.end):  # the 1960s: die Sechziger
        yield from (value % 100 for value in number.values)
    if _AFTER_AN_HOUR.match(source, number.end) or _BEFORE_AN_HOUR.search(source, *before):
        yield from (value + 12 for value in number.values if 0 < value <= 12)
        yield from (value - 12 for value in number.values if 12 <= value <= 24)
    if _AFTER_A_PART_OF_AN_HOUR.search(source, *before) or _BEFORE_A_PART_OF_AN_HOUR.match(source, number.end):
        yield from (value % 12 + 1 for value in number.values)  # half past twelve: halb eins


def _has_time(hour: int, minute: int, found: set[Decimal | int]) -> bool:
    """Whether 2:30 is among the values: as 2 or 14 with 30, as half past two or halb drei."""
    hours = {hour % 12, hour % 12 + 12}
    if minute >= 15:
        hours |= {(hour + 1) % 12, (hour + 1) % 12 + 12}
    minutes = {minute, 60 - minute, abs(30 - minute)}
    return not found.isdisjoint(hours) and (minute == 0 or not found.isdisjoint(minutes))


def _values(translation: str) -> Iterator[Decimal | int]:
    """All numbers that a translation can mean."""
    for number in find_numbers(translation):
        yield from number.values
    for match in _DATE.finditer(translation):  # 25.8., 2.30 Uhr
        yield from (Decimal(match[1]), Decimal(match[2]))
    for match in _TIME.finditer(translation):
        hour, minute = int(match[1]), int(match[3])
        yield from (hour % 12, hour % 12 + 12)
        yield from (Decimal(f"{each}.{minute:02d}") for each in (hour, hour + 12, hour - 12))
        if minute == 30:
            yield hour + 1
    for word in _LETTERS.findall(translation.casefold()):
        for beginning, values in _NUMBERS_OF_WORDS.items():
            if word.startswith(beginning):
                yield from values


def _digits(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match.group())


def _missing_names(source: str, translation: str) -> Iterator[tuple[int, str]]:
    """Start and text of each name of the source that the translation lacks."""
    words = [match for match in _WORD.finditer(source) if len(match.group()) > 1]
    if any(_GERMAN.fullmatch(match.group().casefold()) for match in words):
        return
    capitalized = [match for match in words if match.group()[0].isupper()]
    if len(words) > 3 and 2 * len(capitalized) > len(words) and not _SENTENCE_END.search(source):  # a headline
        return
    # a name keeps its capital letter, where the language has any
    others = [_without_accents(word) for word in _LETTERS.findall(translation) if not word[0].islower()]
    for match in capitalized:
        name = _CONTRACTION.sub("", match.group())
        if name.isupper() or _BEFORE_A_SENTENCE.search(source, max(0, match.start() - 8), match.start()):
            continue
        if not _TRANSLATED.match(name.casefold()) and not _has_name(_without_accents(name), others):
            yield match.start(), name


def _has_name(name: str, words: list[str]) -> bool:
    """Whether a word is the name, with another ending or spelling, or contains it: Toms, Maria, Neuseeland."""
    beginning = name[: max(3, len(name) - 2)]
    return any(
        word.startswith(beginning)
        or (len(beginning) > 3 and beginning in word)
        or (word[0] == name[0] and SequenceMatcher(None, name, word).ratio() >= 0.6)
        for word in words
    )


def _without_accents(word: str) -> str:
    letters = unicodedata.normalize("NFKD", word.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
