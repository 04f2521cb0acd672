"""Rollout as a layered graph, in a real Chromium, against the rollout of the tensors."""

from __future__ import annotations

import csv
import re
import time

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.browser_pages import pages_of
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import layer_of, point_at
from regard.analysis import rollout
from regard.explore.pack import pack
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

GRAPH = "#views=graph&layer=encoder.0&head=0"
FLOAT32 = 2e-6
MIN_FLOW = 0.0005
"""Nodes with less are not drawn."""


def nodes(page, depth: int) -> dict[int, float]:
    """The flow through each node that is drawn at a depth."""
    page.wait_for_selector(".node")
    actual = page.locator(f".node[data-depth='{depth}']").evaluate_all(
        "all => all.map(node => [+node.dataset.node, +node.dataset.flow])"
    )
    return {int(node): flow for node, flow in actual}


def labels(page, depth: int) -> dict[int, str]:
    """The flow of each node as it is written."""
    actual = page.locator(f".node[data-depth='{depth}']").evaluate_all(
        "all => all.map(node => [+node.dataset.node, node.ariaLabel])"
    )
    return {node: label.rsplit(": ", 1)[1] for node, label in actual}


def until(page, condition: str) -> None:
    """Wait until something is true on a page, which forbids its own waiting to be evaluated."""
    end = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def summary(page) -> str:
    page.wait_for_selector(".node")
    return page.locator(".graph-summary").inner_text()


def status(page) -> str:
    return page.locator(".graph-status").inner_text()


def recording_of(weights) -> Recording:
    """Layers of one text."""
    text = (*(f"▁word{index}" for index in range(weights[0].shape[2] - 1)), "</s>")
    layers = (Layer(f"encoder.{index}", "encoder", each, text, text) for index, each in enumerate(weights))
    return Recording("A text", "a model", tuple(layers))


def random_weights(tokens: int, layers: int, score=None, mask=None, seed: int = 1) -> list:
    """Layers of two heads, in which the last token attracts attention, as separators often do."""
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for _ in range(layers):
        query, key = (torch.randn(1, 2, tokens, 16, generator=generator) for _ in range(2))
        query[..., 0] = key[..., -1, 0] = 3
        matrices.append(regard.weights(2 * query, key, score=score, mask=mask))
    return matrices


CAUSAL = regard.Causal()


def long_recording(tokens: int = 301, layers: int = 2, mask=CAUSAL) -> Recording:
    """A text of which a page stores no single weights but the largest."""
    return recording_of(random_weights(tokens, layers, mask=mask))


@pytest.mark.parametrize("root", [0, 5, 7])
def test_flows_equal_the_rollout(open_page, make_recording, root):
    recording = make_recording(encoders=3)
    page = open_page(recording, f"{GRAPH}&token=source.{root}")
    weights = [layer.weights for layer in recording.layers.encoder]
    assert nodes(page, 3) == {root: 1}
    for depth in range(3):
        exact = rollout(weights[depth:], queries=[root])[0, 0]
        drawn = nodes(page, depth)
        assert set(drawn) == set((exact >= MIN_FLOW).nonzero().flatten().tolist())
        for node, flow in drawn.items():
            assert flow == pytest.approx(exact[node].item(), abs=FLOAT32)
        for node, text in labels(page, depth).items():
            assert_printed(text, exact[node].item(), FLOAT32)
            assert len(text) == (5 if exact[node] >= 0.1 else 6)


def some_rows_without_keys(tokens: int) -> torch.Tensor:
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    mask[::7] = False
    return mask


def equal_rows(row: torch.Tensor, layers: int) -> list:
    """Layers in which all rows of the only head are the same."""
    shares = row.expand(len(row), -1)
    zeros = torch.zeros(1, 1, len(row), 4)
    return [regard.weights(zeros, zeros, score=regard.ScaledDotProduct() + regard.Bias(shares.log()))] * layers


def rounded_down(tokens: int) -> torch.Tensor:
    """Every weight but the last is rounded down by almost as much as there is."""
    row = torch.full((tokens,), 1.49 / 3000)
    row[-1] = 1 - row[:-1].sum()
    return row


