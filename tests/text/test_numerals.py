"""Numbers, dates and times are found in English and German, and written in both as they are there."""

from __future__ import annotations

import pytest

from regard.text.numerals import ENGLISH, GERMAN, Numeral

ALIKE = [
    ("1,000", "1.000", "number", "1000"),
    ("1,000", "1 000", "number", "1000"),
    ("12,345,678", "12.345.678", "number", "12345678"),
    ("1000", "1000", "number", "1000"),
    ("3.5", "3,5", "number", "3.5"),
    ("1,234.56", "1.234,56", "number", "1234.56"),
    ("2:30", "2:30", "time", "2:30"),
    ("2:30", "2.30", "time", "2:30"),
    ("8:05", "08:05", "time", "8:05"),
    ("28th", "28.", "ordinal", "28"),
    ("October", "Oktober", "month", "9"),
    ("Sunday", "Sonntag", "weekday", "6"),
    ("twenty-one", "einundzwanzig", "number", "21"),
    ("seven", "sieben", "number", "7"),
    ("seventy", "Siebzig", "number", "70"),
]


@pytest.mark.parametrize(("english", "german", "kind", "value"), ALIKE)
def test_both_languages_have_the_same_value(english: str, german: str, kind: str, value: str) -> None:
    for language, written in ((ENGLISH, english), (GERMAN, german)):
        (found,) = language.find(f"xx {written} xx")
        assert (found.kind, found.value) == (kind, value)
        assert f"xx {written} xx"[found.start : found.end] == written


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It was October 5, 1987.", ["month 9", "ordinal 5", "number 1987"]),
        ("It was on 5 October.", ["ordinal 5", "month 9"]),
        ("It was the 5th of May.", ["ordinal 5", "month 4"]),
        ("Room B2, size 3x4, version 1.2.3", []),
        ("a ten-minute walk, 80-yen stamps", ["number 80"]),
        ("I have 24.", ["number 24"]),
        ("$30,000, 40% and 5kg", ["number 30000", "number 40"]),
    ],
)
def test_english_texts(text: str, values: list[str]) -> None:
    assert [f"{each.kind} {each.value}" for each in ENGLISH.find(text)] == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Es war der 5. Oktober 1987.", ["ordinal 5", "month 9", "number 1987"]),
        ("Ich habe 24. Und du?", ["ordinal 24"]),
        ("Ich habe 24.", ["number 24"]),
        ("Um 2.30 Uhr kamen 1.000, nicht 4,8 %.", ["time 2:30", "number 1000", "number 4.8"]),
        ("Es sind zwei, nicht zweimal oder Zweifel.", ["number 2"]),
    ],
)
def test_german_texts(text: str, values: list[str]) -> None:
    assert [f"{each.kind} {each.value}" for each in GERMAN.find(text)] == values


@pytest.mark.parametrize(
    ("written", "value", "english", "german"),
    [
        (Numeral(0, 1, "number", "7"), "1,234.5", "1,234.5", "1.234,5"),
        (Numeral(0, 1, "time", "2:30"), "4:05", "4:05", "4:05"),
        (Numeral(0, 1, "month", "1"), "2", "March", "März"),
        (Numeral(0, 1, "weekday", "1"), "2", "Wednesday", "Mittwoch"),
        (Numeral(0, 1, "ordinal", "7", "suffix"), "21", "21st", "21."),
        (Numeral(0, 1, "ordinal", "7", "suffix"), "12", "12th", "12."),
        (Numeral(0, 1, "ordinal", "7", "suffix"), "3", "3rd", "3."),
        (Numeral(0, 1, "ordinal", "7"), "22", "22", "22"),
    ],
)
def test_values_are_written_as_each_language_does(written: Numeral, value: str, english: str, german: str) -> None:
    assert (ENGLISH.write(value, written), GERMAN.write(value, written)) == (english, german)
