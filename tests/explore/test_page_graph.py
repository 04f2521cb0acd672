"""Rollout as a layered graph, in a real Chromium, against the rollout of the tensors."""

from __future__ import annotations

import re
import time

import pytest
import torch

import regard
from explore.opened import layer_of, number_of, point_at
from regard.analysis import rollout
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore.packing import pack

pytestmark = pytest.mark.browser

GRAPH = "#views=graph&layer=encoder.0&head=0"
STORED = 0.002
"""How far a rollout may be off that multiplies weights which are within 1 %."""


def nodes(page, depth: int) -> dict[int, float]:
    """The mass of each node that is drawn at a depth."""
    page.wait_for_selector(".node")
    found = page.locator(f".node[data-depth='{depth}']").evaluate_all(
        "all => all.map(node => [+node.dataset.unit, +node.dataset.mass])"
    )
    return {int(unit): mass for unit, mass in found}


def until(page, condition: str) -> None:
    """Wait until something is true on a page, which forbids its own waiting to be evaluated."""
    end = time.monotonic() + 5
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def told(page) -> str:
    return page.locator(".graph-told").inner_text()


def long_recording(tokens: int = 301, layers: int = 2) -> Recording:
    generator = torch.Generator().manual_seed(1)
    text = tuple(f"▁word{index}" for index in range(tokens))
    made = []
    for index in range(layers):
        query, key = (2 * torch.randn(1, 2, tokens, 8, generator=generator) for _ in range(2))
        weights = regard.weights(query, key, mask=regard.Causal())
        made.append(Layer(f"layers.{index}", "decoder", weights, text, text))
    return Recording("A long text", "a model", tuple(made))


@pytest.mark.parametrize("start", [0, 5, None])
def test_the_masses_are_those_of_the_rollout(open_page, make_recording, start):
    recording = make_recording(encoders=3)
    page = open_page(recording, GRAPH + ("" if start is None else f"&token=source.{start}"))
    weights = [layer.weights for layer in recording.layers.encoder]
    row = len(recording.layers.encoder[0].query_tokens) - 1 if start is None else start
    assert nodes(page, 3) == {row: 1}
    for depth in range(3):
        exact = rollout(weights[depth:], queries=[row])[0, 0]
        drawn = nodes(page, depth)
        assert len(drawn) == 8
        for unit, mass in drawn.items():
            assert mass == pytest.approx(exact[unit].item(), abs=STORED)


def test_an_edge_is_what_one_token_gives_to_the_next(open_page, make_recording):
    recording = make_recording(encoders=3)
    page = open_page(recording, f"{GRAPH}&token=source.4")
    page.wait_for_selector(".node")
    found = page.locator(".edges .edge").evaluate_all(
        "all => all.map(({dataset: d}) => [+d.layer, +d.from, +d.to, +d.mass])"
    )
    assert {edge[0] for edge in found} == {0, 1, 2}
    weights = [layer.weights for layer in recording.layers.encoder]
    mass = [rollout(weights[depth:], queries=[4])[0, 0] for depth in range(3)] + [torch.eye(8)[4]]
    mixed = [0.5 * torch.eye(8) + 0.5 * each.dense()[0].mean(0) for each in weights]
    for layer, start, end, passing in found:
        exact = mass[int(layer) + 1][int(start)] * mixed[int(layer)][int(start), int(end)]
        assert passing == pytest.approx(exact.item(), abs=STORED)
    widths = page.locator(".edges .edge").evaluate_all(
        "all => all.map(edge => parseFloat(getComputedStyle(edge).strokeWidth))"
    )
    heaviest = max(range(len(found)), key=lambda index: found[index][3])
    assert widths[heaviest] == max(widths)


def test_each_layer_says_what_is_not_drawn(open_page, make_recording):
    source = tuple(f"▁w{index}" for index in range(30))
    recording = make_recording(source=source, encoders=2)
    page = open_page(recording, f"{GRAPH}&token=source.3")
    for depth in (0, 1):
        exact = rollout([layer.weights for layer in recording.layers.encoder[depth:]], queries=[3])[0, 0]
        drawn = sorted(nodes(page, depth))
        assert set(drawn) <= set(exact.topk(10).indices.tolist())
        left = 1 - exact[drawn].sum().item()
        text = page.locator(f".rest[data-depth='{depth}']").text_content()
        assert text.endswith(" not drawn")
        assert float(text.split()[0]) == pytest.approx(left, abs=2 * STORED)
    assert page.locator(".rest[data-depth='2']").text_content() == "all drawn"


