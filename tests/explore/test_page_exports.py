"""What the page saves: a view as SVG and PNG, and what is chosen as CSV."""

from __future__ import annotations

import csv
import io
import re
from xml.etree import ElementTree

import pytest
import torch

import regard
from explore.opened import layer_of, settle
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore.codes import ERROR

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"
HEADER = ["query index", "query token", "key index", "key token", "weight"]
PIXELS = """async bytes => {
    const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)], {type: "image/png"}));
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const data = new Uint32Array(context.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer);
    const counts = new Map();
    for (const pixel of data) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const most = Math.max(...counts.values());
    return {width: bitmap.width, height: bitmap.height, colours: counts.size, most: most / data.length};
}"""


def saved(page, view: str, kind: str) -> tuple[str, bytes]:
    """Press a button of a view: the name of the file that comes, and what is in it."""
    with page.expect_download() as coming:
        page.locator(f"section.view:has(#{view})").get_by_role("button", name=f"as {kind}").click()
    return coming.value.suggested_filename, coming.value.path().read_bytes()


def rows_of(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def near(weight: float):
    return pytest.approx(weight, rel=1.02 * ERROR[0], abs=ERROR[1])


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(node.itertext()) for node in svg.iter(f"{SVG}text")]


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
    # Each token stands where it stands on the page, beside the others.
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
    assert tints.index(max(tints)) == int(weights.argmax())
    assert max(tints) == pytest.approx(0.34 * weights.max().sqrt().item(), abs=0.003)


def test_the_file_stands_alone(open_page, recording):
    page = open_page(recording, "#layer=cross.1&head=0,2&token=source.1", color_scheme="dark")
    for view in ("text", "matrix"):
        name, data = saved(page, view, "SVG")
        assert name == f"regard-cross.1-head-0-2-sum-{view}.svg"
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
    rows = ["Das", "Tier", "war", "zu", "mü", "·de", ".", "</s>", "(", "·n"]
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
    seen = page.evaluate(PIXELS, list(data))
    svg = ElementTree.fromstring(saved(page, view, "SVG")[1])
    assert (seen["width"], seen["height"]) == (2 * int(svg.get("width")), 2 * int(svg.get("height")))
    assert seen["colours"] > 100
    assert seen["most"] < 0.95  # no blank


def test_the_weights_of_a_held_token_as_csv_are_the_tensors(open_page, recording):
    page = open_page(recording, "#layer=decoder.1&head=2&token=written.5")
    name, data = saved(page, "text", "CSV")
    assert name == "regard-decoder.1-head-2-tokens.csv"
    assert data.startswith(b"\xef\xbb\xbf")
    layer = layer_of(recording, "decoder.1")
    header, *rows = rows_of(data)
    assert header == HEADER
    assert len(rows) == 6  # what the mask allows
    for query, query_token, key, key_token, weight in rows:
        assert (int(query), query_token, key_token) == (5, layer.query_tokens[5], layer.key_tokens[int(key)])
        assert float(weight) == near(layer.weights[0, 2, 5, int(key)].item())


@pytest.mark.parametrize("several", ["sum", "mean"])
def test_rows_and_columns_that_are_held_are_in_it_once(open_page, recording, several):
    page = open_page(recording, f"#layer=encoder.0&head=0,1&token=source.1,source.3&several={several}")
    name, data = saved(page, "matrix", "CSV")
    assert name == f"regard-encoder.0-head-0-1-{several}-tokens.csv"
    rows = rows_of(data)[1:]
    exact = getattr(layer_of(recording, "encoder.0").weights.dense()[0, :2], several)(0)
    cells = {(int(query), int(key)): float(weight) for query, _, key, _, weight in rows}
    assert len(rows) == len(cells) == 2 * 8 + 2 * 8 - 4
    assert all(query in (1, 3) or key in (1, 3) for query, key in cells)
    for place, weight in cells.items():
        assert weight == near(exact[place].item())


