"""Labels of tokens: nothing invisible, nothing that only a tokenizer understands."""

from __future__ import annotations

import pytest

from regard.explore.token_labels import token_labels


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        (["▁The", "▁cat", "s", ".", "</s>"], ["The", "cat", "·s", ".", "</s>"]),
        (["The", "Ġcat", "s", "Ċ", "ĊĊ", "ĠĠ"], ["The", "cat", "·s", "↵", "↵↵", "␣"]),
        (["[CLS]", "play", "##ing", "##", "[SEP]"], ["[CLS]", "play", "·ing", "##", "[SEP]"]),
        (["▁", "▁▁", "\n", "\t"], ["␣", "␣", "↵", "⇥"]),
        (["word 1", "word 2"], ["word 1", "word 2"]),
        (["▁Ġurnata"], ["Ġurnata"]),  # a Maltese word in a vocabulary that marks spaces otherwise
        (["a\u202eb", "\x07", "\u200b", "👩\u200d🔬"], ["a⟨202E⟩b", "⟨0007⟩", "⟨200B⟩", "👩\u200d🔬"]),
        (["<script>alert(1)</script>"], ["<script>alert(1)</script>"]),
        ([], []),
    ],
)
def test_labels(tokens, labels):
    assert token_labels(tokens) == tuple(labels)
