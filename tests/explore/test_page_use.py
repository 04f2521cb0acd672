"""How the page is used: by keyboard, by touch, by link, light and dark, narrow and wide, and by whoever means harm."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from explore.opened import FOUR_DIGITS, arcs, layer_of, token
from regard.analysis.recording import Layer, Recording

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

    page.keyboard.press("Tab")  # to the text
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "animal"
    assert arcs(page, "out")
    page.keyboard.press("Enter")
    assert token(page, 0, 1).get_attribute("aria-selected") == "true"
    page.wait_for_url("**#layer=encoder.1&head=2&token=source.1")

    page.keyboard.press("Tab")  # to the matrix
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    weight = layer_of(recording, "encoder.1").weights[0, 2, 2, 2].item()
    assert float(page.locator(".tip .value").text_content()) == pytest.approx(weight, abs=2 * FOUR_DIGITS)
    assert page.get_by_role("status").text_content().startswith("was attends to was with ")
    page.keyboard.press("Escape")
    page.wait_for_url("**#layer=encoder.1&head=2")


def test_arrows_go_between_the_two_texts(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0")
    token(page, 1, 0).focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "n"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "The"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "n"


def test_a_text_of_many_lines_stands_as_a_column(open_page, make_recording):
    long = tuple(f"▁word{index}" for index in range(16))
    long_recording = make_recording(long, long)
    page = open_page(long_recording, "#layer=cross.0&head=0", width=400)
    token(page, 1, 3).focus()
    left, right = token(page, 0, 3).bounding_box(), token(page, 1, 3).bounding_box()
    assert left["x"] + left["width"] < right["x"]
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "word4"
    weights = layer_of(long_recording, "cross.0").weights[0, 0]
    assert arcs(page, "out") == {(4, key) for key in range(16) if weights[4, key] >= 0.01}
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "word0"
    page.get_by_role("gridcell", name="encoder.0, head 0").click()
    expect(page.locator(".stage")).to_have_class(re.compile("columns"))
    page.set_viewport_size({"width": 1900, "height": 900})
    expect(page.locator(".stage")).not_to_have_class(re.compile("columns"))


def test_every_stop_of_the_tab_key_has_a_name_and_can_be_seen(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0")
    stops = []
    for _ in range(20):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
                const node = document.activeElement;
                const shown = node.matches("input") ? node.nextElementSibling : node;
                const style = getComputedStyle(shown);
                const named = node.labels ? node.labels[0] : node;
                const name = node.getAttribute("aria-label") || named.textContent;
                return [node.tagName, name.trim(), style.outlineStyle, parseFloat(style.outlineWidth)];
            }"""
        )
        if stop[0] == "BODY":
            break
        stops.append(stop)
    # The theme, the explanation, the maps, the two texts, the matrix: six stops, however many tokens and heads.
    assert [tag for tag, *_ in stops] == ["INPUT", "SUMMARY", "DIV", "SPAN", "SPAN", "CANVAS"]
    for tag, name, outline, width in stops:
        assert name, tag
        assert outline != "none", tag
        assert width >= 1, tag


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


@pytest.mark.parametrize("width", [320, 400, 1280, 2560])
def test_nothing_overflows_sideways(open_page, make_recording, width):
    long = tuple(f"▁Wort{'lang' * (index % 4)}" for index in range(30))
    page = open_page(make_recording(long, long, heads=8), "#token=source.3", width=width)
    page.locator("summary").click()
    apart = ".matrix-frame, .unseen, details, svg"
    edges = "(nodes, apart) => nodes.map(node => node.closest(apart) ? 0 : node.getBoundingClientRect().right)"
    for name in ("encoder.0", "decoder.0", "cross.0"):
        page.get_by_role("gridcell", name=f"{name}, head 0").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert max(page.locator("main *, header *").evaluate_all(edges, apart)) <= width  # nor is anything cut off


def sentence(count: int) -> tuple[str, ...]:
    return tuple(f"▁word{index}" for index in range(count))


@pytest.mark.parametrize(("count", "width"), [(72, 1280), (72, 2560), (30, 400), (110, 1280)])
def test_the_matrix_of_a_long_sentence_fits(open_page, make_recording, count, width):
    long = sentence(count)
    page = open_page(make_recording(long, long, encoders=1, decoders=0), "#layer=encoder.0&head=0", width=width)
    frame = page.locator(".matrix-frame").evaluate("node => [node.scrollWidth, node.clientWidth]")
    assert frame[0] <= frame[1]
    assert page.locator(".matrix").get_attribute("class") == "matrix"
    assert float(page.locator("#matrix canvas").get_attribute("data-cell")) >= 6
    matrix, readout = (page.locator(place).bounding_box() for place in ("#matrix", "#readout"))
    apart = matrix["x"] + matrix["width"] <= readout["x"] or (
        matrix["y"] + matrix["height"] <= readout["y"] or readout["y"] + readout["height"] <= matrix["y"]
    )
    assert apart


def test_a_matrix_that_must_scroll_shows_that_it_goes_on(open_page, make_recording):
    long = sentence(90)
    page = open_page(make_recording(long, long, encoders=1, decoders=0), "#layer=encoder.0&head=0", width=400)
    matrix = page.locator(".matrix")
    fades = "node => ['::before', '::after'].map(side => getComputedStyle(node, side).opacity)"
    assert matrix.evaluate(fades) == ["0", "1"]
    page.locator("#matrix canvas").focus()
    page.keyboard.press("End")
    expect(matrix).to_have_class(re.compile("more-before"))
    tip = page.locator(".tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= 400
    page.locator(".matrix-frame").evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    expect(matrix).not_to_have_class(re.compile("more-after"))
    assert matrix.evaluate(fades) == ["1", "0"]


@pytest.mark.parametrize("width", [1280, 2560])
def test_the_numbers_of_a_long_sentence_stay_in_sight(open_page, make_recording, width):
    long = sentence(72)
    page = open_page(make_recording(long, long), "#layer=encoder.0&head=0", width=width)
    for index in (0, 40, 71):
        token(page, 0, index).hover()
        box = page.locator("#readout .lists").bounding_box()
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
    place = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    canvas.tap(position={"x": place["left"] + 1.5 * place["cell"], "y": place["top"] + 3.5 * place["cell"]})
    exact = layer_of(recording, "cross.0").weights[0, 0, 3, 1].item()
    assert float(page.locator(".tip .value").text_content()) == pytest.approx(exact, abs=2 * FOUR_DIGITS)


def test_hostile_tokens_are_text_and_run_nothing(open_page):
    many = len(HOSTILE)
    weights = regard.weights(torch.randn(1, 1, many, 4), torch.randn(1, 1, many, 4))
    layers = tuple(
        Layer(f"{kind}</script>", kind, weights, HOSTILE, HOSTILE) for kind in ("encoder", "cross", "decoder")
    )
    page = open_page(Recording(HOSTILE[0], HOSTILE[1], layers, {HOSTILE[0]: HOSTILE[1]}))
    stored = "JSON.parse(document.getElementById('recording').textContent).sequences.map(s => s.tokens)"
    for tokens in page.evaluate(stored):
        assert tuple(tokens) == HOSTILE
    for cell in page.get_by_role("gridcell").all():
        cell.click()
        token(page, 0, 0).focus()
        for _ in HOSTILE:
            page.keyboard.press("ArrowRight")
        page.locator("#matrix canvas").focus()
        for _ in HOSTILE:
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
        assert page.locator(".tip .pair").text_content()
    texts = page.locator(".tokens").last.locator(".token").all_text_contents()
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
