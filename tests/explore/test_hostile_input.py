"""Hostile tokens and titles are shown as text and run nothing."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.explore.page_actions import settle, spoken, token
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 2'>",
    "</script ><img src=x onerror='window.harmed = 4'>",
    "\"'`${window.harmed = 3}",
    "{{boot}}",
    "\x00\x07\x1b[2J",
    "\u202eevil\u2066",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\u0627\u0644\u0633\u0644\u0627\u0645",
    "\ud800",
    "",
    "▁",
    "</style><!--",
    "x" * 10_000,
)


def hostile_page(open_page, tokens: tuple[str, ...], **options):
    """A page in which everything that can be harmful is, and that has stored each token as it is."""
    many = len(tokens)
    weights = regard.weights(torch.randn(1, 1, many, 4), torch.randn(1, 1, many, 4))
    kinds = ("encoder", "cross", "decoder")
    layers = tuple(Layer(f"{kind}</script>", kind, weights, tokens, tokens) for kind in kinds)
    page = open_page(Recording(HOSTILE[0], HOSTILE[1], layers, {HOSTILE[0]: HOSTILE[1]}), **options)
    stored = "JSON.parse(document.getElementById('recording').textContent).sequences.map(s => s.tokens)"
    for read in page.evaluate(stored):
        assert tuple(read) == tokens
    return page


def assert_unharmed(page) -> None:
    texts = page.locator("#text .tokens").last.locator(".token").all_text_contents()
    assert texts[1] == HOSTILE[1][:31] + "…"
    assert texts[5] == "␀␇␛[2J"
    assert texts[6] == "⟨202E⟩evil⟨2066⟩"
    assert texts[7:9] == list(HOSTILE[7:9])
    assert len(texts[13]) == 32
    assert page.locator("h1").text_content() == HOSTILE[0]
    assert page.evaluate("window.harmed") is None
    assert page.locator("img, iframe, object, body script:not([type]) ~ *").count() == 0
    beyond = "[...document.querySelectorAll('*')].filter(x => x.getBoundingClientRect().right > innerWidth)"
    named = page.evaluate(beyond + ".map(x => `${x.tagName} ${x.className} ${x.getBoundingClientRect().right}`)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), named


def test_hostile_tokens_are_text_and_run_nothing(open_page):
    page = hostile_page(open_page, HOSTILE)
    for cell in page.get_by_role("gridcell").all():
        cell.click()
        settle(page)
        token(page, 0, 0).focus()
        for _ in HOSTILE:
            page.keyboard.press("ArrowRight")
        page.locator("#matrix canvas").focus()
        for _ in HOSTILE:
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
        settle(page)
        assert page.locator(".tip .pair").text_content()
    assert_unharmed(page)


def test_hostile_tokens_of_a_long_text_run_nothing_either(open_page):
    page = hostile_page(open_page, HOSTILE * 21, width=400)  # 294 tokens: the page computes weights
    layers = "JSON.parse(document.getElementById('recording').textContent).layers.map(layer => layer.storage)"
    assert page.evaluate(layers) == ["computed"] * 3
    for cell in page.get_by_role("gridcell").all():
        cell.click()
        settle(page)
        token(page, 0, 14).focus()
        for _ in HOSTILE:
            page.keyboard.press("ArrowRight")
        settle(page)
        assert page.locator(".panel").first.text_content()
        page.locator("#matrix canvas").focus()
        for key in ("+", "+", "+", "+", "+", "+", "+", "+", *["ArrowDown", "ArrowRight"] * len(HOSTILE)):
            page.keyboard.press(key)
        settle(page)
        assert page.locator(".tip .pair").text_content()
        assert spoken(page)
    for text in ("</script>", "\u202e", "\x00", "onerror"):
        page.get_by_label("Find").fill(text)
    settle(page)
    assert_unharmed(page)
    again = hostile_page(open_page, HOSTILE * 21)
    again.evaluate("location.hash = '#search=' + encodeURIComponent('<img src=x onerror=\"window.harmed = 5\">')")
    settle(again)
    assert_unharmed(again)