def rounded_up(tokens: int) -> torch.Tensor:
    """Twelve weights are rounded up by almost as much as there is; the others down a little, so the sum is close."""
    row = torch.full((tokens,), 150.51 / 3000)
    row[12:] = (1 - row[:12].sum()) / (tokens - 12)
    return row


SOFT_CAP = regard.SoftCap(regard.ScaledDotProduct(), 20.0)  # so that the page has weights, and cannot compute them
STORED = {
    "all": lambda: random_weights(48, 6, SOFT_CAP),
    "causal": lambda: random_weights(120, 6, SOFT_CAP, regard.Causal()),
    "rows without keys": lambda: random_weights(40, 4, SOFT_CAP, some_rows_without_keys(40)),
    "rounded down": lambda: equal_rows(rounded_down(240), 3),
    "rounded up": lambda: equal_rows(rounded_up(249), 3),
    "sinks": lambda: random_weights(40, 4, regard.Sinks(SOFT_CAP, torch.tensor([2.0, 4.0]))),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_weights_give_true_digits(open_page, name):
    weights = STORED[name]()
    tokens, layers = weights[0].shape[2], len(weights)
    root = tokens // 2
    page = open_page(recording_of(weights), f"{GRAPH}&token=source.{root}")
    decimals = []
    for depth in range(layers):
        exact = rollout(weights[depth:], queries=[root])[0, 0].double()
        drawn = labels(page, depth) if nodes(page, depth) else {}
        for node, text in drawn.items():
            assert_printed(text, exact[node].item())
            decimals.append(len(text.partition(".")[2]))
        text = page.locator(f".not-drawn[data-depth='{depth}']").text_content()
        rest = 1 - exact[list(drawn)].sum().item()
        if text == "all drawn":
            assert rest < 2 * MIN_FLOW
        else:
            assert_printed(text.removesuffix(" not drawn"), rest)
    assert max(decimals) <= 3  # more are not known of any
    assert sorted(decimals)[len(decimals) // 4] >= (1 if name == "rounded down" else 2)
    listed = page.locator(".shares .value").all_text_contents()
    exact = rollout(weights, queries=[root])[0, 0].sort(descending=True).values.tolist()
    assert 0 < len(listed) <= 12
    for text, flow in zip(listed, exact, strict=False):
        assert_printed(text, flow)
    others = page.locator(".shares .hint").text_content().split(" from ")[0]
    assert_printed(others, sum(exact[len(listed) :]))


def test_an_edge_is_what_flows_from_one_token_to_the_next(open_page, make_recording):
    recording = make_recording(encoders=3)
    page = open_page(recording, f"{GRAPH}&token=source.4")
    page.wait_for_selector(".node")
    actual = page.locator(".edges .edge").evaluate_all(
        "all => all.map(({dataset: d}) => [+d.layer, +d.from, +d.to, +d.flow])"
    )
    assert {edge[0] for edge in actual} == {0, 1, 2}
    weights = [layer.weights for layer in recording.layers.encoder]
    flow = [rollout(weights[depth:], queries=[4])[0, 0] for depth in range(3)] + [torch.eye(8)[4]]
    matrices = [0.5 * torch.eye(8) + 0.5 * each.dense()[0].mean(0) for each in weights]
    for layer, start, end, passing in actual:
        exact = flow[int(layer) + 1][int(start)] * matrices[int(layer)][int(start), int(end)]
        assert passing == pytest.approx(exact.item(), abs=FLOAT32)
    widths = page.locator(".edges .edge").evaluate_all(
        "all => all.map(edge => parseFloat(getComputedStyle(edge).strokeWidth))"
    )
    assert widths == pytest.approx([max(0.6, 20 * edge[3]) for edge in actual], rel=1e-3)


def test_each_layer_shows_the_mass_that_is_not_drawn(open_page, make_recording):
    source = tuple(f"▁w{index}" for index in range(30))
    recording = make_recording(source=source, encoders=2)
    page = open_page(recording, f"{GRAPH}&token=source.3")
    for depth in (0, 1):
        exact = rollout([layer.weights for layer in recording.layers.encoder[depth:]], queries=[3])[0, 0]
        drawn = list(nodes(page, depth))
        assert sorted(drawn) == sorted(exact.topk(8).indices.tolist())
        text = page.locator(f".not-drawn[data-depth='{depth}']").text_content()
        assert_printed(text.removesuffix(" not drawn"), 1 - exact[drawn].sum().item(), FLOAT32)
    assert page.locator(".not-drawn[data-depth='2']").text_content() == "all drawn"


def test_contributions_of_the_input_are_listed(open_page, make_recording):
    source = tuple(f"▁w{index}" for index in range(30))
    recording = make_recording(source=source)
    page = open_page(recording, f"{GRAPH}&token=source.5")
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[5])[0, 0]
    largest = exact.sort(descending=True)
    page.wait_for_selector(".shares li")
    assert page.locator(".shares h4").text_content() == "Contributions of input tokens to w5 after 2 layers"
    assert page.locator(".shares li .name").all_text_contents() == [f"w{index}" for index in largest.indices[:12]]
    for text, flow in zip(page.locator(".shares .value").all_text_contents(), largest.values[:12], strict=True):
        assert_printed(text, flow.item(), FLOAT32)
    rest, others = page.locator(".shares .hint").text_content().split(" from ")
    assert_printed(rest, largest.values[12:].sum().item(), FLOAT32)
    assert others == "18 others"


def test_several_selected_tokens_are_averaged(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4,source.5")
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[4, 5])[0].mean(0)
    assert nodes(page, 2) == {4: 0.5, 5: 0.5}
    for node, flow in nodes(page, 0).items():
        assert flow == pytest.approx(exact[node].item(), abs=FLOAT32)
    assert summary(page) == "ti ·red after 2 layers, averaged: how much each input token contributes."


def test_a_row_that_sums_to_less_than_one_is_divided_by_its_sum(open_page):
    mask = torch.ones(4, 4, dtype=torch.bool).tril(-1)  # the first row has no keys
    weights = [regard.weights(*torch.randn(2, 1, 2, 4, 4).unbind(), mask=mask) for _ in range(2)]
    page = open_page(recording_of(weights), f"{GRAPH}&token=source.2")
    exact = rollout(weights, queries=[2])[0, 0]
    drawn = nodes(page, 0)
    assert set(drawn) == {0, 1, 2}
    assert sum(drawn.values()) == pytest.approx(1)
    for node, flow in drawn.items():
        assert flow == pytest.approx(exact[node].item(), abs=FLOAT32)


def test_it_starts_from_a_word(open_page, recording, make_recording):
    page = open_page(recording, "#views=graph&layer=encoder.0&head=0")
    assert nodes(page, 2) == {5: 1}  # "red", not the full stop or the end mark
    assert summary(page) == "·red after 2 layers: how much each input token contributes."
    page = open_page(make_recording(source=("<s>", ".", "</s>")), "#views=graph")
    assert nodes(page, 2) == {2: 1}  # there is no better one
    causal = Recording("t", "m", recording_of(random_weights(9, 2, mask=regard.Causal())).layers)
    page = open_page(causal, "#views=graph")
    assert set(nodes(page, 2)) == {pack(causal)[0]["opening"]["query"]}


def test_hidden_keys_are_included_with_a_note(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4&hide=first,special&rescale=1")
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[4])[0, 0]
    for node, flow in nodes(page, 0).items():
        assert flow == pytest.approx(exact[node].item(), abs=FLOAT32)
    sentence = "Rollout uses all weights, including those of hidden keys."
    assert summary(page).endswith(f" contributes. {sentence}")
    page.get_by_label("the first token").click()
    page.get_by_label("special tokens").click()
    until(page, f"!document.querySelector('.graph-summary').textContent.includes('{sentence}')")


def test_pointing_at_a_node_shows_the_paths_through_it(open_page, recording):
    page = open_page(recording, "#views=text,graph&layer=encoder.0&head=0&token=source.4")
    total = nodes(page, 1)
    assert page.locator(".paths .edge").count() == 0
    assert status(page) == "Point at a node to see the paths through it."
    page.locator(".node[data-depth='1'][data-node='2'] .target").hover()
    page.wait_for_selector(".paths .edge", state="attached")
    exact = rollout([recording.layers.encoder[1].weights], queries=[4])[0, 0, 2].item()
    digits = 3 if exact >= 0.1 else 4
    assert status(page) == f"was after layer 0: {exact:.{digits}f} of the flow"
    ends = page.locator(".paths .edge").evaluate_all("all => all.map(({dataset: d}) => [+d.layer, +d.from, +d.to])")
    assert {(start, end) for layer, start, end in ends if layer == 1} == {(4, 2)}
    assert {start for layer, start, _ in ends if layer == 0} == {2}
    flows = page.locator(".paths .edge").evaluate_all("all => all.map(({dataset: d}) => [+d.layer, +d.flow])")
    for layer in (0, 1):  # the flow into the node, and out of it
        assert sum(flow for at, flow in flows if at == layer) == pytest.approx(total[2], rel=0.1)
    expect(page.locator(".tokens .token.focused")).to_have_text(["was"])
    page.mouse.move(1, 1)
    until(page, "!document.querySelector('.paths .edge')")


def test_the_graph_stays_where_it_is_when_a_node_is_pointed_at(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4", width=400)
    page.wait_for_selector(".node")
    top_of_graph = "document.querySelector('svg.layers').getBoundingClientRect().top + scrollY"
    before = page.evaluate(top_of_graph)
    page.locator(".node[data-depth='1'] .target").first.hover()
    page.wait_for_selector(".layers.pointed")
    assert page.evaluate(top_of_graph) == before


def test_pointing_elsewhere_shows_the_paths_here(open_page, recording):
    page = open_page(recording, "#views=text,matrix,graph&layer=encoder.1&head=0&token=source.4")
    page.wait_for_selector(".node")
    page.locator(".tokens .token").nth(1).hover()
    page.wait_for_selector(".layers.pointed")
    assert status(page).startswith("animal in the input: ")
    point_at(page, 4, 0)  # of the last layer
    until(page, "document.querySelector('.graph-status').textContent === 'ti after layer 1: 1.000 of the flow'")
    point_at(page, 3, 0)
    until(page, "document.querySelector('.graph-status').textContent === 'too after layer 1: no path leads through it'")


def test_a_click_starts_the_graph_from_a_token_and_selects_it(open_page, recording):
    page = open_page(recording, GRAPH)
    assert nodes(page, 2) == {5: 1}
    page.locator(".node[data-depth='0'][data-node='3'] .target").click()
    page.wait_for_selector(".node[data-depth='2'][data-node='3'][aria-pressed='true']")
    until(page, "location.hash.includes('token=source.3')")


def test_selecting_in_the_matrix_starts_the_graph_there(open_page, recording):
    page = open_page(recording, "#views=matrix,graph&layer=encoder.0&head=0")
    page.wait_for_selector(".node")
    point_at(page, 2, 5)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(".node[data-depth='2'][data-node='2']")


def test_the_graph_is_used_by_keyboard(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4")
    page.wait_for_selector(".node")
    assert page.locator(".node[tabindex='0']").count() == 1
    page.locator(".node[tabindex='0']").focus()
    focused = "({depth: document.activeElement.dataset.depth, node: document.activeElement.dataset.node})"
    assert page.evaluate(focused) == {"depth": "2", "node": "4"}
    steps = [("ArrowDown", 1, 4), ("ArrowRight", 1, 5), ("Home", 1, 0), ("ArrowUp", 2, 4), ("ArrowDown", 1, 4)]
    for key, depth, node in [*steps, ("ArrowLeft", 1, 3)]:
        page.keyboard.press(key)
        assert page.evaluate(focused) == {"depth": str(depth), "node": str(node)}
    until(page, "document.querySelector('.graph-status').textContent.startsWith('too after layer 0: ')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".node[data-depth='2'][data-node='3'][aria-pressed='true']")
    assert page.evaluate(focused) == {"depth": "2", "node": "3"}
    assert page.locator(".node:focus").get_attribute("aria-label") == "too, after layer 1: 1.000"
    page.keyboard.press("Escape")
    page.wait_for_selector(".node[data-depth='2'][data-node='5']")


def test_cross_attention_has_the_graph_of_its_encoder_and_without_self_attention_there_is_none(open_page, recording):
    page = open_page(recording, "#views=graph&layer=cross.1&head=0")
    assert set(nodes(page, 2)) == {5}
    assert layer_of(recording, "encoder.0").query_tokens[5] == "red"
    page = open_page(Recording("t", "m", recording.layers.cross), "#views=text,graph")
    assert page.get_by_role("button", name="Graph", exact=True).count() == 0


def rolled_out_blocks(recording: Recording, size: int, root: int) -> torch.Tensor:
    """The rollout over blocks of tokens, from the dense weights."""
    tokens = recording.layers[0].weights.shape[2]
    blocks = torch.arange(tokens) // size
    count = int(blocks[-1]) + 1
    flow = torch.eye(count, dtype=torch.float64)[root]
    for layer in reversed(recording.layers):
        weights = layer.weights.dense()[0].mean(0).double()
        sums = torch.zeros(tokens, count, dtype=torch.float64).index_add_(1, blocks, weights)
        means = torch.zeros(count, count, dtype=torch.float64).index_add_(0, blocks, sums) / blocks.bincount()[:, None]
        matrix = 0.5 * torch.eye(count) + 0.5 * means
        flow = flow @ (matrix / matrix.sum(1, keepdim=True))
    return flow


@pytest.mark.parametrize("mask", [None, regard.Causal(), some_rows_without_keys(301)])
def test_a_long_text_is_rolled_out_over_blocks(open_page, mask):
    recording = long_recording(layers=3, mask=mask)
    layers = pack(recording)[0]["layers"]
    assert layers[0]["storage"] != "dense"
    size = layers[0]["levels"][0]
    page = open_page(recording, "#views=graph&token=source.200")
    exact = rolled_out_blocks(recording, size, 200 // size)
    drawn = nodes(page, 0)
    assert len(drawn) == 8
    assert set(drawn) <= set(exact.topk(10).indices.tolist())
    for node, text in labels(page, 0).items():
        assert_printed(text, exact[node].item())
        assert len(text) >= 4  # two decimals
    assert f"each node is a block of {size} tokens" in summary(page)
    assert summary(page).startswith("200: word200 … after 3 layers")


def test_a_served_page_has_exact_numbers(take_page, address, long_recording):
    decoder = long_recording.replace(layers=long_recording.layers.by_kind("decoder"))
    with pages_of(take_page, address) as open_it:
        page = open_it("#views=graph&layer=long&token=source.450")
        drawn = nodes(page, 0)
        size = int(re.search(r"a block of (\d+) tokens", summary(page))[1])
        exact = rolled_out_blocks(decoder, size, 450 // size)
        for node, text in labels(page, 0).items():
            assert drawn[node] == pytest.approx(exact[node].item(), abs=FLOAT32)
            assert_printed(text, exact[node].item(), FLOAT32)


def test_patches_are_called_patches(open_page):
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(2) for column in range(3)))
    weights = random_weights(7, 2)
    layers = [Layer(f"layers.{index}", "encoder", each, tokens, tokens) for index, each in enumerate(weights)]
    page = open_page(Recording("cat.png", "m", tuple(layers), {"image": "cat.png"}), "#views=graph&token=source.3")
    assert summary(page) == "patch 0,2 after 2 layers: how much each input patch contributes."
    assert page.locator(".shares h4").text_content() == "Contributions of input patches to patch 0,2 after 2 layers"
    names = {"[CLS]", *(f"patch {name}" for name in tokens[1:])}
    assert set(page.locator(".shares .name").all_text_contents()) <= names


def test_the_loading_layer_is_shown_and_each_is_computed_once(open_page, make_recording):
    page = open_page(make_recording(encoders=4), "#views=text&layer=encoder.0&head=0")
    page.evaluate(
        """() => {
            window.texts = [];
            const look = () => texts.push(document.querySelector(".graph-summary").textContent);
            new MutationObserver(look).observe(document.querySelector("#graph"), {childList: true, subtree: true});
        }"""
    )
    page.get_by_role("button", name="Graph", exact=True).click()
    page.wait_for_selector(".node")
    loading = [text for text in page.evaluate("texts") if text.startswith("Loading")]
    assert list(dict.fromkeys(loading)) == [f"Loading layer {number} of 4 …" for number in (1, 2, 3, 4)]
    page.evaluate("texts.length = 0")
    page.locator(".node[data-depth='0'][data-node='1'] .target").click()
    page.wait_for_selector(".node[data-depth='4'][data-node='1']")
    assert [text for text in page.evaluate("texts") if text.startswith("Loading")] == []


def test_on_a_narrow_page_layers_are_columns(open_page, recording):
    page = open_page(recording, f"{GRAPH}&token=source.4", width=400)
    top, below = (page.locator(f".node[data-depth='{depth}'][data-node='4']").bounding_box() for depth in (2, 1))
    assert below["x"] > top["x"]
    assert below["y"] + below["height"] / 2 == pytest.approx(top["y"] + top["height"] / 2, abs=1)
    page.locator(".node[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.depth") == "1"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_table_has_the_edges_and_the_contributions(open_page, recording, tmp_path):
    page = open_page(recording, f"{GRAPH}&token=source.4")
    drawn = len(page.locator(".edges .edge").all()) if nodes(page, 0) else 0
    with page.expect_download() as download:
        page.locator("section[aria-label=Graph] .exports").get_by_role("button", name="CSV").click()
    download.value.save_as(tmp_path / "graph.csv")
    with open(tmp_path / "graph.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    exact = rollout([layer.weights for layer in recording.layers.encoder], queries=[4])[0, 0]
    contributions = [row for row in rows if row["layer"] == "all"]
    assert len(rows) == drawn + len(contributions)
    assert [int(row["key index"]) for row in contributions] == list(range(8))
    for row in contributions:
        assert (row["query index"], row["query token"]) == ("4", "▁ti")
        assert float(row["share"]) == pytest.approx(exact[int(row["key index"])].item(), abs=FLOAT32)


def test_the_table_has_true_digits(open_page, tmp_path):
    weights = random_weights(48, 3, SOFT_CAP)
    page = open_page(recording_of(weights), f"{GRAPH}&token=source.20")
    page.wait_for_selector(".node")
    with page.expect_download() as download:
        page.locator("section[aria-label=Graph] .exports").get_by_role("button", name="CSV").click()
    download.value.save_as(tmp_path / "graph.csv")
    with open(tmp_path / "graph.csv", encoding="utf-8-sig", newline="") as file:
        *_, name = next(rows := csv.reader(file))
        error = float(re.fullmatch(r"share \(± (0\.\d+)\)", name)[1])
        table = list(rows)
    assert error < 0.01
    flow = {depth: rollout(weights[depth:], queries=[20])[0, 0] for depth in range(3)} | {3: torch.eye(48)[20]}
    matrices = [0.5 * torch.eye(48) + 0.5 * each.dense()[0].mean(0) for each in weights]
    for layer, query, _, key, _, share in table:
        at = None if layer == "all" else int(layer.removeprefix("encoder."))
        exact = flow[0][int(key)] if at is None else flow[at + 1][int(query)] * matrices[at][int(query), int(key)]
        assert abs(float(share) - exact.item()) <= error
        assert len(share.partition(".")[2]) <= 5
    assert sum(row[0] == "all" for row in table) == 48
