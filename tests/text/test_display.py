"""How tokens are displayed: the cases of the tests of the page (tests/explore/js/tokens.test.js), and more."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.display import display_tokens, escape_controls, escape_invisible

FAMILY = "👩\u200d👩\u200d👧"


@pytest.mark.parametrize(
    ("token", "displayed"),
    [
        ("▁Das", "Das"),
        ("", "␣"),
        ("▁", "␣"),
        ("▁▁", "␣␣"),
        ("\x00\x07\x1b[2J\x7f", "␀␇␛[2J␡"),
        ("\u202eevil\u2066", "⟨202E⟩evil⟨2066⟩"),
        ("\ud800", "⟨D800⟩"),
        (FAMILY, FAMILY),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u200c", "⟨200C⟩"),
        ("\u200b", "⟨200B⟩"),
        ("\xa0", "␣"),
        ("x" * 10_000, f"{'x' * 31}…"),
        ("\n\t\r", "↵⇥␍"),
        ("\u202e" * 5, "⟨202E⟩" * 5),
        ("\u202e" * 6, f"{'⟨202E⟩' * 5}…"),
        ("x" * 32, "x" * 32),
        (f"{'x' * 26}\u202e", f"{'x' * 26}⟨202E⟩"),
        (f"{'x' * 27}\u202e", f"{'x' * 27}…"),
        ("</script>", "</script>"),
        ("Ġcat", "cat"),
        (" cat", "cat"),
        ("Ċ", "↵"),
        ("ĠĊ", "↵"),
        ("Ã©", "é"),
        ("ĠcafÃ©", "café"),
        ("##ing", "ing"),
        ("##", "##"),
        ("<0x0A>", "↵"),
        ("<0xC3>", "<0xC3>"),
        ("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<|\x1b|>", "<|␛|>"),
        ("0,12", "0,12"),
        ("▁Ã©", "Ã©"),
    ],
)
def test_displayed(token, displayed):
    assert display_tokens([token]) == [displayed]


def test_tokens_are_spelled_as_their_neighbors_are():
    assert display_tokens(["▁na", "ß", "»", "▁a▁b"]) == ["na", "ß", "»", "a b"]
    assert display_tokens(["Ġso", "ç", "Į", "«", "!"]) == ["so", "<0xE7>", "<0x8C>", "<0xAB>", "!"]
    assert display_tokens(["[CLS]", "un", "##related"]) == ["[CLS]", "un", "related"]


def test_a_token_can_be_displayed_without_truncation():
    assert display_tokens(["▁" + "x" * 100, "y\n"], max_length=None) == ["x" * 100, "y↵"]
    assert display_tokens(["abcdef"], max_length=4) == ["abc…"]


@given(st.lists(st.text(max_size=40) | st.sampled_from(["Ġ", "▁", "##a", "Ã", "<0xC3>", "</s>"]), max_size=6))
def test_nothing_displayed_is_invisible_or_endless(tokens):
    displayed = display_tokens(tokens)
    assert len(displayed) == len(tokens)
    for text in displayed:
        assert 1 <= len(text) <= 32
        hidden = {"Cc", "Cf", "Zl", "Zp", "Cs"}
        assert not [c for c in text if unicodedata.category(c) in hidden and c not in "\u200c\u200d"]


def test_running_text_is_as_it_is_except_for_controls():
    assert escape_controls("a \u202egnp.exe\u2066\x1b[2J") == "a ⟨202E⟩gnp.exe⟨2066⟩␛[2J"
    assert escape_controls("a\rb\x9b") == "a␍b⟨009B⟩"
    for text in ("سلام دنیا", "می\u200cخواهم", "שלום\u200f!", FAMILY, "one\ntwo\tthree", "", "a\u2028b"):
        assert escape_controls(text) == text


def test_invisible_characters_are_escaped():
    assert escape_invisible("a\u2028b\ufeff") == "a⟨2028⟩b⟨FEFF⟩"
    assert escape_invisible("a\u200db") == "a\u200db"
