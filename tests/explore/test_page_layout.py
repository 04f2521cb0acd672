"""What stands where: on the first screen, in the order of the Tab key, on a phone and on paper."""

from __future__ import annotations

import itertools

import pytest

from helpers.explore.page_actions import choose, settle, token

pytestmark = pytest.mark.browser

SENTENCE = (
    "▁The",
    "▁an",
    "imal",
    "▁didn",
    "'t",
    "▁cross",
    "▁the",
    "▁street",
    "▁because",
    "▁it",
    "▁was",
    "▁too",
    "▁tired",
    ".",
    "</s>",
)
TRANSLATION = (
    "▁Das",
    "▁T",
    "ier",
    "▁ging",
    "▁nicht",
    "▁über",
    "▁die",
    "▁Straße",
    ",",
    "▁weil",
    "▁es",
    "▁zu",
    "▁müde",
    "▁war",
    ".",
    "</s>",
)


def bottom_of(locator) -> float:
    box = locator.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1440, 900), (1600, 900)])
def test_the_text_and_its_arcs_are_on_the_first_screen(open_page, make_recording, width, height):
    recording = make_recording(SENTENCE, TRANSLATION, encoders=4, decoders=3, heads=8)
    page = open_page(recording, "#layer=encoder.2&head=0&token=source.9&sort=selection", width=width, height=height)
    settle(page)
    assert bottom_of(token(page, 0, 9)) < height
    arc = page.locator(".arc.out").last.bounding_box()
    assert arc["y"] > 0
    assert arc["y"] + arc["height"] < height
    assert page.locator(".thumbnail").first.bounding_box()["y"] < height
    assert page.locator("h1").bounding_box()["height"] < 60
    choose(page, page.locator(".thumbnail").first.get_attribute("aria-label"))
    page.evaluate("location.hash = '#layer=cross.2&head=0&token=written.4'")
    settle(page)
    assert bottom_of(token(page, 1, 4)) < height


FOCUS_PLACE = """() => {
    const {top, left} = document.activeElement.getBoundingClientRect();
    return [document.activeElement.tagName, top + scrollY, left, !!document.activeElement.closest(".overview")];
}"""


@pytest.mark.parametrize("width", [400, 640, 1280])
def test_tab_follows_what_is_seen(open_page, recording, width):
    """Down the page, or down its left and then its right part."""
    page = open_page(recording, "#layer=encoder.0&head=0", width=width)
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS_PLACE)
        if stop[0] == "BODY":
            break
        stops.append(stop)
    page_order = [in_overview for *_, in_overview in stops]
    changes = sum(a != b for a, b in itertools.pairwise(page_order))
    assert changes == (2 if width == 1280 else 1)  # on a phone the heads come last, as they are seen
    main = page.evaluate("[...document.querySelector('main').children].map(node => node.getBoundingClientRect().top)")
    assert main == sorted(main)


def test_the_first_stop_skips_to_the_text(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('#text .token')")
    assert "layer=encoder.0" in page.url
