"""Subwords as words: what the page shows of them against `regard.GroupPool`."""

from __future__ import annotations

import csv
import io
import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import arcs, layer_of, number_of, point_at, settle, token
from helpers.explore.page_cases import NOT_COMPUTED
from regard.explore.html_page import write_html
from regard.ops.measures import GroupPool
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

# Of the tokens of the fixtures: ti·red and mü·de are words.
SOURCE, WRITTEN = [0, 1, 2, 3, 4, 4, 5, 6], [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
SOURCE_WORDS = ["The", "animal", "was", "too", "tired", ".", "</s>"]


THREE_DIGITS = 5e-4
"""The rounding of a weight that is written with three decimals."""


def summed(exact: float, rounding: float = 1e-6):
    """Approximately a sum of up to four stored weights, each within 1/6000."""
    return pytest.approx(exact, rel=0, abs=4 / 6000 + rounding)


def grouped(weights, queries: list[int], keys: list[int]) -> torch.Tensor:
    """(heads, query words, key words)."""
    measures = {"words": GroupPool(torch.tensor(queries), torch.tensor(keys))}
    return weights.detach().measure(measures)["words"][0]


def saved(page) -> dict[tuple[int, int], float]:
    """The weights that are saved of what is chosen, by their words."""
    with page.expect_download() as coming:
        page.locator("section.view:visible").first.get_by_role("button", name="as CSV").click()
    assert "-words-" in coming.value.suggested_filename
    text = coming.value.path().read_bytes().decode("utf-8-sig")
    return {(int(row[0]), int(row[2])): float(row[4]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:]}


def words_of(page, line: int) -> list[str]:
    settle(page)
    return page.locator(".tokens").nth(line).locator(".token").all_text_contents()


@pytest.mark.parametrize(
    ("name", "head", "queries", "keys"),
    [
        ("encoder.0", 1, SOURCE, SOURCE),
        ("cross.1", 2, WRITTEN, SOURCE),
        ("decoder.0", 0, WRITTEN, [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]),  # keys are read from <s> on
    ],
)
def test_every_weight_between_words_is_that_of_grouped(open_page, recording, name, head, queries, keys):
    page = open_page(recording, f"#layer={name}&head={head}&unit=words")
    layer = layer_of(recording, name)
    exact = grouped(layer.weights, queries, keys)[head]
    cells = saved(page)
    for cell, weight in cells.items():
        assert weight == summed(exact[cell].item())
    others = torch.ones_like(exact, dtype=torch.bool)
    others[tuple(torch.tensor(list(cells)).T)] = False
    assert exact[others].abs().sum() == 0  # those that the mask forbids


def test_text_matrix_and_numbers_show_words(open_page, recording):
    page = open_page(recording, "#layer=encoder.1&head=0")
    assert len(words_of(page, 0)) == 8
    page.select_option("#unit", "words")
    page.wait_for_function("() => !location.hash.includes('unit')")  # words come first
    assert words_of(page, 0) == SOURCE_WORDS
    exact = grouped(layer_of(recording, "encoder.1").weights, SOURCE, SOURCE)[0]
    point_at(page, 4, 1)
    shown = number_of(page.locator(".tip .value").text_content())
    assert shown == summed(exact[4, 1].item(), THREE_DIGITS)
    assert page.locator(".tip b").all_text_contents() == ["tired", "animal"]
    token(page, 0, 4).hover()
    assert arcs(page, "out") == {(4, key) for key in range(7) if exact[4, key] >= 0.01}
    assert page.locator(".panel h3 b").first.text_content() == "tired"
    listed = page.locator(".panel").first.locator(".value").all_text_contents()
    for shown, weight in zip(map(float, listed), sorted(exact[4].tolist(), reverse=True), strict=True):
        assert shown == summed(weight, THREE_DIGITS)
    assert "Words: the sum" in page.locator("#legend").inner_text()


def test_a_page_opens_in_words_and_its_views_are_a_group_of_their_own(open_file, recording, tmp_path):
    page = open_file(write_html(recording, tmp_path / "a.html"), "#layer=encoder.1&head=0&token=source.5")
    expect(page.locator(".token[aria-selected=true]")).to_have_text(["tired"])
    assert words_of(page, 0) == SOURCE_WORDS
    expect(page.locator("#unit")).to_have_value("words")
    assert "Words" not in page.get_by_role("group", name="Views").get_by_role("button").all_text_contents()


def test_a_long_text_opens_in_tokens_as_its_map_has(open_file, long_recording, tmp_path):
    page = open_file(write_html(long_recording, tmp_path / "a.html"))
    expect(page.locator("#unit")).to_have_value("tokens")


def test_what_is_held_stays_held_as_the_word_and_as_its_pieces(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0&token=source.5&region=4.5.0.1")
    page.select_option("#unit", "words")
    held = page.locator(".token[aria-selected=true]")
    expect(held).to_have_text(["tired"])
    page.select_option("#unit", "tokens")
    expect(held).to_have_text(["red"])  # nothing else was chosen
    page.select_option("#unit", "words")
    token(page, 0, 1).click(modifiers=["Control"])
    expect(held).to_have_text(["animal", "tired"])
    page.select_option("#unit", "tokens")
    expect(held).to_have_text(["animal", "ti", "red"])
    page.wait_for_url("**token=source.4,source.5,source.1*")
    page.select_option("#unit", "words")
    token(page, 0, 4).click(modifiers=["Control"])
    expect(held).to_have_text(["animal"])


def test_the_matrix_keeps_its_place_when_words_are_shown(open_page, make_recording):
    words = tuple(piece for index in range(60) for piece in (f"▁w{index}", "x", "y"))
    page = open_page(make_recording(words, words), "#layer=encoder.0&head=0&zoom=90,90,30&unit=words")
    data = page.locator("#matrix canvas").evaluate("node => ({...node.dataset})")
    page.locator("#matrix canvas").scroll_into_view_if_needed()
    frame = page.locator("#matrix canvas").bounding_box()
    middle = float(data["row"]) + (frame["height"] - float(data["top"])) / float(data["cell"]) / 2
    assert middle == pytest.approx(90 / 3, abs=1)
    page.locator("#matrix canvas").focus()
    before = float(data["column"])
    x, y = frame["x"] + frame["width"] / 2, frame["y"] + float(data["top"]) + 40
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 45, y, steps=5)
    page.mouse.up()
    settle(page)
    after = float(page.locator("#matrix canvas").get_attribute("data-column"))
    assert after - before == pytest.approx(45 / 30, abs=0.1)


def test_words_by_keyboard_and_by_link(open_page, recording):
    page = open_page(recording, "#layer=cross.0&head=0&unit=words")
    choice = page.get_by_label("Text in")
    expect(choice).to_have_value("words")
    token(page, 1, 0).focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "n"
    page.keyboard.press("Enter")
    page.wait_for_url("**token=written.9*")
    choice.focus()
    page.keyboard.press("t")
    expect(choice).to_have_value("tokens")
    assert len(words_of(page, 1)) == 10
    page.evaluate("location.hash = '#layer=encoder.0&head=1&unit=words'")
    expect(page.locator(".token")).to_have_count(7)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("[CLS]", "un", "##related", "things", "[SEP]"), ["[CLS]", "unrelated", "things", "[SEP]"]),
        (("The", "Ġan", "imal", "↵", "It", "<|endoftext|>"), ["The", "animal", "↵", "It", "<|endoftext|>"]),
        (("<bos>", "▁a", "b", "<start_of_turn>", "c", "▁"), ["<bos>", "ab", "<start_of_turn>", "c"]),
    ],
)
def test_words_of_tokenizers_that_mark_them_otherwise(open_page, tokens, words):
    weights = regard.weights(torch.randn(1, 1, len(tokens), 4), torch.randn(1, 1, len(tokens), 4))
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#unit=words")
    assert words_of(page, 0) == words


