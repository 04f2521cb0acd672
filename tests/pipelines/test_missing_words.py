"""Numbers and names that a translation lacks: found when they are lost or changed, and not when they are spelled so."""

from __future__ import annotations

import time

import pytest

from regard.pipelines import find_missing_words

RIGHT = [
    ("It rose by 63.5 percent.", "Es stieg um 63,5 Prozent."),
    ("He is the 44th president.", "Er ist der 44. Präsident."),
    ("He is the 44th president.", "Er ist der vierundvierzigste Präsident."),
    ("It is −12 degrees.", "Es sind minus zwölf Grad."),
    ("It is -12 degrees.", "Es sind 12 Grad unter null."),
    ("Call 555-0199.", "Rufen Sie 555 0199 an."),
    ("Call 555-0199.", "Rufen Sie 5550199 an."),
    ("I have 40,000 yen.", "Ich habe 40.000 Yen."),
    ("I have 40,000 yen.", "Ich habe 40 000 Yen."),
    ("I have 40,000 yen.", "Ich habe vierzigtausend Yen."),
    ("Tom came at 2:30.", "Tom kam um 2.30 Uhr."),
    ("Tom came at 2:30 p.m.", "Tom kam um 14:30 Uhr."),
    ("Tom came at 2:30.", "Tom kam um halb drei."),
    ("We met at half past two.", "Wir trafen uns um halb drei."),
    ("It is half past twelve.", "Es ist halb eins."),
    ("Call me at six-thirty.", "Ruf mich um halb sieben an."),
    ("It is 8 p.m.", "Es ist 20 Uhr."),
    ("It was on August 25th.", "Es war am 25.8."),
    ("The 1960s were wild.", "Die Sechziger waren wild."),
    ("10-12 people came.", "Es kamen 10 bis 12 Leute."),
    ("15 billion euros", "15.000.000.000 Euro"),
    ("He won 2 million euros.", "Er gewann 2 Mio. Euro."),
    ("Wait 15 minutes.", "Warte eine Viertelstunde."),
    ("Both, the two of them.", "Alle beide."),
    ("One moment, please.", "Augenblick, bitte."),
    ("Tom kam um halb drei.", "Tom came at 2:30."),
    ("Es sind 63,5 Prozent.", "It is 63.5 percent."),
    ("I met Mary in Rome.", "Ich traf Maria in Rom."),
    ("Is that Tom's dog?", "Ist das Toms Hund?"),
    ("He went to New Zealand.", "Er ging nach Neuseeland."),
    ("He lives in Munich.", "Er wohnt in München."),
    ("On Monday I speak French.", "Am Montag spreche ich Französisch."),
    ("I live in the United States.", "Ich lebe in den Vereinigten Staaten."),
    ('He said, "Come here."', "Er sagte: „Komm her.“"),
    ("Das ist der Hund von Maria.", "That is Mary's dog."),
    ("A Guide to Better Sleep and Health", "Besser und gesünder schlafen"),
    ("I'm sure I'll go.", "Ich gehe sicher hin."),
]
WRONG = [
    ("It rose by 63.5 percent.", "Es stieg um 635 Prozent.", ("63.5",)),
    ("He is the 44th president.", "Er ist der 24. Präsident.", ("44",)),
    ("He is the 44th president.", "Er ist der vierundzwanzigste Präsident.", ("44",)),
    ("It is −12 degrees.", "Es sind 12 Grad.", ("12",)),
    ("It is −12 degrees.", "Es ist kalt.", ("12",)),
    ("It is 12 degrees.", "Es sind -12 Grad.", ("12",)),
    ("Call 555-0199.", "Rufen Sie 55019 an.", ("555", "0199")),
    ("I have 40,000 yen.", "Ich habe 400.000 Yen.", ("40,000",)),
    ("Tom came at 2:30.", "Tom kam um 2.40 Uhr.", ("2:30",)),
    ("Tom came at 2:30.", "Tom kam um halb vier.", ("2:30",)),
    ("10-12 people came.", "Es kamen 10 Leute.", ("12",)),
    ("He has twelve sons.", "Er hat zwei Söhne.", ("twelve",)),
    ("He has 3 sons.", "Er hat dreizehn Söhne.", ("3",)),
    ("I met Mr. Smith.", "Ich traf Herrn Mith.", ("Smith",)),
    ("I met Tom and 3 friends in Boston.", "Ich traf Freunde.", ("Tom", "3", "Boston")),
    ("Es sind 63,5 Prozent.", "It is 635 percent.", ("63,5",)),
    ("He won 2 million euros.", "Er gewann 2 Euro.", ("2 million",)),
    ("Es sind minus fünf Grad.", "It is 5 degrees.", ("fünf",)),
    ("It is 2:30.", "Es ist 3:30.", ("2:30",)),
    ("The meeting is at 7:25.", "Das Treffen ist um 7:35.", ("7:25",)),
    ("He won 2 million euros.", "Er gewann 2 Milliarden Euro.", ("2 million",)),
    ("I visited D'Angelo.", "Ich besuchte ihn.", ("D'Angelo",)),
    ("Anna Smith met Peter Jones in Oslo.", "Etwas ganz anderes.", ("Smith", "Peter", "Jones", "Oslo")),
    ("I saw Sarah yesterday.", "Ich sah Maria gestern.", ("Sarah",)),
    ("We met near Berlin.", "Wir trafen uns bei Paris.", ("Berlin",)),
]


@pytest.mark.parametrize(("source", "translation"), RIGHT)
def test_a_right_translation_lacks_nothing(source, translation):
    assert find_missing_words(source, translation) == ()


@pytest.mark.parametrize(("source", "translation", "missing"), WRONG)
def test_what_is_lost_or_changed_is_missing(source, translation, missing):
    assert find_missing_words(source, translation) == missing


def test_the_time_is_about_linear_in_the_length():
    source, translation = "I met Tom at 5 p.m. with 1,234 friends. ", "Ich traf Tom um 17 Uhr mit 1234 Freunden. "
    start = time.perf_counter()
    assert find_missing_words(source * 2500, translation * 2500) == ()  # 100,000 characters
    for text in ("9" * 50_000 + "." + "9" * 50_000, "12:30 " * 16_000):
        find_missing_words(text, "Hallo")
        find_missing_words("Hallo 5", text)
    assert time.perf_counter() - start < 30  # it takes about two seconds
