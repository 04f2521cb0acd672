"""Two recordings in one page: side by side, their difference where tokens align, and the heads that differ most."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import regard
from explore.opened import layer_of, number_of
from explore.pairs import ONE, OTHER, PAIRS, encoder_of, stored
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.errors import InvalidArgument, InvalidType
from regard.explore.codes import decode, encode
from regard.explore.packing import pack
from regard.explore.page import page

pytestmark = pytest.mark.browser

THREE_DIGITS = 0.5e-3  # the rounding of a weight that is written


def point_at(opened, panel: str, query: int, key: int) -> None:
    canvas = opened.locator(f".compare-panel.{panel} canvas")
    canvas.scroll_into_view_if_needed()
    at = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    x, y = (at[side] + (index + 0.5) * at["cell"] for side, index in (("left", key), ("top", query)))
    canvas.hover(position={"x": x, "y": y})


def told(opened) -> dict[str, str]:
    """What the tip says of A, B and their difference."""
    opened.wait_for_selector("#compare .tip:not([hidden])")
    lines = opened.locator("#compare .tip .compare-line").all_inner_texts()
    return {name.strip(): value.strip() for name, value in (line.rsplit("\n", 1) for line in map(_split, lines))}


def _split(line: str) -> str:
    name = next(each for each in ("B − A", "A", "B") if line.startswith(each))
    return f"{name}\n{line[len(name) :].strip()}"


def test_the_second_is_packed_behind_the_first(pair):
    one, other = pair
    header, blocks = pack(one, other)
    alone, first = pack(one)
    beside, second = pack(other)
    assert header == {**alone, "beside": beside}
    assert blocks == first + second
    assert "beside" not in alone


def test_what_cannot_be_compared_is_refused(pair):
    one, other = pair
    decoder = Layer("decoder.7", "decoder", other.layers[0].weights, OTHER, OTHER)
    with pytest.raises(InvalidArgument, match=r"compare_with: expected a layer .* of a kind \(encoder\).* decoder"):
        page(one, compare_with=Recording("", "", (decoder,)))
    with pytest.raises(InvalidArgument, match="compare_with: expected at least one layer"):
        page(one, compare_with=Recording("", "", ()))
    with pytest.raises(InvalidType, match="compare_with: expected a Recording, got str"):
        page(one, compare_with="other.regard")


def test_one_recording_has_no_such_view(open_page, pair):
    opened = open_page(pair[0])
    assert opened.locator("#compare").count() == 0
    assert opened.get_by_role("button", name="Compare").count() == 0


def test_both_titles_and_how_many_tokens_are_in_both(open_pair, pair):
    opened = open_pair(*pair)
    captions = opened.locator(".compare-panel figcaption").all_inner_texts()
    assert "One text" in captions[0]
    assert "Another text" in captions[1]
    assert "model 1" in captions[1]
    assert opened.locator(".compare-words").inner_text() == "6 of 8 tokens are in both (2 only in A, 2 only in B)."


@pytest.mark.parametrize("panel", ["one", "other", "difference"])
def test_a_cell_tells_both_weights_and_the_difference(open_pair, pair, panel):
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    a, b = (stored(recording, "encoder.1", 2) for recording in pair)
    for row, column in ((1, 4), (4, 0), (5, 5)):
        (qa, qb), (ka, kb) = PAIRS[row], PAIRS[column]
        at = {"one": (qa, ka), "other": (qb, kb), "difference": (row, column)}[panel]
        point_at(opened, panel, *at)
        expect(opened.locator("#compare .pair")).to_have_text(f"{_label(ONE[qa])} → {_label(ONE[ka])}")
        found = told(opened)
        assert number_of(found["A"]) == pytest.approx(a[qa, ka], abs=THREE_DIGITS)
        assert number_of(found["B"]) == pytest.approx(b[qb, kb], abs=THREE_DIGITS)
        assert number_of(found["B − A"]) == pytest.approx(b[qb, kb] - a[qa, ka], abs=THREE_DIGITS)
        assert found["B − A"][0] == ("+" if b[qb, kb] > a[qa, ka] else "−")


def _label(token: str) -> str:
    return token[1:] if token.startswith("▁") else f"·{token}" if token[0].isalnum() else token


def test_a_token_that_is_in_one_only_says_so_and_has_no_difference(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0")
    point_at(opened, "other", 1, 2)  # "old", which A has not
    found = told(opened)
    assert found["A"] == "not there"
    assert number_of(found["B"]) == pytest.approx(stored(pair[1], "encoder.0", 0)[1, 2], abs=THREE_DIGITS)
    assert "B − A" not in found
    assert "6 rows, 6 columns" in opened.locator(".compare-panel.difference canvas").get_attribute("aria-label")


def test_the_difference_has_the_colour_of_its_sign(open_pair, pair):
    """Blue where A gives more, orange where B does; and the larger, the further from the page."""
    opened = open_pair(*pair, "#layer=encoder.0&head=1&theme=light")
    a, b = (stored(recording, "encoder.0", 1) for recording in pair)
    read = """(node, count) => {
      const {left, top, cell} = node.dataset, {width, height} = node;
      const pixels = node.getContext("2d").getImageData(0, 0, width, height).data;
      const at = (start, index) => Math.round((+start + (index + 0.15) * +cell) * devicePixelRatio);
      const pixel = (row, column) => 4 * (at(top, row) * width + at(left, column));
      const all = [...Array(count).keys()];
      return all.map((row) => all.map((column) => [...pixels.slice(pixel(row, column), pixel(row, column) + 3)]));
    }"""
    colours = opened.locator(".compare-panel.difference canvas").evaluate(read, len(PAIRS))
    shades = {}
    for row, (qa, qb) in enumerate(PAIRS):
        for column, (ka, kb) in enumerate(PAIRS):
            red, _, blue = colours[row][column]
            difference = b[qb, kb] - a[qa, ka]
            shades[abs(difference)] = red + blue
            if abs(difference) > 0.01:
                assert (red > blue) == (difference > 0)
    sizes = sorted(shades)
    assert shades[sizes[-1]] < shades[sizes[0]] - 40


def test_heads_are_ranked_by_how_much_they_differ_and_chosen(open_pair, pair):
    opened = open_pair(*pair)
    expect(opened.locator(".compare-entry")).to_have_count(6)
    rows = opened.locator(".compare-entry").evaluate_all(
        "nodes => nodes.map(({dataset}) => [dataset.layer, +dataset.head, +dataset.mean])"
    )
    at = np.array(PAIRS)
    for name, head, mean in rows:
        a, b = (stored(recording, name, head) for recording in pair)
        expected = np.abs(b[np.ix_(at[:, 1], at[:, 1])] - a[np.ix_(at[:, 0], at[:, 0])]).mean()
        assert mean == pytest.approx(expected, rel=1e-4)
    assert [mean for *_, mean in rows] == sorted((mean for *_, mean in rows), reverse=True)
    opened.locator(".compare-entry").nth(3).click()
    name, head, _ = rows[3]
    expect(opened).to_have_url(re.compile(f"#layer={name}&head={head}$"))
    assert opened.locator(".compare-entry[aria-selected=true]").get_attribute("data-head") == str(head)
    opened.keyboard.press("ArrowDown")
    expect(opened).to_have_url(re.compile(f"#layer={rows[4][0]}&head={rows[4][1]}$"))
    opened.get_by_label("Order").select_option("model")
    names = opened.locator(".compare-entry").evaluate_all("nodes => nodes.map(({dataset}) => dataset.layer)")
    assert names == ["encoder.0"] * 3 + ["encoder.1"] * 3


def test_a_token_is_held_in_every_view(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0&views=text,compare")
    canvas = opened.locator(".compare-panel.other canvas")
    point_at(opened, "other", 2, 0)  # "animal", at place 1 of A
    opened.mouse.down()
    opened.mouse.up()
    opened.wait_for_selector(".token[aria-selected=true]")
    assert opened.locator(".token[aria-selected=true]").all_inner_texts() == ["animal"]
    canvas.focus()
    opened.keyboard.press("Escape")
    opened.wait_for_selector(".token[aria-selected=true]", state="detached")
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("Enter")
    opened.wait_for_selector(".token[aria-selected=true]")
    assert opened.locator(".token[aria-selected=true]").all_inner_texts() == ["was"]
    assert opened.locator("#compare [role=status].unseen").inner_text().startswith("was to The: A ")


def test_masked_cells_have_no_difference(open_pair):
    tokens = ONE
    one, other = (encoder_of(tokens, seed, mask=regard.Causal()) for seed in (0, 1))
    opened = open_pair(one, other, "#layer=encoder.0&head=0")
    point_at(opened, "difference", 2, 5)
    assert told(opened) == {"A": "masked", "B": "masked", "B − A": "none: masked"}
    rows = opened.locator(".compare-entry").evaluate_all(
        "nodes => nodes.map(({dataset}) => [dataset.layer, +dataset.head, +dataset.mean])"
    )
    for name, head, mean in rows:
        a, b = (stored(recording, name, head) for recording in (one, other))
        seen = np.tril(np.ones_like(a, dtype=bool))
        assert mean == pytest.approx(np.abs(b - a)[seen].mean(), rel=1e-4)


def test_layers_belong_together_by_kind_where_names_differ(open_pair):
    """And heads by number: what the other has not is said."""
    one = encoder_of(ONE, 0, heads=3)
    other = encoder_of(ONE, 1, heads=2, layers=1, name="bert.layer.{}.attention")
    opened = open_pair(one, other, "#layer=encoder.0&head=1")
    words = opened.locator(".compare-words")
    assert words.inner_text() == (
        "encoder.0 of A is compared with bert.layer.0.attention of B. 8 of 8 tokens are in both."
    )
    point_at(opened, "one", 3, 4)
    expected = stored(other, "bert.layer.0.attention", 1)[3, 4]
    assert number_of(told(opened)["B"]) == pytest.approx(expected, abs=THREE_DIGITS)
    opened.locator(".thumbnail").nth(2).click()
    expect(words).to_contain_text("no head 2")
    assert opened.locator(".compare-panel.other").is_hidden()
    assert opened.locator(".compare-panel.difference").is_hidden()
    opened.locator(".thumbnail").nth(3).click()
    expect(words).to_contain_text("B has no layer")
    assert opened.locator(".compare-entry").count() == 2
    assert opened.locator(".compare-ranking [role=status]").inner_text() == "not compared: encoder.1"


LONG = 700


@pytest.fixture(scope="module")
def long_pair():
    tokens = tuple(f"▁w{index % 53}" for index in range(LONG))
    return encoder_of(tokens, 0, heads=2, layers=1), encoder_of((*tokens[:-1], "▁end"), 1, heads=2, layers=1)


def test_long_texts_are_compared_by_squares(open_pair, long_pair):
    opened = open_pair(*long_pair, "#layer=encoder.0&head=1")
    assert opened.locator(".compare-words").inner_text() == (
        f"{LONG - 1} of {LONG} tokens are the same in both; squares are compared by place."
    )
    size = -(-LONG // 256)
    maps = []
    for recording in long_pair:
        weights = recording.layers[0].weights.dense()[0].double().numpy()
        count = math.ceil(LONG / size)
        padded = np.pad(weights, ((0, 0), (0, count * size - LONG), (0, count * size - LONG)))
        sums = padded.reshape(2, count, size, count, size).sum((2, 4))
        rows = np.minimum(size, LONG - size * np.arange(count))
        maps.append(decode(encode(torch.tensor(sums / rows[:, None]).float()).numpy()))
    entries = opened.locator(".compare-entry").evaluate_all(
        "nodes => nodes.map(({dataset}) => [+dataset.head, +dataset.mean])"
    )
    assert len(entries) == 2
    for head, mean in entries:
        assert mean == pytest.approx(np.abs(maps[1][head] - maps[0][head]).mean(), rel=2e-2)
    assert f"a square is {size} × {size} tokens" in opened.locator(".compare-legend").inner_text()


def test_long_texts_of_other_lengths_are_not(open_pair, long_pair):
    one = long_pair[0]
    other = encoder_of(one.layers[0].query_tokens[:-40], 2, heads=2, layers=1)
    opened = open_pair(one, other, ranked=False)
    opened.wait_for_selector(".compare-why:not([hidden])")
    words = opened.locator(".compare-why").inner_text()
    assert "only where both have as many tokens (A has 700 × 700, B 660 × 660)" in words
    assert opened.locator(".compare-panel.other").is_visible()
    assert opened.locator(".compare-panel.difference").is_hidden()
    opened.wait_for_selector(".compare-ranking", state="hidden")


def test_tokens_are_aligned_by_a_longest_common_subsequence(open_pair):
    one = tuple("abcabba")
    other = tuple("cbabac")
    opened = open_pair(encoder_of(one), encoder_of(other, 1))
    assert opened.locator(".compare-words").inner_text() == "4 of 7 tokens are in both (3 only in A, 2 only in B)."
    nothing = open_pair(encoder_of(("x", "y")), encoder_of(("z",), 1), ranked=False)
    nothing.wait_for_selector(".compare-why:not([hidden])")
    assert nothing.locator(".compare-why").inner_text() == "No token is in both, so there is no difference to show."
    assert nothing.locator(".compare-words").inner_text() == "0 of 2 tokens are in both (2 only in A, 1 only in B)."


def test_a_narrow_window_holds_all_of_it(open_pair, pair):
    opened = open_pair(*pair, width=400)
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tops = opened.locator(".compare-panel").evaluate_all("nodes => nodes.map((node) => node.offsetTop)")
    assert tops == sorted(set(tops))  # one below the other


def test_words_are_compared_though_their_pieces_differ(open_pair):
    whole = (*ONE[:4], "▁tired", *ONE[6:])
    one, other = encoder_of(ONE, 0), encoder_of(whole, 1)
    opened = open_pair(one, other, "#layer=encoder.0&head=1&words=1")
    expect(opened.locator(".compare-words:visible")).to_have_text("7 of 7 tokens are in both.")
    point_at(opened, "difference", 1, 4)
    a, b = (layer_of(recording, "encoder.0").weights[0, 1, 1] for recording in (one, other))
    found = told(opened)
    assert number_of(found["A"]) == pytest.approx(float(a[4:6].sum()), rel=0.0151, abs=2e-4)
    assert number_of(found["B"]) == pytest.approx(float(b[4]), rel=0.0151, abs=1e-4)
    assert number_of(found["B − A"]) == pytest.approx(float(b[4] - a[4:6].sum()), abs=0.015)


def test_what_is_left_out_is_left_out_of_both(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0&hidden=first")
    point_at(opened, "difference", 1, 0)
    expect(opened.locator("#compare .tip")).to_contain_text("left out")
    before = opened.locator(".compare-entry").evaluate_all("nodes => nodes.map(node => +node.dataset.mean)")
    opened.evaluate("location.hash = '#layer=encoder.0&head=0'")
    expect(opened.locator(".compare-entry").first).to_have_attribute("data-mean", re.compile(r"^\d"))
    opened.wait_for_timeout(500)
    after = opened.locator(".compare-entry").evaluate_all("nodes => nodes.map(node => +node.dataset.mean)")
    assert len(after) == len(before)
    assert sorted(after) != sorted(before)
