"""Numbers of a text: their values in digits and words, as German and English write them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from regard.text.numbers import find_numbers

ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
ENGLISH += " seventeen eighteen nineteen"
ENGLISH_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety"
GERMAN = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
GERMAN += " siebzehn achtzehn neunzehn"
GERMAN_TENS = "_ _ zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"


def in_english(value: int) -> str:
    if value >= 1000:
        return f"{in_english(value // 1000)} thousand" + (f" {in_english(value % 1000)}" if value % 1000 else "")
    if value >= 100:
        return f"{in_english(value // 100)} hundred" + (f" and {in_english(value % 100)}" if value % 100 else "")
    if value >= 20:
        return ENGLISH_TENS.split()[value // 10] + (f"-{in_english(value % 10)}" if value % 10 else "")
    return ENGLISH.split()[value]


def in_german(value: int) -> str:
    if value >= 1000:
        return f"{in_german(value // 1000)}tausend" + (in_german(value % 1000) if value % 1000 else "")
    if value >= 100:
        return f"{in_german(value // 100)}hundert" + (in_german(value % 100) if value % 100 else "")
    if value >= 20:
        return (f"{in_german(value % 10)}und" if value % 10 else "") + GERMAN_TENS.split()[value // 10]
    return GERMAN.split()[value]


def values(text: str) -> list[set[Decimal]]:
    return [set(number.values) for number in find_numbers(text)]


@pytest.mark.parametrize("spell", [in_english, in_german])
def test_each_number_in_words_has_its_value(spell):
    for value in [*range(1000), *range(1000, 1_000_000, 997)]:
        (number,) = find_numbers(f"Tom: {spell(value)} Jahre")
        assert (number.text, number.values, number.whole) == (spell(value), {value}, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("63.5", [{Decimal("63.5")}]),
        ("63,50", [{Decimal("63.5")}]),
        ("1,000", [{1000, 1}]),
        ("1.000.000,5", [{Decimal("1000000.5")}]),
        ("1,000,000", [{10**6}]),
        ("10 000", [{10000, 10, 0}]),
        ("0.125", [{Decimal("0.125")}]),
        ("13.05.2018", [{13, 5, 2018}]),
        ("It's -12 degrees", [{-12}]),
        ("minus zwölf Grad", [{-12}]),
        ("12 Grad unter null", [{-12}, {0}]),
        ("10-12", [{10}, {12}]),
        ("1.5 million", [{1_500_000}]),
        ("a billion", [{10**9, 10**12}]),
        ("zwei Millionen", [{2_000_000}]),
        ("the twelfth, the 44th", [{12}, {44}]),
        ("am vierundvierzigsten", [{44}]),
        ("zwei und vierzig", [{42}]),
        ("zwei und drei", [{2}, {3}]),
        ("one two three", [{1}, {2}, {3}]),
        ("dreieinhalb", [{Decimal("3.5")}]),
        ("two and a half", [{2, Decimal("2.5")}]),
        ("neunzehnhundertsiebzig", [{1970}]),
        ("no numbers", []),
    ],
)
def test_values(text, expected):
    assert values(text) == expected


def test_the_beginning_of_another_word_is_not_a_whole_number():
    assert [(number.text, number.whole) for number in find_numbers("Zweifel, tent, zwei")] == [
        ("Zweifel", False),
        ("tent", False),
        ("zwei", True),
    ]


def test_letters_that_change_their_length_in_lower_case_do_not_move_a_number():
    (number,) = find_numbers("İİİ three")
    assert (number.text, number.start) == ("three", 4)
