"""What the page shows, in a real Chromium, opened as a file, every network refused (see `open_page`)."""

from __future__ import annotations

import re

import pytest
import torch

import regard
from helpers.explore.page_actions import arcs, as_shown, choose, layer_of, point_at, settle, spoken, token, values
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("name", "head", "cells"),
    [
        ("encoder.0", 0, [(0, 0), (7, 7), (3, 5)]),
        ("decoder.1", 2, [(0, 0), (9, 1), (4, 4)]),
        ("cross.1", 1, [(0, 7), (9, 0), (5, 4)]),
    ],
)
def test_the_value_on_hover_is_the_tensors(open_page, recording, name, head, cells):
    page = open_page(recording, f"#layer={name}&head={head}")
    layer = layer_of(recording, name)
    exact = layer.weights[0, head]
    for query, key in cells:
        point_at(page, query, key)
        assert values(page, ".tip .value") == [as_shown(exact[query, key].item())]
        rank = 1 + int((exact[query] > exact[query, key]).sum())
        allowed = query + 1 if layer.kind == "decoder" else len(layer.key_tokens)
        assert page.locator(".tip .rank").text_content() == f"rank {rank} of {allowed} in its row"


def test_the_tip_covers_neither_the_row_nor_the_column_of_its_cell(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0")
    for query, key in ((0, 0), (9, 7), (0, 7), (9, 0), (5, 4)):
        point_at(page, query, key)
        tip = page.locator(".tip").bounding_box()
        corner = page.locator("#matrix canvas").bounding_box()
        data = page.locator("#matrix canvas").evaluate("node => ({...node.dataset})")
        cell = float(data["cell"])
        x, y = corner["x"] + float(data["left"]) + key * cell, corner["y"] + float(data["top"]) + query * cell
        assert tip["y"] >= y + cell or tip["y"] + tip["height"] <= y
        assert tip["x"] >= x + cell or tip["x"] + tip["width"] <= x


def pixel(page, query: int, key: int) -> list[int]:
    """The colours within a cell of the large matrix, all its pixels' components."""
    settle(page)
    return page.locator("#matrix canvas").evaluate(
        """(node, [query, key]) => {
            const [left, top, cell] = ["left", "top", "cell"].map(name => Number(node.dataset[name]));
            const inner = [left + key * cell + 3, top + query * cell + 3, cell - 7, cell - 7];
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d");
            copy.drawImage(node, 0, 0);
            return [...copy.getImageData(...inner).data];
        }""",
        [query, key],
    )


def test_masked_cells_differ_from_zero_weights_and_have_a_note(open_page, recording):
    page = open_page(recording, "#layer=decoder.1&head=2")
    assert set(pixel(page, 3, 2)[3::4]) == {255}
    assert 0 in pixel(page, 2, 3)[3::4]  # the page shows between the lines of the hatching,
    assert any(pixel(page, 2, 3)[3::4])  # which is there
    point_at(page, 2, 9)
    assert page.locator(".tip .rank").text_content() == "masked"
    assert page.locator(".tip .value").count() == 0
    assert spoken(page) == "( is masked for war."
    assert "0.0000" not in page.locator(".panel").first.text_content()
    assert page.locator(".panel").first.locator("li").count() == 3
    assert "masked" in page.locator("#legend").inner_text()
    page.locator("#matrix canvas").focus()
    for key in ("Home", "End", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    settle(page)
    assert page.locator(".tip .rank").text_content() == "masked"


def test_a_row_that_may_see_nothing_has_a_page_too(open_page):
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    weights = regard.weights(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), mask=mask)
    words = ("▁a", "▁b", "c")
    page = open_page(Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),)), "#token=source.0")
    assert page.locator(".panel").first.text_content() == "a attends toNothing: the mask excludes every token."
    assert spoken(page).startswith("a attends to nothing. a is attended to by b 1.000, ·c 0.50")


