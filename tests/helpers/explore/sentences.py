"""Sentences to translate: odd ones, and many ordinary ones."""

from __future__ import annotations

from itertools import product

from regard.explore.playground import EXAMPLE

SUBJECTS = ("The old man", "My sister", "Nobody", "She", "The children", "Tom's dog", "A well-known doctor", "We", "I")
VERBS = (
    "saw",
    "didn't like",
    "has already bought",
    "was looking for",
    "will never forget",
    "gave me",
    "might need",
    "was told about",
)
OBJECTS = (
    "the house.",
    "a red car, too.",
    "3 apples!",
    "it?",
    "the U.S. president",
    "what you said yesterday.",
    "nothing new.",
)
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
    """Different ones, as far as there are (515)."""
    combinations = [f"{subject} {verb} {thing}" for subject, verb, thing in product(SUBJECTS, VERBS, OBJECTS)]
    order = sorted(range(len(combinations)), key=lambda index: index * 101 % len(combinations))
    return [*ODD, *(combinations[index] for index in order)][:count]