def test_the_shares_of_the_input_are_listed(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.5")
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[5])[0, 0]
    page.wait_for_selector(".shares li")
    values = [number_of(text) for text in page.locator(".shares .value").all_text_contents()]
    assert values == pytest.approx(exact.sort(descending=True).values.tolist(), abs=STORED)
    assert page.locator(".shares li .name").first.text_content() == "·red"


def test_several_held_tokens_begin_together(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4,source.5")
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[4, 5])[0].mean(0)
    assert nodes(page, 2) == {4: 0.5, 5: 0.5}
    for unit, mass in nodes(page, 0).items():
        assert mass == pytest.approx(exact[unit].item(), abs=STORED)


def test_a_row_that_sums_to_less_than_one_is_divided_by_its_sum(open_page):
    mask = torch.ones(4, 4, dtype=torch.bool).tril(-1)  # the first row sees nothing
    words = ("▁a", "▁b", "▁c", "▁d")
    weights = [regard.weights(*torch.randn(2, 1, 2, 4, 4).unbind(), mask=mask) for _ in range(2)]
    layers = [Layer(f"encoder.{index}", "encoder", each, words, words) for index, each in enumerate(weights)]
    page = open_page(Recording("t", "m", tuple(layers)), f"{GRAPH}&token=source.2")
    exact = rollout([layer.weights for layer in layers], queries=[2])[0, 0]
    drawn = nodes(page, 0)
    assert set(drawn) == {0, 1, 2}
    assert sum(drawn.values()) == pytest.approx(1)
    for unit, mass in drawn.items():
        assert mass == pytest.approx(exact[unit].item(), abs=STORED)


def test_pointing_at_a_node_shows_the_paths_through_it(open_page, recording):
    page = open_page(recording, "#views=text,graph&layer=encoder.0&head=0&token=source.4")
    whole = nodes(page, 1)
    assert page.locator(".paths .edge").count() == 0
    page.locator(".node[data-depth='1'][data-unit='2'] .target").hover()
    page.wait_for_selector(".paths .edge", state="attached")
    assert told(page).startswith("was after layer 0: ")
    assert float(re.search(r"0\.\d+", told(page))[0]) == pytest.approx(whole[2], abs=5e-4)
    ends = page.locator(".paths .edge").evaluate_all("all => all.map(({dataset: d}) => [+d.layer, +d.from, +d.to])")
    assert {(start, end) for layer, start, end in ends if layer == 1} == {(4, 2)}
    assert {start for layer, start, _ in ends if layer == 0} == {2}
    masses = page.locator(".paths .edge").evaluate_all("all => all.map(({dataset: d}) => [+d.layer, +d.mass])")
    for layer in (0, 1):  # what comes to the node, and what goes on from it
        assert sum(mass for at, mass in masses if at == layer) == pytest.approx(whole[2], rel=0.1)
    assert page.locator(".tokens .token.at").all_text_contents() == ["was"]
    page.mouse.move(1, 1)
    until(page, "!document.querySelector('.paths .edge')")


def test_pointing_elsewhere_shows_the_paths_here(open_page, recording):
    page = open_page(recording, "#views=text,matrix,graph&layer=encoder.1&head=0&token=source.4")
    page.wait_for_selector(".node")
    page.locator(".tokens .token").nth(1).hover()
    page.wait_for_selector(".layers.pointed")
    assert told(page).startswith("animal in the input: ")
    point_at(page, 4, 0)  # of the last layer
    until(page, "document.querySelector('.graph-told').textContent.startsWith('ti after layer 1: 1.000')")


def test_a_click_begins_the_graph_at_a_token_and_holds_it(open_page, recording):
    page = open_page(recording, GRAPH)
    assert nodes(page, 2) == {7: 1}
    page.locator(".node[data-depth='0'][data-unit='3'] .target").click()
    page.wait_for_selector(".node[data-depth='2'][data-unit='3'][aria-pressed='true']")
    until(page, "location.hash.includes('token=source.3')")


def test_choosing_in_the_matrix_begins_the_graph_there(open_page, recording):
    page = open_page(recording, "#views=matrix,graph&layer=encoder.0&head=0")
    page.wait_for_selector(".node")
    point_at(page, 2, 5)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(".node[data-depth='2'][data-unit='2']")


