"""Views as SVG and PNG files."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch

import regard
from helpers.explore.page_actions import layer_of, settle
from helpers.explore.saved_files import SVG, bars, boxes_of, saved, texts
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

PIXELS = """async bytes => {
    const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)], {type: "image/png"}));
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const data = new Uint32Array(context.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer);
    const counts = new Map();
    for (const pixel of data) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const most = Math.max(...counts.values());
    return {width: bitmap.width, height: bitmap.height, colors: counts.size, most: most / data.length};
}"""


def scroll_to_buttons(page) -> None:
    """As a click will, so that boxes are measured where the file has them."""
    page.get_by_role("button", name="Save this view as SVG").locator("visible=true").scroll_into_view_if_needed()


@pytest.mark.parametrize("width", [400, 1280])
def test_the_text_as_svg_has_its_tokens_tints_and_arcs(open_page, recording, width):
    page = open_page(recording, "#layer=encoder.0&head=1&token=source.4", width=width)
    settle(page)
    name, data = saved(page, "text", "SVG")
    assert name == "regard-encoder.0-head-1-text.svg"
    svg = ElementTree.fromstring(data)
    assert texts(svg) == ["The", "animal", "was", "too", "ti", "red", ".", "</s>"]
    paths = [node for node in svg.iter(f"{SVG}path") if "stroke-width" in node.attrib]
    assert len(paths) == page.locator(".arc").count() > 4
    # Each token stands where it stands on the page, next to the others.
    boxes = page.locator(".token").evaluate_all("nodes => nodes.map(n => n.getBoundingClientRect().toJSON())")
    places = [(float(node.get("x")), float(node.get("y"))) for node in svg.iter(f"{SVG}text")]
    inner = page.locator(".token").first.evaluate("node => parseFloat(getComputedStyle(node).paddingLeft)")
    for box, (x, y) in zip(boxes, places, strict=True):
        assert x == pytest.approx(box["x"] + inner, abs=0.1)
        assert box["top"] < y < box["bottom"]
    # What is attended to most is tinted most, in blue.
    weights = layer_of(recording, "encoder.0").weights[0, 1, 4].clone()
    weights[4] = -1  # the token itself is marked
    tints = [
        max(
            [0.0]
            + [
                float(node.get("fill-opacity", 1))
                for node in svg.iter(f"{SVG}rect")
                if node.get("fill") == "#1d62b0"
                and (float(node.get("x")), float(node.get("y"))) == pytest.approx((box["x"], box["y"]), abs=0.1)
            ]
        )
        for box in boxes
    ]
    assert tints[int(weights.argmax())] == max(tints)
    assert max(tints) == pytest.approx(0.34 * weights.max().sqrt().item(), abs=0.34 * 0.026)  # steps of 1/20


def test_the_file_is_self_contained(open_page, recording):
    page = open_page(recording, "#layer=cross.1&head=0,2&token=source.1", color_scheme="dark")
    for view in ("text", "matrix"):
        name, data = saved(page, view, "SVG")
        assert name == f"regard-cross.1-head-0-2-mean-{view}.svg"
        text = data.decode()
        assert not re.search(r"var\(|oklab|color-mix|color\(|class=|style=|<script|<foreignObject| on\w+=", text)
        addresses = set(re.findall(r'href="([^"]{0,22})', text))
        assert addresses <= {"data:image/png;base64,"}
        ids = set(re.findall(r' id="([^"]+)"', text))
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= ids
        families = {node.get("font-family") for node in ElementTree.fromstring(data).iter(f"{SVG}text")}
        assert families <= {"serif", "sans-serif"}
        ground = ElementTree.fromstring(data).find(f"{SVG}rect").get("fill")
        assert ground == "#121418"  # of the dark page


def test_the_matrix_as_svg_is_a_map_with_labels_and_outlines(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=1&token=source.2&region=1.3.4.6")
    name, data = saved(page, "matrix", "SVG")
    assert name == "regard-cross.0-head-1-matrix.svg"
    svg = ElementTree.fromstring(data)
    columns = ["The", "animal", "was", "too", "ti", "·red", ".", "</s>"]
    rows = ["Das", "Tier", "war", "zu", "mü", "·de", ".", "</s>", "(", "n"]
    assert sorted(texts(svg)) == sorted(columns + rows)
    (chosen,) = [node for node in svg.iter(f"{SVG}text") if node.get("font-weight") == "600"]
    assert chosen.text == "was"
    (image,) = svg.iter(f"{SVG}image")
    assert float(image.get("width")) / 8 == pytest.approx(float(image.get("height")) / 10, abs=0.01)
    cell = float(image.get("width")) / 8
    (region,) = [node for node in svg.iter(f"{SVG}rect") if node.get("stroke-width") == "2"]
    assert float(region.get("width")) == pytest.approx(3 * cell, abs=2)
    assert float(region.get("x")) == pytest.approx(float(image.get("x")) + 4 * cell, abs=2)
    assert float(region.get("y")) == pytest.approx(float(image.get("y")) + 1 * cell, abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["text", "matrix"])
def test_a_png_is_the_view_at_twice_its_size(open_page, recording, view, scheme):
    page = open_page(recording, "#layer=encoder.1&head=0&token=source.1", color_scheme=scheme)
    name, data = saved(page, view, "PNG")
    assert name == f"regard-encoder.1-head-0-{view}.png"
    visible = page.evaluate(PIXELS, list(data))
    svg = ElementTree.fromstring(saved(page, view, "SVG")[1])
    assert (visible["width"], visible["height"]) == (2 * int(svg.get("width")), 2 * int(svg.get("height")))
    assert visible["colors"] > 100
    assert visible["most"] < 0.95  # no blank


def test_a_view_that_scrolls_is_saved_as_it_is_seen(open_page):
    tokens = tuple(f"▁word{index}" for index in range(600))
    weights = regard.weights(torch.randn(1, 1, 600, 4), torch.randn(1, 1, 600, 4))
    page = open_page(
        Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#token=source.0", width=800
    )
    settle(page)
    page.locator(".scroller").evaluate("node => node.scrollTop = 400")
    visible = page.locator(".token").evaluate_all(
        """nodes => {
            const frame = document.querySelector(".scroller").getBoundingClientRect();
            const inside = box => box.bottom > frame.top && box.top < frame.bottom;
            return nodes.filter(node => inside(node.getBoundingClientRect())).map(node => node.textContent);
        }"""
    )
    actual = texts(ElementTree.fromstring(saved(page, "text", "SVG")[1]))
    assert 20 < len(actual) < 400
    assert set(visible) >= set(actual)
    assert len(set(visible) - set(actual)) < 30  # those whose letters are not seen, but their margin


def test_characters_that_xml_forbids_are_replaced(open_page):
    tokens = ('=HYPERLINK("http://x")', "a\x00b", 'a "quoted", one', "two\nlines", "\ttab", "\ud800", "<&>")
    weights = regard.weights(torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 4))
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#token=source.0")
    for view in ("text", "matrix"):
        assert len(texts(ElementTree.fromstring(saved(page, view, "SVG")[1]))) >= 7
        assert saved(page, view, "PNG")[1].startswith(b"\x89PNG")


def test_every_button_has_a_name_and_works_by_keyboard(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    for view in ("Text", "Matrix"):
        group = page.get_by_role("group", name=f"Save: {view}")
        for kind in ("PNG", "SVG", "CSV"):
            button = group.get_by_role("button", name=f"as {kind}")
            with page.expect_download() as coming:
                button.press("Enter")
            assert coming.value.suggested_filename.endswith(f".{kind.lower()}")


def test_the_bars_of_a_graph_are_as_long_as_their_shares(open_page, recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=0")
    page.wait_for_selector(".shares li")
    scroll_to_buttons(page)
    shares = [float(value) for value in page.locator(".shares .value").all_text_contents()]
    tracks = boxes_of(page, ".shares .bar")
    drawn = bars(saved(page, "graph", "SVG")[1], "#1d62b0", tracks[0]["height"])
    assert len(drawn) == len(shares) > 4
    for (x, y, width), track, share in zip(drawn, tracks, shares, strict=True):
        assert (x, y) == pytest.approx((track["left"], track["top"]), abs=0.02)
        assert width == pytest.approx(share * track["width"], abs=0.1)


def test_spaces_next_to_bold_text_are_kept(open_page, recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=0")
    page.wait_for_selector(".shares li")
    svg = ElementTree.fromstring(saved(page, "graph", "SVG")[1])
    written = "".join(texts(svg))
    assert "Contributions of input tokens to ·red after 2 layers" in written
    preserve = "{http://www.w3.org/XML/1998/namespace}space"
    for node in svg.iter(f"{SVG}text"):
        assert node.get(preserve) == ("preserve" if node.text and node.text != node.text.strip() else None)


def test_the_weights_at_the_words_of_a_translation_are_saved(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1&token=written.2")
    page.wait_for_selector(".word[data-weight]")
    scroll_to_buttons(page)
    weights = page.locator(".word[data-weight]").evaluate_all("nodes => nodes.map(node => node.dataset.weight)")
    words = dict(zip(weights, boxes_of(page, ".word[data-weight]"), strict=True))
    svg = ElementTree.fromstring(saved(page, "translation", "SVG")[1])
    actual = {node.text: node for node in svg.iter(f"{SVG}text") if node.text in words}
    assert len(actual) == len(words) > 1
    for weight, box in words.items():
        middle = float(actual[weight].get("x")) + float(actual[weight].get("textLength")) / 2
        assert middle == pytest.approx((box["left"] + box["right"]) / 2, abs=0.6)
        assert box["top"] - 20 < float(actual[weight].get("y")) < box["top"]


def test_a_generation_step_is_saved_without_its_player(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=1&step=4")
    page.wait_for_selector(".generated-token[style]")
    actual = texts(ElementTree.fromstring(saved(page, "generation", "SVG")[1]))
    assert {"Das", "Tier", "war", "zu"} < set(actual)
    assert not {"Play", "‹", "›"} & set(actual)