def test_of_a_sketch_it_is_said_that_not_all_is_in_it(open_page, make_recording):
    words = tuple(f"▁word{index}" for index in range(300))
    page = open_page(make_recording(words, words, heads=1), "#layer=encoder.0&head=0&region=20.39.50.149")
    rows = rows_of(saved(page, "matrix", "CSV")[1])[1:]
    said = page.locator("section.view:has(#matrix) .exports [role=status]").text_content()
    assert said == f"{len(rows)} weights are saved: those that this file names. The others are not zero."
    assert 0 < len(rows) < 20 * 100


def test_a_region_and_a_whole_head_as_csv(open_page, recording):
    page = open_page(recording, "#layer=decoder.0&head=1&region=2.4.1.3&token=written.0")
    name, data = saved(page, "matrix", "CSV")
    assert name == "regard-decoder.0-head-1-region.csv"
    places = [(int(query), int(key)) for query, _, key, _, _ in rows_of(data)[1:]]
    assert places == [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)]
    page = open_page(recording, "#layer=decoder.0&head=1")
    name, data = saved(page, "matrix", "CSV")
    assert name == "regard-decoder.0-head-1-weights.csv"
    assert len(rows_of(data)) == 1 + 10 * 11 / 2


def test_of_a_sketch_all_links_that_are_known_are_in_the_csv(open_page):
    torch.manual_seed(0)
    tokens = tuple(f"▁t{index}" for index in range(700))
    weights = regard.weights(2 * torch.randn(1, 1, 700, 8), torch.randn(1, 1, 700, 8))
    page = open_page(
        Recording("t", "m", (Layer("a layer/0", "encoder", weights, tokens, tokens),)), "#token=source.300"
    )
    name, data = saved(page, "text", "CSV")
    assert name == "regard-a-layer-0-head-0-tokens.csv"
    rows = [(int(query), int(key), float(weight)) for query, _, key, _, weight in rows_of(data)[1:]]
    exact = weights[0, 0]
    of_row = [key for query, key, _ in rows if query == 300]
    assert set(of_row) == set(exact[300].topk(16).indices.tolist())
    named = {query for query in range(700) if 300 in exact[query].topk(16).indices}
    assert {query for query, key, _ in rows if key == 300} - {300} == named - {300}
    for query, key, weight in rows:
        assert weight == near(exact[query, key].item())


def test_a_spreadsheet_runs_nothing_of_it(open_page):
    tokens = ('=HYPERLINK("http://x")', "+1", "-1", "@a", 'a "quoted", one', "two\nlines", "\ttab", "\ud800", "plain")
    weights = regard.weights(torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4))
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#token=source.0")
    data = saved(page, "text", "CSV")[1]
    cells = {int(key): token for query, _, key, token, _ in rows_of(data)[1:] if query == "0"}
    assert cells == {
        0: '\'=HYPERLINK("http://x")',
        1: "'+1",
        2: "'-1",
        3: "'@a",
        4: tokens[4],
        5: tokens[5],
        6: "'\ttab",
        7: "\ufffd",
        8: "plain",
    }
    for kind in ("SVG", "PNG"):  # and what is no XML breaks no file
        for view in ("text", "matrix"):
            assert saved(page, view, kind)[1]
    assert len(texts(ElementTree.fromstring(saved(page, "text", "SVG")[1]))) == 9


def test_a_view_that_scrolls_is_saved_as_it_is_seen(open_page):
    tokens = tuple(f"▁word{index}" for index in range(600))
    weights = regard.weights(torch.randn(1, 1, 600, 4), torch.randn(1, 1, 600, 4))
    page = open_page(
        Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#token=source.0", width=800
    )
    settle(page)
    page.locator(".scroller").evaluate("node => node.scrollTop = 400")
    seen = page.locator(".token").evaluate_all(
        """nodes => {
            const frame = document.querySelector(".scroller").getBoundingClientRect();
            const inside = box => box.bottom > frame.top && box.top < frame.bottom;
            return nodes.filter(node => inside(node.getBoundingClientRect())).map(node => node.textContent);
        }"""
    )
    found = texts(ElementTree.fromstring(saved(page, "text", "SVG")[1]))
    assert 20 < len(found) < 400
    assert set(seen) >= set(found)
    assert len(set(seen) - set(found)) < 30  # those whose letters are not seen, but their margin