def test_no_choice_of_words_if_every_token_is_a_word(open_page):
    tokens = ("a", "b", "c")
    weights = regard.weights(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#unit=words")
    assert not page.locator("#unit").is_visible()
    assert page.locator(".legend-notes").inner_text() == ""


@pytest.fixture(scope="module")
def long_recording() -> Recording:
    """A sketch: 800 tokens, 400 words of two pieces."""
    torch.manual_seed(1)
    tokens = tuple(piece for index in range(400) for piece in (f"▁w{index}", "x"))
    weights = regard.weights(
        2 * torch.randn(1, 2, 800, 8), torch.randn(1, 2, 800, 8), mask=regard.Causal(), score=NOT_COMPUTED
    )
    return Recording("t", "m", (Layer("l", "decoder", weights, tokens, tokens),))


@pytest.mark.parametrize("heads", [[1], [0, 1]])
def test_of_a_sketch_words_are_the_sums_of_the_links_that_are_known(open_page, long_recording, heads):
    page = open_page(long_recording, f"#head={','.join(map(str, heads))}&reduce=mean&unit=words&token=source.601")
    weights = long_recording.layers[0].weights.dense()[0, heads]
    known = torch.zeros_like(weights).scatter(-1, weights.topk(16).indices, weights.topk(16).values).mean(0)
    of_word = known[600:602].mean(0).unflatten(0, (400, 2)).sum(-1)
    into_word = known[:, 600:602].sum(-1).unflatten(0, (400, 2)).mean(-1)
    cells = saved(page)
    for (query, key), weight in cells.items():
        exact = of_word[key] if query == 300 else into_word[query]
        assert weight == pytest.approx(exact.item(), abs=0.012)  # what is not stored may add to it
    assert {key for query, key in cells if query == 300} >= set((of_word > 3e-4).nonzero().flatten().tolist())
    left = weights.mean(0)[600:602].mean(0).unflatten(0, (400, 2)).sum(-1)[of_word == 0].sum().item()
    note = page.locator(".panel").first.locator(".hint").last.inner_text()
    assert_printed(re.match(r"(.+) on others", note)[1], left, 1e-6)
    assert page.locator(".panel").nth(1).locator(".hint").last.inner_text().startswith("about ")


def test_of_a_sketch_the_matrix_shows_tokens_with_a_note(open_page, long_recording):
    page = open_page(long_recording, "#head=0&unit=words&token=source.601&region=0.1.0.99")
    assert page.locator("#matrix canvas").get_attribute("aria-label").endswith("Shift with arrows marks a region.")
    assert "800 rows" in page.locator("#matrix canvas").get_attribute("aria-label")
    assert len(words_of(page, 0)) == 400
    assert "so the matrix shows tokens" in page.locator("#legend").inner_text()
    share = page.locator(".panel", has_text="Region").locator(".value").nth(1).text_content()
    assert float(share) == pytest.approx(1, abs=0.02)  # of two rows, all of whose keys are in it
