"""How the page is used: by keyboard, by touch, by link, light and dark, narrow and wide."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.page_actions import (
    arcs,
    as_shown,
    choose,
    layer_of,
    place_of,
    point_at,
    settle,
    spoken,
    spot,
    token,
    values,
)
from helpers.pairwise import everything
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser


def tab_to(page, selector: str) -> None:
    """Press Tab until something is reached."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def test_everything_works_by_keyboard(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    page.get_by_role("gridcell", name="encoder.0, head 0").focus()
    for keys, expected in (
        (["ArrowRight", "ArrowRight"], "encoder.0, head 2"),
        (["ArrowDown", "ArrowDown", "Home"], "cross.0, head 0"),  # cross-attention stands below the encoder
        (["ArrowLeft", "ArrowUp", "End"], "encoder.1, head 2"),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert page.locator(".head-name").text_content() == expected
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == expected

    tab_to(page, "#text .token")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "animal"
    assert arcs(page, "out")
    page.keyboard.press("Enter")
    settle(page)
    assert token(page, 0, 1).get_attribute("aria-selected") == "true"
    page.wait_for_url("**#layer=encoder.1&head=2&token=source.1&unit=tokens")

    tab_to(page, "#matrix canvas")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    weight = layer_of(recording, "encoder.1").weights[0, 2, 2, 2].item()
    assert values(page, ".tip .value") == [as_shown(weight)]
    assert spoken(page).startswith("was attends to was with ")
    page.keyboard.press("Escape")
    page.wait_for_url("**#layer=encoder.1&head=2&unit=tokens")


def test_arrows_go_between_the_two_texts(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0")
    token(page, 1, 0).focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "n"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "The"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "n"


def test_a_text_of_many_lines_is_a_column(open_page, make_recording):
    # 12 words: two lines on a wide screen in any font, more on a narrow one.
    long = tuple(f"▁word{index}" for index in range(12))
    long_recording = make_recording(long, long)
    page = open_page(long_recording, "#layer=cross.0&head=0", width=400)
    token(page, 1, 3).focus()
    settle(page)
    left, right = token(page, 0, 3).bounding_box(), token(page, 1, 3).bounding_box()
    assert left["x"] + left["width"] < right["x"]
    settle(page)
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "word4"
    weights = layer_of(long_recording, "cross.0").weights[0, 0]
    assert arcs(page, "out") == {(4, key) for key in range(12) if weights[4, key] >= 0.01}
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "word0"
    choose(page, "encoder.0, head 0")
    expect(page.locator(".stage")).to_have_class(re.compile("columns"))
    page.set_viewport_size({"width": 1900, "height": 900})
    expect(page.locator(".stage")).not_to_have_class(re.compile("columns"))


STOP = """() => {
    const node = document.activeElement;
    const shown = node.matches(".theme input") ? node.nextElementSibling : node;
    const style = getComputedStyle(shown);
    const named = node.labels?.length ? node.labels[0] : node;
    const name = node.getAttribute("aria-label") || named.textContent;
    return [node.tagName, name.trim(), style.outlineStyle, parseFloat(style.outlineWidth)];
}"""


def stops_of(page) -> list[tuple]:
    """What Tab reaches, from the beginning to the end of the page."""
    stops = []
    for _ in range(100):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop[0] == "BODY":
            return stops
        stops.append(stop)
    raise AssertionError(f"Tab does not come to the end of the page: {stops}")


def test_every_stop_of_the_tab_key_has_a_name_and_can_be_seen(open_page, recording, make_recording):
    stops = stops_of(open_page(recording, "#layer=cross.0&head=0"))
    for tag, name, outline, width in stops:
        assert name, tag
        assert outline != "none", (tag, name)
        assert width >= 1, (tag, name)
    # As many stops, however many tokens and heads.
    pieces = (*sentence(30), "s", "</s>")  # of words, as in the other
    more = stops_of(open_page(make_recording(pieces, sentence(40), heads=8), "#layer=cross.0&head=0"))
    assert [tag for tag, *_ in more] == [tag for tag, *_ in stops]
    assert {"INPUT", "SUMMARY", "SELECT", "BUTTON", "DIV", "SPAN", "CANVAS"} <= {tag for tag, *_ in stops}


def test_light_and_dark_follow_the_system_and_the_choice(open_page, recording):
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    corner = """() => {
        const copy = new OffscreenCanvas(8, 8).getContext("2d");
        copy.drawImage(document.querySelector(".thumbnail canvas"), 0, 0);
        return [...copy.getImageData(0, 7, 1, 1).data].join();
    }"""
    dark = open_page(recording, color_scheme="dark")
    light = open_page(recording, color_scheme="light")
    assert dark.evaluate(ground) < 120
    assert light.evaluate(ground) > 700
    in_light, in_dark = light.evaluate(corner), dark.evaluate(corner)
    assert in_light != in_dark
    light.get_by_label("dark").check(force=True)
    assert light.evaluate(ground) < 120
    assert light.evaluate(corner) == in_dark
    light.wait_for_url("**&theme=dark")
    light.get_by_label("auto").check(force=True)
    assert light.evaluate(ground) > 700
    light.emulate_media(color_scheme="dark")
    expect(light.locator("html")).to_have_attribute("data-theme", "dark")
    assert light.evaluate(ground) < 120
    assert light.evaluate(corner) == in_dark


def test_a_link_opens_its_view_again(open_page, recording):
    page = open_page(recording, "#layer=decoder.1&head=2&token=written.3&theme=dark")
    assert page.locator(".head-name").text_content() == "decoder.1, head 2"
    assert page.locator(".token[aria-selected=true]").text_content() == "zu"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("location.hash = '#layer=encoder.0&head=1'")
    expect(page.locator(".head-name")).to_have_text("encoder.0, head 1")


@pytest.mark.parametrize(
    "fragment",
    ["#layer=nowhere&head=1", "#head=99", "#layer=cross.0&head=-1&token=source.99", "#token=.&theme=pink", "#%"],
)
def test_a_link_to_nothing_opens_the_page(open_page, recording, fragment):
    page = open_page(recording, fragment)
    assert re.fullmatch(r"cross\.[01], head \d", page.locator(".head-name").text_content())
    assert page.locator(".token[aria-selected=true]").count() == 0


@pytest.mark.parametrize("width", [320, 400, 1280, 2560, 3840] if everything() else [320, 1280, 3840])
def test_nothing_overflows_sideways(open_page, make_recording, width):
    long = tuple(f"▁Wort{'lang' * (index % 4)}" for index in range(30))
    page = open_page(make_recording(long, long, heads=8), "#token=source.3", width=width)
    for summary in page.locator("summary:visible").all():
        summary.click()
    apart = ".view-buttons, .matrix-frame, .visually-hidden, details, svg"
    edges = "(nodes, apart) => nodes.map(node => node.closest(apart) ? 0 : node.getBoundingClientRect().right)"
    for name in ("encoder.0", "decoder.0", "cross.0"):
        choose(page, f"{name}, head 0")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert max(page.locator("main *, header *").evaluate_all(edges, apart)) <= width  # nor is anything cut off


@pytest.mark.parametrize(("heads", "width"), [(16, 1280), (64, 1280), (64, 400)])
def test_many_heads_are_large_enough_and_reached_by_scrolling(open_page, make_recording, heads, width):
    page = open_page(make_recording(sentence(8), sentence(8), heads=heads), width=width)
    maps = page.locator('.thumbnail[aria-label^="encoder.0"]')
    assert min(box["width"] for box in (node.bounding_box() for node in maps.all())) >= 14
    maps.last.click()
    assert page.locator(".head-name").text_content() == f"encoder.0, head {heads - 1}"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_without_a_title_has_the_models_name(open_page, recording):
    page = open_page(recording.replace(title=""))
    assert page.locator("h1").text_content() == "a model"
    assert page.title() == "a model · Regard"


def test_a_change_that_is_written_late_does_not_undo_a_navigation(open_page, recording):
    """The event of a navigation comes after it, and the last change may be written to the address in between."""
    page = open_page(recording, "#layer=encoder.0&head=0")
    page.evaluate("""() => new Promise(done => {
        addEventListener("hashchange", done, {once: true});
        location.hash = "#layer=encoder.0&head=1";
        history.replaceState(null, "", "#layer=encoder.0&head=0");
    })""")
    assert re.match(r"#layer=encoder\.0&head=1(&|$)", page.evaluate("location.hash"))


def test_invalid_fields_of_a_link_are_replaced_in_the_url(open_page, recording):
    page = open_page(recording, "#layer=nowhere&head=99&token=source.999")
    expect(page).to_have_url(re.compile(r"#layer=cross\.[01]&head=\d&unit=tokens$"))
    page.evaluate("location.hash = '#layer=encoder.0&head=77'")
    expect(page.locator(".head-name")).to_have_text(re.compile("encoder.0"))
    assert re.fullmatch(r"#layer=encoder\.0&head=[0-7]", page.evaluate("location.hash"))


def sentence(count: int) -> tuple[str, ...]:
    return tuple(f"▁word{index}" for index in range(count))


@pytest.mark.parametrize(("count", "width", "least"), [(72, 1280, 6), (72, 2560, 6), (30, 400, 6), (110, 1280, 3)])
def test_the_whole_matrix_of_a_long_sentence_is_visible(open_page, make_recording, count, width, least):
    long = sentence(count)
    page = open_page(make_recording(long, long, encoders=1, decoders=0), "#layer=encoder.0&head=0", width=width)
    drawing = place_of(page)
    frame = page.locator(".matrix-frame").evaluate("node => [node.scrollWidth, node.clientWidth]")
    assert frame[0] <= frame[1]
    assert drawing["cell"] >= least
    assert drawing["left"] + count * drawing["cell"] <= frame[1] + 1
    matrix, readout = (page.locator(drawing).bounding_box() for drawing in ("#matrix", "#details"))
    apart = matrix["x"] + matrix["width"] <= readout["x"] or (
        matrix["y"] + matrix["height"] <= readout["y"] or readout["y"] + readout["height"] <= matrix["y"]
    )
    assert apart


@pytest.fixture(scope="module")
def long_encoder(recording) -> Recording:
    """Ninety tokens, of which one matrix is."""
    words = sentence(90)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 1, 2, 90, 8, generator=generator)
    return Recording("t", "m", (Layer("encoder.0", "encoder", regard.weights(*vectors), words, words),))


def test_the_matrix_is_zoomed_and_moved_by_keys(open_page, long_encoder):
    page = open_page(long_encoder, "#layer=encoder.0&head=0", width=400)
    initial = place_of(page)
    canvas = page.locator("#matrix canvas")
    canvas.focus()
    for key in ("End", "PageDown", "PageDown", "PageDown", "PageDown", "ArrowUp", "+", "+", "+", "+", "+"):
        page.keyboard.press(key)
    zoomed = place_of(page)
    assert zoomed["cell"] == pytest.approx(initial["cell"] * 1.5**5, rel=0.01)
    assert zoomed["row"] > 30
    assert zoomed["column"] > 30
    weights = layer_of(long_encoder, "encoder.0").weights[0, 0]
    assert values(page, ".tip .value") == [as_shown(weights[88, 89].item())]
    assert page.locator(".tip .places").text_content() == "88 → 89"
    page.keyboard.press("Home")  # the matrix moves along
    assert place_of(page)["column"] == 0
    assert values(page, ".tip .value") == [as_shown(weights[88, 0].item())]
    page.wait_for_timeout(400)  # the address follows
    assert "&zoom=" in page.url
    again = open_page(long_encoder, "#" + page.url.partition("#")[2], width=400)
    assert place_of(again) == pytest.approx(place_of(page), abs=0.6)
    page.keyboard.press("-")
    assert place_of(page)["cell"] < zoomed["cell"]
    page.keyboard.press("0")
    assert place_of(page) == initial
    tip = page.locator(".tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= 400


def test_the_matrix_is_zoomed_and_moved_by_wheel_buttons_and_drag(open_page, long_encoder):
    page = open_page(long_encoder, "#layer=encoder.0&head=1")
    weights = layer_of(long_encoder, "encoder.0").weights[0, 1]
    canvas = page.locator("#matrix canvas")
    point_at(page, 40, 50)
    initial = place_of(page)
    page.mouse.wheel(0, -100)  # scrolls the page
    assert place_of(page) == initial
    point_at(page, 40, 50)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    zoomed = place_of(page)
    assert zoomed["cell"] == pytest.approx(initial["cell"] * 2.718, rel=0.01)
    point_at(page, 41, 50)
    assert values(page, ".tip .value") == [as_shown(weights[41, 50].item())]

    box = canvas.bounding_box()
    x, y = spot(page, 41, 50)
    page.mouse.down()
    page.mouse.move(box["x"] + x - 50, box["y"] + y - 80, steps=4)
    page.mouse.up()
    moved = place_of(page)
    assert moved["column"] - zoomed["column"] == pytest.approx(50 / zoomed["cell"], abs=0.2)
    assert moved["row"] - zoomed["row"] == pytest.approx(80 / zoomed["cell"], abs=0.2)
    point_at(page, 41, 50)
    assert values(page, ".tip .value") == [as_shown(weights[41, 50].item())]

    page.get_by_role("button", name="Zoom in").click()
    assert place_of(page)["cell"] == pytest.approx(min(moved["cell"] * 1.5, 48), rel=0.01)
    page.get_by_role("button", name="Fit the whole matrix").click()
    assert place_of(page) == initial
    page.get_by_role("button", name="Zoom out").click()
    assert place_of(page) == initial


def region_numbers(page) -> list[float]:
    settle(page)
    panel = page.locator(".panel", has_text="Region")
    return panel.locator(".value").evaluate_all("nodes => nodes.map(node => +node.textContent)")


def test_a_region_is_marked_by_mouse_keys_and_link_and_summed(open_page, recording):
    weights = layer_of(recording, "encoder.0").weights[0, 1]
    page = open_page(recording, "#layer=encoder.0&head=1&region=1.3.2.6")
    total = weights[1:4, 2:7].sum().item()
    assert region_numbers(page) == [as_shown(total), as_shown(total / 3)]

    point_at(page, 6, 5)
    box = page.locator("#matrix canvas").bounding_box()
    x, y = spot(page, 4, 2)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    total = weights[4:7, 2:6].sum().item()
    assert region_numbers(page) == [as_shown(total), as_shown(total / 3)]
    page.wait_for_url("**region=4.6.2.5&unit=tokens")

    page.locator("#matrix canvas").focus()
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator(".panel", has_text="Region").count() == 0
    point_at(page, 2, 2)
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    page.wait_for_url("**region=2.3.2.3&unit=tokens")
    total = weights[2:4, 2:4].sum().item()
    assert region_numbers(page) == [as_shown(total), as_shown(total / 2)]


@pytest.mark.parametrize("width", [1600, 2560])
def test_the_numbers_of_a_long_sentence_stay_in_sight(open_page, make_recording, width):
    long = sentence(72)
    page = open_page(make_recording(long, long), "#layer=encoder.0&head=0", width=width)
    for index in (0, 40, 71):
        token(page, 0, index).hover()
        settle(page)
        box = page.locator("#details .lists").bounding_box()
        assert 0 <= box["y"] < 500


def test_bars_are_there_in_forced_colours(open_page, recording):
    page = open_page(recording, "#token=source.3", forced_colors="active")
    image = page.locator(".panel .bar").first.evaluate("node => getComputedStyle(node).backgroundImage")
    assert "linear-gradient" in image


def test_canvases_are_sharp_on_a_fine_screen(open_page, recording):
    page = open_page(recording, device_scale_factor=2)
    width, shown = page.locator("#matrix canvas").evaluate("node => [node.width, node.getBoundingClientRect().width]")
    assert width == pytest.approx(2 * shown, abs=1)


def test_a_tap_is_as_good_as_a_hover(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0", width=400, has_touch=True, is_mobile=True)
    token(page, 1, 2).tap()
    assert {query for query, _ in arcs(page, "out")} == {2}
    canvas = page.locator("#matrix canvas")
    x, y = spot(page, 3, 1)
    canvas.tap(position={"x": x, "y": y})
    assert values(page, ".tip .value") == [as_shown(layer_of(recording, "cross.0").weights[0, 0, 3, 1].item())]
