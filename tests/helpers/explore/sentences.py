"""Sentences to translate: odd ones, and many ordinary ones."""

from __future__ import annotations

from itertools import islice, product

from regard.explore.playground import EXAMPLE

SUBJECTS = ("The old man", "My sister", "Nobody", "She", "The children", "Tom's dog", "A well-known doctor", "We")
VERBS = ("saw", "didn't like", "has already bought", "was looking for", "will never forget", "gave me")
OBJECTS = ("the house.", "a red car, too.", "3 apples!", "it?", "the U.S. president", "what you said yesterday.")
ODD = (
    EXAMPLE,
    "  two   spaces\tand a\nline end  ",
    "naïve café, cafe\u0301, Straße, ﬁne",
    "emoji 😀👍🏽 ❤️ and 👨‍👩‍👧",
    "שלום עולם, مرحبا بالعالم",
    "日本語のテキスト。",
    "</s> <s> <pad> <script>alert(1)</script> &amp;",
    "a\x00b\x1b[2J\u202etxt.exe\u0085c\ufeffd\u200b",
    "12,345.67 € ½ ² Ⅷ x_y",
    "can’t I’ll o'clock rock'n'roll 'tis",
    "e\u0301\u0323 क्षि ก็",
)


def sentences(count: int) -> list[str]:
    combinations = [f"{subject} {verb} {thing}" for subject, verb, thing in product(SUBJECTS, VERBS, OBJECTS)]
    return [*ODD, *islice(combinations[::-3] + combinations, count - len(ODD))]