def test_masks_are_not_mentioned_without_a_mask(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")))
    assert "masked" not in page.locator("#legend").inner_text()


def test_a_token_has_one_name(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.5")
    assert page.locator(".panel h3 b").all_text_contents() == ["·red", "·red"]
    point_at(page, 5, 5)
    assert page.locator(".tip b").all_text_contents() == ["·red", "·red"]


def test_leaving_the_matrix_lets_go_of_the_value(open_page, recording):
    page = open_page(recording)
    point_at(page, 1, 1)
    assert page.locator(".tip").is_visible()
    page.mouse.move(1, 1)
    settle(page)
    assert page.locator(".tip").is_hidden()


def test_every_head_is_in_the_overview_with_its_own_map(open_page, recording):
    page = open_page(recording, color_scheme="light")
    maps = page.locator(".thumbnail").evaluate_all(
        """nodes => nodes.map(node => {
            const canvas = node.firstChild;
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return [node.getAttribute("aria-label"), canvas.width, canvas.height, [...data]];
        })"""
    )
    assert len(maps) == sum(layer.weights.shape[1] for layer in recording.layers)
    for label, width, height, data in maps:
        name, head = re.fullmatch(r"(.+), head (\d+)", label).groups()
        weights = layer_of(recording, name).weights[0, int(head)]
        assert (height, width) == tuple(weights.shape)
        clear = [data[index] == 0 for index in range(3, len(data), 4)]
        assert clear == torch.isneginf(layer_of(recording, name).weights.scores[0, int(head)]).flatten().tolist()
        light = [1000 if clear[index // 4] else sum(data[index : index + 3]) for index in range(0, len(data), 4)]
        darkest = min(range(len(light)), key=light.__getitem__)
        assert weights.flatten()[darkest] > 0.97 * weights.max()


def test_headings_are_the_numbers_of_recorded_heads_and_layers(open_page, recording):
    layer = layer_of(recording, "encoder.1")
    part = recording.replace(layers=[layer.replace(head_indices=tuple(range(3, 3 + layer.weights.shape[1])))])
    page = open_page(part)
    headings = page.locator("#overview [role=columnheader]").all_text_contents()
    assert headings == ["", *(str(head) for head in range(3, 3 + layer.weights.shape[1]))]
    assert page.locator("#overview [role=rowheader]").all_text_contents() == ["1"]


def test_choosing_a_small_map_shows_it_large(open_page, recording):
    page = open_page(recording)
    choose(page, "encoder.1, head 2")
    assert page.locator("#head-heading").text_content() == "Encoderencoder.1, head 2"
    point_at(page, 2, 3)
    assert values(page, ".tip .value") == [as_shown(layer_of(recording, "encoder.1").weights[0, 2, 2, 3].item())]


def test_hovering_a_token_draws_arcs_both_ways_within_one_text(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=1")
    weights = layer_of(recording, "encoder.0").weights[0, 1]
    assert arcs(page, "out") == arcs(page, "in") == set()
    assert arcs(page, "rest")
    token(page, 0, 4).hover()
    assert arcs(page, "out") == {(4, key) for key in range(8) if weights[4, key] >= 0.01}
    assert arcs(page, "in") == {(query, 4) for query in range(8) if weights[query, 4] >= 0.01}
    assert arcs(page, "rest") == set()
    page.mouse.move(1, 1)
    assert arcs(page, "out") == set()


def test_cross_attention_is_drawn_from_either_text(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=2")
    weights = layer_of(recording, "cross.0").weights[0, 2]
    token(page, 1, 9).hover()
    assert arcs(page, "out") == {(9, key) for key in range(8) if weights[9, key] >= 0.01}
    assert arcs(page, "in") == set()
    token(page, 0, 3).hover()
    assert arcs(page, "in") == {(query, 3) for query in range(10) if weights[query, 3] >= 0.01}
    assert arcs(page, "out") == set()


def test_decoder_columns_are_the_tokens_read_and_rows_the_tokens_written(open_page, recording):
    page = open_page(recording, "#layer=decoder.0&head=0")
    texts = page.locator("#text .tokens").evaluate_all(
        "nodes => nodes.map(n => [...n.children].map(t => t.textContent))"
    )
    assert texts[0][:3] == ["<s>", "Das", "Tier"]
    assert texts[1][:3] == ["Das", "Tier", "war"]
    assert "decoding step, labeled with the token that it wrote" in page.locator("#head-note").text_content()
    token(page, 1, 0).hover()
    assert arcs(page, "out") == {(0, 0)}  # the first step had read nothing but the start mark


@pytest.mark.parametrize("heads", [[1], [0, 2]])
def test_tint_follows_the_mean_weight_of_heads(open_page, recording, heads):
    page = open_page(recording, f"#layer=encoder.0&head={','.join(map(str, heads))}")
    row = layer_of(recording, "encoder.0").weights[0, heads, 4].mean(0)
    token(page, 0, 4).hover()
    settle(page)
    tints = page.locator("#text .token").evaluate_all(
        "nodes => nodes.map(n => +n.style.getPropertyValue('--attended'))"
    )
    assert tints == pytest.approx(row.sqrt().tolist(), rel=0.006, abs=0.026)  # steps of 1/20
    assert all(round(20 * tint, 6).is_integer() for tint in tints), tints
    page = open_page(recording, "#layer=encoder.0&head=0,1,2&reduce=sum&token=source.4")  # sums beyond 1 are no thicker
    widths = page.locator(".arc").evaluate_all("paths => paths.map(path => +path.getAttribute('stroke-width'))")
    assert 0 < max(widths) <= 5.3


def test_the_numbers_are_listed_strongest_first(open_page, recording):
    page = open_page(recording, "#layer=cross.1&head=0&token=written.2")
    row = layer_of(recording, "cross.1").weights[0, 0, 2]
    assert values(page, ".panel .value") == as_shown(row.sort(descending=True).values.tolist())
    assert page.locator(".panel h3").text_content() == "war attends to"


def test_only_repeated_tokens_are_listed_with_their_positions(open_page, make_recording):
    page = open_page(make_recording(decoders=0, source=("▁it", "▁is", "▁it", "</s>")), "#token=source.1")
    names = page.locator(".panel").first.locator(".name > span")
    listed = names.evaluate_all("nodes => nodes.map(node => [node.textContent, node.dataset.position ?? ''])")
    assert sorted(listed) == [["</s>", ""], ["is", ""], ["it", "0"], ["it", "2"]]
    shown = names.evaluate_all("nodes => nodes.map(node => getComputedStyle(node, '::after').content)")
    assert sorted(shown) == ['"0"', '"2"', "none", "none"]


@pytest.mark.parametrize(("length", "width"), [(8, 1280), (30, 400)])
def test_arcs_end_at_their_tokens(open_page, make_recording, length, width):
    words = tuple(f"▁word{index}" for index in range(length))
    page = open_page(make_recording(words, words), "#layer=cross.0&head=0&token=written.2", width=width)
    settle(page)
    ends = page.locator(".arc").evaluate_all(
        """paths => paths.map(path => {
            const frame = path.ownerSVGElement.getBoundingClientRect();
            const lines = document.querySelectorAll("#text .tokens");
            const box = (line, index) => lines[line].children[index].getBoundingClientRect();
            const far = (point, box) => Math.max(
                box.left - point.x - frame.left, point.x + frame.left - box.right,
                box.top - point.y - frame.top, point.y + frame.top - box.bottom);
            return [far(path.getPointAtLength(0), box(1, path.dataset.query)),
                    far(path.getPointAtLength(1e6), box(0, path.dataset.key))];
        })"""
    )
    assert ends
    assert max(distance for pair in ends for distance in pair) < 1


@pytest.mark.parametrize("length", [8, 40])
def test_no_arc_leaves_its_stage(open_page, make_recording, length):
    words = tuple(f"▁word{index}" for index in range(length))
    recording = make_recording(words, words, encoders=1, decoders=0)
    page = open_page(recording, "#views=text&layer=encoder.0&head=0")
    for index in (0, length - 1):
        token(page, 0, index).hover()
        settle(page)
        over = page.locator(".arc").evaluate_all(
            """paths => paths.map(path => {
                const [stage, arc] = [path.ownerSVGElement.getBoundingClientRect(), path.getBoundingClientRect()];
                return Math.max(stage.top - arc.top, arc.bottom - stage.bottom);
            })"""
        )
        assert over
        assert max(over) <= 0


def test_a_token_stays_held_in_every_layer_that_has_it(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.1")
    choose(page, "cross.1, head 0")
    assert arcs(page, "in")
    choose(page, "decoder.1, head 0")
    assert arcs(page, "in") == arcs(page, "out") == set()
    choose(page, "encoder.1, head 0")
    assert arcs(page, "in")


def test_the_page_describes_its_content_and_precision(open_page, recording):
    page = open_page(recording)
    page.locator(".masthead summary").click()
    about = page.locator(".masthead .about").inner_text()
    assert "each labeled with the token that the step wrote" in about
    assert "Stored weights are within 0.00017 of the exact ones" in about
    assert "share of a row, 0 to 1" in page.locator("#legend").inner_text()


def test_an_encoder_alone_has_a_page_too(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")))
    assert page.locator(".head-name").text_content().startswith("encoder.0, head ")
    assert page.locator(".thumbnail").count() == 6


def test_a_translation_without_a_word_has_a_page_too(open_page, make_recording):
    page = open_page(make_recording(written=("</s>",)), "#layer=cross.0&head=0")
    assert page.locator(".head-name").text_content() == "cross.0, head 0"
    page.locator(".matrix").scroll_into_view_if_needed()
    assert page.locator("#title").get_attribute("dir") == "auto"


def test_nothing_turns_the_title_and_the_texts_and_what_runs_from_right_to_left_stays(open_page, make_recording):
    texts = {"source": "one \u202egnp.exe", "translation": "سلام\u200c دنیا"}
    page = open_page(make_recording().replace(title="fdp.\u202eexe", model_name="m\u2066", texts=texts))
    assert page.locator("#title").text_content() == "fdp.⟨202E⟩exe"
    assert page.locator("#model").text_content() == "m⟨2066⟩"
    assert page.locator("#texts dd").all_text_contents() == ["one ⟨202E⟩gnp.exe", texts["translation"]]


@pytest.mark.parametrize("views", ["foo", "foo,bar", "image"])
def test_unknown_views_open_the_default_views(open_page, recording, views):
    page = open_page(recording, f"#views={views}")
    opened = page.locator(".view-buttons [aria-pressed=true]").all_text_contents()
    assert opened == ["Text", "Matrix"]


def test_a_sentence_explains_the_order_of_heads(open_page, recording):
    page = open_page(recording)
    meanings = {
        "entropy": "the entropy in nats: the larger, the more evenly a row is spread",
        "mean_distance": "the distance between a token and what it attends to, in tokens",
        "self": "the weight on the token itself",
    }
    for name, meaning in meanings.items():
        page.select_option("#sort", name)
        note = page.locator(".overview .controls .hint").text_content()
        assert note == f"The number is {meaning}, averaged over the rows."
        assert page.locator("#sort option:checked").text_content() == name.replace("_", " ")


def test_weights_below_the_printed_precision_are_shown_as_an_upper_bound(open_page):
    keys = torch.tensor([[0.0], [20.0]])[None, None]
    weights = regard.weights(torch.ones(1, 1, 2, 1), keys, scale=1.0)
    words = ("▁a", "▁b")
    page = open_page(Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),)))
    point_at(page, 0, 0)
    assert page.locator(".tip .value").text_content() == "< 0.0001"