def test_every_button_has_a_name_and_works_by_keyboard(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    for view in ("Text", "Matrix"):
        group = page.get_by_role("group", name=f"Save: {view}")
        for kind in ("PNG", "SVG", "CSV"):
            button = group.get_by_role("button", name=f"as {kind}")
            with page.expect_download() as coming:
                button.press("Enter")
            assert coming.value.suggested_filename.endswith(f".{kind.lower()}")


def bars(data: bytes, fill: str, height: float) -> list[tuple[float, float, float]]:
    """Left, top and width of the rectangles of a colour and a height."""
    found = [node for node in ElementTree.fromstring(data).iter(f"{SVG}rect") if node.get("fill") == fill]
    return [
        (float(node.get("x")), float(node.get("y")), float(node.get("width")))
        for node in found
        if float(node.get("height")) == pytest.approx(height, abs=0.1)
    ]


def boxes_of(page, places: str) -> list[dict[str, float]]:
    return page.locator(places).evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().toJSON())")


def test_the_bars_of_a_graph_are_as_long_as_their_shares(open_page, recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=0")
    page.wait_for_selector(".shares li")
    shares = [float(value) for value in page.locator(".shares .value").all_text_contents()]
    tracks = boxes_of(page, ".shares .bar")
    drawn = bars(saved(page, "graph", "SVG")[1], "#1d62b0", tracks[0]["height"])
    assert len(drawn) == len(shares) > 4
    for (x, y, width), track, share in zip(drawn, tracks, shares, strict=True):
        assert (x, y) == pytest.approx((track["left"], track["top"]), abs=0.02)
        assert width == pytest.approx(share * track["width"], abs=0.1)


def test_spaces_beside_what_is_set_apart_are_kept(open_page, recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=0")
    page.wait_for_selector(".shares li")
    svg = ElementTree.fromstring(saved(page, "graph", "SVG")[1])
    written = "".join(texts(svg))
    assert "Shares of the input in </s> after 2 layers" in written
    assert "</s> after 2 layers: where its parts come from." in written
    preserve = "{http://www.w3.org/XML/1998/namespace}space"
    for node in svg.iter(f"{SVG}text"):
        assert node.get(preserve) == ("preserve" if node.text and node.text != node.text.strip() else None)


def test_the_weights_beside_the_words_of_a_translation_are_saved(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1&token=written.2")
    page.wait_for_selector(".word[data-weight]")
    weights = page.locator(".word[data-weight]").evaluate_all("nodes => nodes.map(node => node.dataset.weight)")
    words = dict(zip(weights, boxes_of(page, ".word[data-weight]"), strict=True))
    svg = ElementTree.fromstring(saved(page, "translation", "SVG")[1])
    found = {node.text: node for node in svg.iter(f"{SVG}text") if node.text in words}
    assert len(found) == len(words) > 1
    for weight, box in words.items():
        middle = float(found[weight].get("x")) + float(found[weight].get("textLength")) / 2
        assert middle == pytest.approx((box["left"] + box["right"]) / 2, abs=0.6)
        assert box["top"] - 20 < float(found[weight].get("y")) < box["top"]


def test_a_step_is_saved_without_the_buttons_that_lead_to_others(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=1&step=4")
    page.wait_for_selector(".piece.now")
    assert "Play" not in texts(ElementTree.fromstring(saved(page, "generation", "SVG")[1]))


def test_the_csv_of_a_graph_has_its_edges_and_the_shares_of_the_input(open_page, recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=2&token=source.4")
    page.wait_for_selector(".shares li")
    name, data = saved(page, "graph", "CSV")
    assert name == "regard-encoder.0-head-2-graph.csv"
    header, *rows = rows_of(data)
    assert header == ["layer", *HEADER[:4], "share"]
    seen = page.locator(".edges .edge").evaluate_all(
        "all => all.map(({dataset: d}) => [d.layer, d.from, d.to, +d.mass])"
    )
    edges = {(layer, query, key): float(share) for layer, query, _, key, _, share in rows if layer != "all"}
    assert edges == {
        (f"encoder.{layer}", query, key): pytest.approx(mass, rel=1e-5) for layer, query, key, mass in seen
    }
    tokens = layer_of(recording, "encoder.0").query_tokens
    exact = regard.analysis.rollout([layer.weights for layer in recording.layers.encoder], queries=[4])[0, 0]
    shares = {int(key): float(share) for layer, _, _, key, _, share in rows if layer == "all"}
    assert shares == {key: pytest.approx(share, abs=0.002) for key, share in enumerate(exact.tolist())}
    assert all((row[2], row[4]) == (tokens[int(row[1])], tokens[int(row[3])]) for row in rows)
    page = open_page(recording, "#views=graph&layer=encoder.0&token=source.1,source.4")
    page.wait_for_selector(".shares li")
    of_both = [row for row in rows_of(saved(page, "graph", "CSV")[1]) if row[0] == "all"]
    assert {(row[1], row[2]) for row in of_both} == {("", "▁animal ▁ti")}


@pytest.mark.parametrize("held", ["", "written.4", "source.4"])
def test_the_csv_of_a_translation_has_words_as_they_are_aligned(open_page, recording, held):
    page = open_page(recording, f"#views=translation&layer=cross.1&head=1&aligned=layer&token={held}")
    page.wait_for_selector(".aligned")
    name, data = saved(page, "translation", "CSV")
    assert name == "regard-cross.1-head-1-translation.csv"
    header, *rows = rows_of(data)
    assert header == ["target word index", "target word", "source word index", "source word", "weight"]
    source = ["The", "animal", "was", "too", "tired", ".", "</s>"]
    target = ["Das", "Tier", "war", "zu", "müde", ".", "</s>", "(", "n"]
    assert all((row[1], row[3]) == (target[int(row[0])], source[int(row[2])]) for row in rows)
    found = {(int(row[0]), int(row[2])): float(row[4]) for row in rows}
    assert list(found) == sorted(found)
    weights = layer_of(recording, "cross.1").weights.dense()[0].mean(0)  # of tokens
    pieces = torch.cat([weights[:, :4], weights[:, 4:6].sum(1, keepdim=True), weights[:, 6:]], 1)
    exact = torch.cat([pieces[:4], pieces[4:6].mean(0, keepdim=True), pieces[6:]])
    rows_meant = [4] if held.startswith("written") else range(9)
    columns_meant = [4] if held.startswith("source") else range(7)
    for row in rows_meant:
        for column in columns_meant:
            assert found.pop((row, column), 0) == pytest.approx(exact[row, column].item(), rel=0.0103, abs=2e-4)
    assert found == {}


def test_the_csv_of_a_generation_is_its_step(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=1&step=4")
    page.wait_for_selector(".piece.now")
    page.wait_for_timeout(100)
    name, data = saved(page, "generation", "CSV")
    assert name == "regard-decoder.1-head-1-generation.csv"
    header, *rows = rows_of(data)
    assert header == HEADER
    layer = layer_of(recording, "decoder.1")
    assert [row[:4] for row in rows] == [["4", "▁mü", str(key), layer.key_tokens[key]] for key in range(5)]
    for row in rows:
        assert float(row[4]) == near(layer.weights[0, 1, 4, int(row[2])].item())
