"""The page of a long text: stored numbers equal the tensor; missing ones are marked as missing, never shown as zero."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import regard
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import arcs, as_shown, layer_of, point_at, settle, spoken, token, values
from helpers.explore.page_cases import NOT_COMPUTED
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

TOKENS = 300
WORDS = tuple(f"▁word{index}" for index in range(TOKENS))
NEAR = "zoom=200,100,24"  # where row 200 and key 100 are in the middle, in cells that can be pointed at


@pytest.fixture(scope="module")
def long_recording() -> Recording:
    """Two layers of two heads, one masked: too long for every weight to be in the page."""
    generator = torch.Generator().manual_seed(1)

    def attention(mask) -> regard.WeightMatrix:
        query, key = torch.randn(2, 1, 2, TOKENS, 8, generator=generator)
        return regard.weights(query, key, mask=mask, score=NOT_COMPUTED)

    layers = (
        Layer("encoder.0", "encoder", attention(None), WORDS, WORDS),
        Layer("decoder.0", "decoder", attention(regard.Causal()), WORDS, WORDS),
    )
    return Recording("A long text", "a model", layers)


def row_of(recording: Recording, layer: str, head: int, query: int) -> torch.Tensor:
    return layer_of(recording, layer).weights[0, head, query]


def test_a_cell_that_the_file_names_has_the_tensors_value(open_page, long_recording):
    row = row_of(long_recording, "decoder.0", 0, 200)
    for rank, key in enumerate(row.topk(3).indices.tolist()):
        page = open_page(long_recording, f"#layer=decoder.0&head=0&zoom=200,{key},24")
        point_at(page, 200, key)
        assert values(page, ".tip .value") == [as_shown(row[key].item())]
        assert page.locator(".tip .rank").text_content() == f"rank {rank + 1} in its row"
        assert spoken(page).startswith(f"word200 attends to word{key} with 0.")


def test_cells_that_are_not_stored_are_unknown(open_page, long_recording):
    row = row_of(long_recording, "decoder.0", 1, 200)
    key = next(key for key in range(95, 106) if row[key] < row.topk(20).values[-1])
    page = open_page(long_recording, f"#layer=decoder.0&head=1&{NEAR}")
    point_at(page, 200, key)
    assert page.locator(".tip .value").count() == 0
    ranks = page.locator(".tip .rank").all_text_contents()
    assert ranks[0].startswith("not stored in this file: at most 0.")
    most = float(ranks[0].rpartition(" ")[2])
    assert row[key].item() <= most * 1.01 + 1e-4
    assert most == as_shown(row.topk(16).values[-1].item())
    assert "to the 2 keys around it, averaged over 2 rows" in ranks[1]
    square = layer_of(long_recording, "decoder.0").weights[0, 1, 200:202, key // 2 * 2 : key // 2 * 2 + 2]
    assert float(ranks[1].partition(" ")[0]) == as_shown(square.sum(1).mean().item())
    assert "at most" in spoken(page)
    assert "the exact weight is not stored in this file" in spoken(page)


def test_what_is_masked_is_known_to_be(open_page, long_recording):
    page = open_page(long_recording, "#layer=decoder.0&head=0&zoom=100,104,24")
    point_at(page, 100, 101)
    assert page.locator(".tip .rank").all_text_contents() == ["masked"]
    point_at(page, 103, 101)
    assert page.locator(".tip .rank").first.text_content() != "masked"
    assert "masked" in page.locator("#legend").inner_text()


def assert_rounded_sums(panel, *exact: float) -> None:
    """Sums from block means are marked as rounded, and have two digits."""
    texts = panel.locator(".value").all_text_contents()
    assert all(re.fullmatch(r"≈ 0\.0*[1-9]\d?|≈ \d\d?(\.\d)?", text) for text in texts), texts
    assert values(panel, ".value") == pytest.approx(exact, rel=0.05)


def left_text(panel) -> str:
    """The mass that a list reports as left out, as it is printed."""
    hint = panel.locator(".hint").last.text_content()
    return re.fullmatch(r"(?:about )?(.+) (?:on|from) others, not stored in this file", hint)[1]


def left_of(panel) -> float:
    return float(left_text(panel))


def test_lists_name_the_strongest_and_what_they_leave_out(open_page, long_recording):
    dense = layer_of(long_recording, "encoder.0").weights[0, 1]
    top = dense.topk(16)
    named = torch.zeros_like(dense).scatter(1, top.indices, top.values)
    token = int((named > 0).sum(0).argmax())  # the one that most rows list
    page = open_page(long_recording, f"#layer=encoder.0&head=1&token=source.{token}")
    out, into = page.locator(".panel").all()
    assert values(out, ".value") == as_shown(top.values[token, :8].tolist())
    rest, _, of = out.locator(".hint").first.text_content().partition(" ")
    assert (float(rest), of) == (pytest.approx(top.values[token, 8:].sum().item(), abs=0.0064), "on 8 more")
    assert left_of(out) == pytest.approx(1 - named[token].sum().item(), abs=0.005)
    assert values(into, ".value") == as_shown(named[:, token].topk(8).values.tolist())
    total = dense[:, token].sum().item()
    assert left_of(into) == pytest.approx(total - named[:, token].sum().item(), abs=0.01 * total)
    assert into.locator(".hint").last.text_content().startswith("about ")


def test_a_token_that_no_row_lists_may_still_receive_weight(open_page, long_recording):
    dense = layer_of(long_recording, "encoder.0").weights[0, 1]
    received = torch.zeros(TOKENS).scatter_add(0, dense.topk(16).indices.flatten(), dense.topk(16).values.flatten())
    token = int((received == 0).nonzero()[0])
    page = open_page(long_recording, f"#layer=encoder.0&head=1&token=source.{token}")
    into = page.locator(".panel").nth(1)
    settle(page)
    assert "Not stored in this file." in into.text_content()
    assert left_of(into) == as_shown(dense[:, token].sum().item())


@pytest.mark.parametrize("several", ["sum", "mean"])
def test_several_heads_are_shown_together(open_page, long_recording, several):
    page = open_page(long_recording, "#layer=encoder.0&head=0,1&token=source.250")
    page.get_by_label("Combine heads").select_option(several)
    assert page.locator(".head-name").text_content() == f"encoder.0, {several} of heads 0, 1"
    dense = layer_of(long_recording, "encoder.0").weights[0, :, 250]
    top = dense.topk(16)
    named = getattr(torch.zeros_like(dense).scatter(1, top.indices, top.values), several)(0)
    exact = getattr(dense, several)(0)
    out = page.locator(".panel").first
    listed = named.topk(8).indices
    for text, key in zip(out.locator(".value").all_text_contents(), listed.tolist(), strict=True):
        assert_printed(text, exact[key].item(), 1e-6)  # what one head does not store is in the bounds
    assert_printed(left_text(out), exact[named == 0].sum().item(), 1e-6)
    assert "0 to 2" in page.locator("#legend").inner_text() or several == "mean"
    page = open_page(long_recording, "#layer=encoder.0&head=0")
    assert not page.get_by_label("Combine heads").is_visible()


def test_a_region_is_summed_by_squares_with_a_note(open_page, long_recording):
    page = open_page(long_recording, "#layer=encoder.0&head=0&region=20.59.100.199")
    settle(page)
    panel = page.locator(".panel", has_text="Region")
    total = layer_of(long_recording, "encoder.0").weights[0, 0, 20:60, 100:200].sum().item()
    assert panel.locator(".value").all_text_contents() == [
        f"≈ {float(f'{exact:.2g}'):g}" for exact in (total, total / 40)
    ]
    assert "Sum, from block means" in panel.text_content()


def test_the_map_is_drawn_whole_and_its_squares_are_explained(open_page, long_recording):
    page = open_page(long_recording, "#layer=decoder.0&head=0", color_scheme="light")
    settle(page)
    assert "A block is 2 × 2 tokens" in page.locator("#legend").inner_text()
    clear = page.locator("#matrix canvas").evaluate(
        """node => {
            const {left, top, cell} = node.dataset;
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(node, 0, 0);
            const share = (query, key) => {  // of pixels that are clear, around a cell
                const at = [+left + key * cell - 10, +top + query * cell - 10, 20, 20];
                const data = copy.getImageData(...at).data;
                return data.filter((value, index) => index % 4 === 3 && value === 0).length / 400;
            };
            return [share(250, 100), share(100, 250)];
        }"""
    )
    assert clear[0] == 0  # weights
    assert clear[1] > 0.5  # hatched: masked


def test_finer_levels_are_drawn_summed_and_listed(open_page):
    count, generator = 600, torch.Generator().manual_seed(2)
    weights = regard.weights(*torch.randn(2, 1, 2, count, 8, generator=generator), score=NOT_COMPUTED)
    words = tuple(f"▁word{index}" for index in range(count))
    text = Recording("A longer text", "a model", (Layer("encoder.0", "encoder", weights, words, words),))
    near = "zoom=300,300,1.9&scale=log&palette=greys"
    page = open_page(text, f"#layer=encoder.0&head=0&{near}&region=300.301.302.303", color_scheme="light")
    assert "3 × 3 tokens, or down to 2 × 2" in page.locator("#legend").inner_text()
    square = weights[0, 0, 300:302, 302:304].sum().item()
    settle(page)
    assert_rounded_sums(page.locator(".panel", has_text="Region"), square, square / 2)
    row = weights[0, 0, 300]
    key = next(key for key in range(290, 310) if row[key] < row.topk(20).values[-1])
    point_at(page, 300, key)
    around = weights[0, 0, 300:302, key // 2 * 2 : key // 2 * 2 + 2].sum(1).mean().item()
    share, _, of = page.locator(".tip .rank").nth(1).text_content().partition(" ")
    assert float(share) == as_shown(around)
    assert of == "to the 2 keys around it, averaged over 2 rows"
    places = [(query, key) for query in range(240, 280, 2) for key in range(240, 280, 2)]
    light = page.locator("#matrix canvas").evaluate(
        """(node, places) => {
            const {left, top, cell, row, column} = node.dataset;
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(node, 0, 0);
            const middle = (from, place, first) => Math.round(+from + (place + 1 - first) * cell);
            return places.map(([query, key]) => {
                const at = [middle(left, key, column), middle(top, query, row)];
                return copy.getImageData(...at, 1, 1).data[0];
            });
        }""",
        places,
    )
    exact = [weights[0, 0, query : query + 2, key : key + 2].sum(1).mean().log().item() for query, key in places]
    assert np.corrcoef(light, exact)[0, 1] < -0.99  # the larger the weight, the darker


def test_a_token_of_a_long_text_is_found_and_held(open_page, long_recording):
    page = open_page(long_recording, "#layer=encoder.0&head=0")
    search = page.get_by_label("Find")
    search.fill("WORD250 word251")
    settle(page)
    assert page.locator("#text .token.found").all_text_contents() == ["word250", "word251"]
    search.press("Enter")
    settle(page)
    assert page.locator("#text .token[aria-selected=true]").all_text_contents() == ["word250", "word251"]
    scroller, box = page.locator("#text .scroller").bounding_box(), token(page, 0, 250).bounding_box()
    assert scroller["y"] <= box["y"] <= scroller["y"] + scroller["height"]
    assert {query for query, _ in arcs(page, "out")} <= {250, 251}
    search.fill("nowhere")
    assert "0 found" in page.locator("#text").inner_text()
