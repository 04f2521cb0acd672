"""What stands where: on the first screen, in the order of the Tab key, on a phone and on paper."""

from __future__ import annotations

import itertools

import pytest
from playwright.sync_api import expect

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


CONTROLS = "button, select, summary, input, .token, .thumbnail, .theme label"
SMALL = """nodes => nodes
    .filter(node => node.checkVisibility() && !node.closest(".theme label > *, .visually-hidden, label"))
    .map(node => [node.getBoundingClientRect(), node.outerHTML.slice(0, 80)])
    .filter(([box]) => box.width > 0 && (box.width < 23.9 || box.height < 23.9)).map(([, html]) => html)"""


def test_fingers_have_24_pixels(open_page, make_recording):
    recording = make_recording(SENTENCE, TRANSLATION, heads=12)
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.3", width=400, has_touch=True, is_mobile=True)
    page.locator("details.options summary").tap()
    assert page.locator(CONTROLS).count() > 40
    assert page.locator(CONTROLS).evaluate_all(SMALL) == []
    boxes = page.locator(".field label, .theme label").evaluate_all("n => n.map(m => m.getBoundingClientRect().height)")
    assert min(box for box in boxes if box) >= 23.9


def test_on_paper_tokens_and_bars_keep_their_colors_and_controls_are_left_out(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.3")
    page.emulate_media(media="print")
    for place in (".token.focused", ".panel .bar", ".thumbnail canvas", ".legend-title"):
        assert page.locator(place).first.is_visible()
        assert page.locator(place).first.evaluate("node => getComputedStyle(node).printColorAdjust") == "exact"
    for place in (".view-buttons", ".exports", ".controls", ".options", "#theme", ".tools"):
        assert not page.locator(place).first.is_visible()
    page.emulate_media(media="screen")
    assert page.locator(".view-buttons").is_visible()


@pytest.mark.parametrize("width", [400, 1280, 2560])
def test_equal_shares_have_bars_of_equal_length(open_page, make_recording, width):
    recording = make_recording(SENTENCE, TRANSLATION, encoders=3)
    page = open_page(recording, "#layer=decoder.0&head=0&views=segments", width=width)
    page.locator(".segment-bar").nth(6).wait_for()
    settle(page)
    boxes = page.locator(".segment-bar:visible").evaluate_all(
        "nodes => nodes.map(node => node.getBoundingClientRect()).map(({left, width}) => [left, width])"
    )
    assert len({(round(left), round(width)) for left, width in boxes}) == 1
    assert boxes[0][1] >= 64
    tops = page.locator(".segment-values").evaluate_all(
        "nodes => nodes.map(n => new Set([...n.children].map(m => Math.round(m.getBoundingClientRect().top))).size)"
    )
    assert set(tops) == {1}


def test_at_rest_repeated_tokens_have_their_positions_and_special_tokens_are_left_out(open_page, make_recording):
    tokens = ("<s>", "▁the", "▁cat", "▁the", "▁dog", "</s>")
    page = open_page(make_recording(tokens, tokens), "#layer=encoder.0&head=0")
    names = page.locator(".panel").first.locator(".name")
    assert names.count() == 8
    assert not any("s>" in text for text in names.all_text_contents())
    the = page.locator(".panel .name [data-position]")
    assert {*the.all_text_contents()} == {"the"}
    assert {*the.evaluate_all("nodes => nodes.map(node => node.dataset.position)")} <= {"1", "3"}


def test_back_and_forward_go_over_the_steps_of_the_reader(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    name, pause = page.locator(".head-name"), 400  # ms until the address follows

    def shown() -> tuple[str, int]:
        settle(page)
        return name.text_content(), page.locator("#text .token[aria-selected=true]").count()

    choose(page, "encoder.1, head 2")
    page.wait_for_timeout(pause)
    token(page, 0, 3).click()
    page.wait_for_timeout(pause)
    page.locator("#matrix canvas").focus()
    page.keyboard.press("+")  # no step
    page.wait_for_timeout(pause)
    assert "zoom=" in page.url
    page.get_by_role("button", name="Segments").click()
    page.wait_for_timeout(pause)
    length = page.evaluate("history.length")
    page.go_back()
    expect(page.locator("#segments")).to_be_hidden()
    assert shown() == ("encoder.1, head 2", 1)
    assert "zoom=" in page.url
    page.go_back()
    expect(page.locator("#text .token[aria-selected=true]")).to_have_count(0)
    assert shown() == ("encoder.1, head 2", 0)
    page.go_back()
    expect(name).to_have_text("encoder.0, head 0")
    page.go_forward()
    expect(name).to_have_text("encoder.1, head 2")
    page.wait_for_timeout(pause)
    assert page.evaluate("history.length") == length


def test_each_meaning_has_a_color_of_its_own(open_page, recording):
    """What attends, what is attended to, signs, the two sides of a comparison, and segments."""
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.3&views=calculation,segments")
    page.locator(".segment-bar").first.wait_for()
    page.locator(".stage .term.query").first.wait_for()
    root = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    names = ("--out", "--in", "--positive", "--negative", "--side-a", "--side-b")
    colors = [page.evaluate(root, name) for name in names]
    assert len(set(colors)) == len(names)
    ground = "node => getComputedStyle(node).backgroundColor"
    query = page.locator(".stage .term.query").first.evaluate("node => getComputedStyle(node).color")
    places = (".segment-bar .segment-0", ".segment-bar .segment-1")
    drawn = [query, *(page.locator(place).first.evaluate(ground) for place in places)]
    as_rgb = "color => { const node = document.createElement('i'); node.style.color = color; return node.style.color; }"
    assert drawn[0] == page.evaluate(as_rgb, colors[0])  # a query attends
    assert not {*drawn[1:]} & {page.evaluate(as_rgb, color) for color in colors}
    assert drawn[1] != drawn[2]


def test_hints_use_the_room_that_there_is(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    assert page.get_by_text("drag to move").bounding_box()["height"] < 30  # one line


def test_no_button_of_a_view_is_cut_on_a_phone(open_page, make_recording):
    page = open_page(make_recording(SENTENCE, TRANSLATION), width=400)
    boxes = [button.bounding_box() for button in page.locator(".view-buttons button").all()]
    assert len(boxes) >= 7
    assert max(box["x"] + box["width"] for box in boxes) <= 400


def test_a_long_text_has_no_room_for_arcs_that_are_not_drawn(open_page, make_recording):
    long = tuple(f"▁word{index}" for index in range(300))
    page = open_page(make_recording(long, long, encoders=1, decoders=0, heads=1), "#views=text")
    settle(page)
    stage, first = page.locator("#text .stage").bounding_box(), token(page, 0, 0).bounding_box()
    assert first["y"] - stage["y"] < 32