def test_the_graph_is_used_by_keyboard(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4")
    page.wait_for_selector(".node")
    assert page.locator(".node[tabindex='0']").count() == 1
    page.locator("#graph").locator("xpath=..").locator(".exports button").last.focus()
    page.keyboard.press("Tab")
    focused = "({depth: document.activeElement.dataset.depth, unit: document.activeElement.dataset.unit})"
    assert page.evaluate(focused) == {"depth": "2", "unit": "4"}
    steps = [("ArrowDown", 1, 4), ("ArrowRight", 1, 5), ("Home", 1, 0), ("ArrowUp", 2, 4), ("ArrowDown", 1, 4)]
    for key, depth, unit in [*steps, ("ArrowLeft", 1, 3)]:
        page.keyboard.press(key)
        assert page.evaluate(focused) == {"depth": str(depth), "unit": str(unit)}
    until(page, "document.querySelector('.graph-told').textContent.startsWith('too after layer 0: ')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".node[data-depth='2'][data-unit='3'][aria-pressed='true']")
    assert page.evaluate(focused) == {"depth": "2", "unit": "3"}
    assert page.locator(".node:focus").get_attribute("aria-label") == "too, after layer 1: 1.000"
    page.keyboard.press("Escape")
    page.wait_for_selector(".node[data-depth='2'][data-unit='7']")


def test_cross_attention_has_the_graph_of_its_encoder_and_no_self_attention_none(open_page, recording):
    page = open_page(recording, "#views=graph&layer=cross.1&head=0")
    assert set(nodes(page, 2)) == {len(layer_of(recording, "encoder.0").query_tokens) - 1}
    page = open_page(Recording("t", "m", recording.layers.cross), "#views=text,graph")
    assert page.get_by_role("button", name="Graph", exact=True).count() == 0


def test_a_long_text_is_rolled_out_over_blocks(open_page):
    recording = long_recording()
    layers = pack(recording)[0]["layers"]
    assert layers[0]["form"] == "sketch"
    size, units = layers[0]["size"], layers[0]["map"][0]
    page = open_page(recording, "#views=graph&token=source.200")
    blocks = torch.arange(301) // size
    matrices = []
    for layer in recording.layers:
        weights = layer.weights.dense()[0].mean(0)
        sums = torch.zeros(301, units).index_add_(1, blocks, weights)
        means = torch.zeros(units, units).index_add_(0, blocks, sums) / blocks.bincount()[:, None]
        matrices.append(0.5 * torch.eye(units) + 0.5 * means)
    exact = matrices[1][200 // size] @ matrices[0]
    drawn = nodes(page, 0)
    assert set(drawn) <= set(exact.topk(10).indices.tolist())
    for unit, mass in drawn.items():
        assert mass == pytest.approx(exact[unit].item(), abs=STORED)
    assert f"each node is a block of {size} tokens" in told(page)
    assert told(page).startswith("200: word200 … after 2 layers")


def test_it_tells_which_layer_is_read(open_page, make_recording):
    page = open_page(make_recording(encoders=4), "#views=text&layer=encoder.0&head=0")
    page.evaluate(
        """() => {
            window.texts = [];
            const told = document.querySelector(".graph-told");
            new MutationObserver(() => texts.push(told.textContent)).observe(told, {childList: true});
        }"""
    )
    page.get_by_role("button", name="Graph", exact=True).click()
    page.wait_for_selector(".node")
    reading = [text for text in page.evaluate("texts") if text.startswith("Reading")]
    assert reading == [f"Reading layer {number} of 4 …" for number in (1, 2, 3, 4)]


def test_on_a_narrow_page_layers_are_columns(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4", width=400)
    top, below = (page.locator(f".node[data-depth='{depth}'][data-unit='4']").bounding_box() for depth in (2, 1))
    assert below["x"] > top["x"]
    assert below["y"] + below["height"] / 2 == pytest.approx(top["y"] + top["height"] / 2, abs=1)
    page.locator(".node[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.depth") == "1"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_twelve_layers_of_a_whole_text_are_there_soon_and_are_read_once(open_page):
    text = tuple(f"▁word{index}" for index in range(256))
    layers = []
    for index in range(12):
        weights = regard.weights(2 * torch.randn(1, 12, 256, 8), torch.randn(1, 12, 256, 8))
        layers.append(Layer(f"encoder.{index}", "encoder", weights, text, text))
    page = open_page(Recording("t", "m", tuple(layers)), "#views=graph")
    page.wait_for_selector(".node", timeout=20000)
    assert page.evaluate("performance.now()") < 8000  # a slow computer's; about 2 s
    page.evaluate("window.started = performance.now()")
    page.locator(".node[data-depth='6'] .target").first.click(force=True)
    page.wait_for_selector(".node[data-depth='12']:not([data-unit='255'])")
    assert page.evaluate("performance.now() - window.started") < 1000
