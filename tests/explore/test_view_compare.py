"""Two recordings in one page: side by side, their difference where tokens align, and the heads that differ most."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.comparison_cases import PAIRS, TOKENS_A, TOKENS_B, encoder_recording, exact_weights, stored_weights
from helpers.explore.displayed_weights import assert_printed, displayed_weights
from helpers.explore.page_reader import dequantize
from regard.errors import InvalidArgument, InvalidType
from regard.explore.html_page import to_html
from regard.explore.pack import pack
from regard.explore.page_format import PRECISION, quantize
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser


def point_at(opened, panel: str, query: int, key: int) -> None:
    canvas = opened.locator(f".compare-panel.{panel} .matrix-frame canvas")
    canvas.scroll_into_view_if_needed()
    at = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    x, y = (at[side] + (index + 0.5) * at["cell"] for side, index in (("left", key), ("top", query)))
    canvas.hover(position={"x": x, "y": y})


def tip(opened) -> dict[str, str]:
    """The text of the tip about A, B and their difference."""
    opened.wait_for_selector("#compare .tip:not([hidden])")
    lines = opened.locator("#compare .tip .compare-line")
    names = lines.locator(".rank").all_inner_texts()
    return dict(zip(names, lines.locator(".value").all_inner_texts(), strict=True))


def ranking(opened) -> list[tuple[str, int, float]]:
    """Layer, head and mean difference, in the order of the list."""
    entries = opened.locator(".compare-entry")
    return [
        tuple(each)
        for each in entries.evaluate_all(
            "nodes => nodes.map(({dataset}) => [dataset.layer, +dataset.head, +dataset.mean])"
        )
    ]


def printed(size: float) -> str:
    """An exact weight as the page prints it."""
    return "< 0.0001" if size < 5e-5 else f"{size:.3f}" if size >= 0.1 else f"{size:.4f}"


def printed_difference(value: float) -> str:
    return printed(abs(value)) if abs(value) < 5e-5 else f"{'+' if value > 0 else '−'}{printed(abs(value))}"


def label(token: str) -> str:
    return token[1:] if token.startswith("▁") else f"·{token}" if token == "red" else token


def test_the_second_is_packed_behind_the_first(pair):
    a, b = pair
    header, blocks = pack(a, b)
    alone, first = pack(a)
    second, others = pack(b)
    common = header["compare_with"].pop("alignments"), header["compare_with"].pop("counterparts")
    assert common == (
        [
            {
                "sequences": (0, 0),
                "tokens": [(0, 0, 1), (1, 2, 3), (6, 6, 2)],
                "words": [(0, 0, 1), (1, 2, 3), (5, 6, 2)],
            }
        ],
        [0, 1],
    )
    assert header == {**alone, "compare_with": second}
    assert blocks == first + others
    assert "compare_with" not in alone


def test_what_cannot_be_compared_is_refused(pair):
    a, b = pair
    decoder = Layer("decoder.7", "decoder", b.layers[0].weights, TOKENS_B, TOKENS_B)
    with pytest.raises(
        InvalidArgument, match=r"compare_with: expected a layer with the name or kind \(encoder\) .* got decoder"
    ):
        to_html(a, compare_with=Recording("", "", (decoder,)))
    with pytest.raises(InvalidArgument, match="compare_with: expected at least one layer"):
        to_html(a, compare_with=Recording("", "", ()))
    with pytest.raises(InvalidType, match=r"compare_with: expected a Recording or the result of regard.watch, got str"):
        to_html(a, compare_with="other.regard")


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
    assert opened.locator(".compare-note").inner_text() == "6 of 8 tokens are in both (2 only in A, 2 only in B)."


@pytest.mark.parametrize("panel", ["a", "b", "difference"])
def test_a_cell_has_both_weights_and_the_difference(open_pair, pair, panel):
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    a, b = (exact_weights(recording, "encoder.1", 2) for recording in pair)
    for row, column in ((1, 4), (4, 0), (5, 5)):
        (qa, qb), (ka, kb) = PAIRS[row], PAIRS[column]
        at = {"a": (qa, ka), "b": (qb, kb), "difference": (row, column)}[panel]
        point_at(opened, panel, *at)
        expect(opened.locator("#compare .pair")).to_have_text(f"{label(TOKENS_A[qa])} → {label(TOKENS_A[ka])}")
        assert tip(opened) == {
            "A": printed(a[qa, ka]),
            "B": printed(b[qb, kb]),
            "B − A": printed_difference(b[qb, kb] - a[qa, ka]),
        }


SOFT_CAP = regard.SoftCap(regard.ScaledDotProduct(), 20.0)
"""A score that the page cannot compute, so that it has stored weights only."""
OPTIONS = {
    "hidden": ("hide=first,special", {"hide": ("first", "special")}),
    "rescaled": ("hide=first&rescale=1", {"hide": ("first",), "rescale": True}),
    "words": ("unit=words", {"words": True}),
    "rescaled words": ("unit=words&hide=special&rescale=1", {"words": True, "hide": ("special",), "rescale": True}),
    "mean of heads": ("", {"heads": (0, 2)}),
    "sum of heads": ("reduce=sum&hide=first", {"heads": (0, 2), "reduce": "sum", "hide": ("first",)}),
}


CASES = [(name, score) for name in OPTIONS for score in (None, SOFT_CAP) if score is None or "rescaled" not in name]


@pytest.mark.parametrize(("name", "score"), CASES)
def test_weights_are_those_of_other_views(open_pair, name, score):
    """Hidden and rescaled keys, words and combined heads are the same on both sides and in the ranking.

    Not every row of stored weights can be rescaled, so rescaling is checked for weights that the page computes.
    """
    fragment, options = OPTIONS[name]
    heads = options.get("heads", (1,))
    pair = [encoder_recording(tokens, seed, score=score) for seed, tokens in enumerate((TOKENS_A, TOKENS_B))]
    opened = open_pair(*pair, f"#layer=encoder.0&head={','.join(map(str, heads))}&{fragment}")
    pairs = [(0, 0), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7)] if "words" in name else PAIRS
    at = np.array(pairs)

    def differences(heads):
        a, b = (displayed_weights(r.layers["encoder.0"], **{**options, "heads": heads}) for r in pair)
        return a[np.ix_(at[:, 0], at[:, 0])], b[np.ix_(at[:, 1], at[:, 1])]

    # A word adds up two tokens, rescaling divides by what is left, a sum adds up two heads.
    error = 0 if score is None else 10 * PRECISION
    a, b = differences(heads)
    for row, column in ((1, 3), (2, 4), (3, 0), (4, 5)):
        point_at(opened, "difference", row, column)
        expect(opened.locator("#compare .pair")).to_contain_text(label(TOKENS_A[PAIRS[column][0]]))
        actual = tip(opened)
        if np.isnan(a[row, column]):
            assert actual["B − A"] == "none: hidden"
            continue
        assert_printed(actual["A"], a[row, column], error)
        assert_printed(actual["B"], b[row, column], error)
        assert_printed(actual["B − A"], (b - a)[row, column], error)
    for layer, head, mean in ranking(opened):
        if layer == "encoder.0":
            a, b = differences((head,))
            assert mean == pytest.approx(np.nanmean(np.abs(b - a)), abs=10 * PRECISION)


def test_a_difference_of_stored_weights_prints_its_true_digits(open_pair):
    """Each is within 1/6000, their difference within 1/3000: three decimals, of which the last may be off by one."""
    pair = [encoder_recording(tokens, seed, score=SOFT_CAP) for seed, tokens in enumerate((TOKENS_A, TOKENS_B))]
    opened = open_pair(*pair, "#layer=encoder.0&head=0")
    a, b = (stored_weights(recording, "encoder.0", 0) for recording in pair)
    for row, column in ((1, 3), (2, 2), (5, 4)):
        (qa, qb), (ka, kb) = PAIRS[row], PAIRS[column]
        point_at(opened, "difference", row, column)
        expect(opened.locator("#compare .pair")).to_have_text(f"{label(TOKENS_A[qa])} → {label(TOKENS_A[ka])}")
        difference = b[qb, kb] - a[qa, ka]
        size = f"{abs(difference):.3f}"
        assert tip(opened)["B − A"] == ("< 0.001" if size == "0.000" else ("+" if difference > 0 else "−") + size)


def test_a_token_that_is_in_one_only_has_no_difference(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0")
    point_at(opened, "b", 1, 2)  # "old", which A does not have
    assert tip(opened) == {"A": "does not exist", "B": printed(exact_weights(pair[1], "encoder.0", 0)[1, 2])}
    assert "6 rows, 6 columns" in opened.locator(".compare-panel.difference .matrix-frame canvas").get_attribute(
        "aria-label"
    )


PIXELS = """(node, count) => {
  const {left, top, cell} = node.dataset, {width, height} = node;
  const pixels = node.getContext("2d").getImageData(0, 0, width, height).data;
  const at = (start, index) => Math.round((+start + (index + 0.15) * +cell) * devicePixelRatio);
  const pixel = (row, column) => 4 * (at(top, row) * width + at(left, column));
  const all = [...Array(count).keys()];
  return all.map((row) => all.map((column) => [...pixels.slice(pixel(row, column), pixel(row, column) + 3)]));
}"""


@pytest.mark.parametrize("scale", ["sqrt", "row_max"])
def test_the_difference_has_the_color_of_its_sign(open_pair, pair, scale):
    """Teal where A gives more, ochre where B does; and the larger, the further from the page."""
    opened = open_pair(*pair, f"#layer=encoder.0&head=1&theme=light&scale={scale}")
    at = np.array(PAIRS)
    a, b = (exact_weights(recording, "encoder.0", 1) for recording in pair)
    difference = b[np.ix_(at[:, 1], at[:, 1])] - a[np.ix_(at[:, 0], at[:, 0])]
    colors = np.array(opened.locator(".compare-panel.difference .matrix-frame canvas").evaluate(PIXELS, len(PAIRS)))
    red, blue = colors[:, :, 0], colors[:, :, 2]
    clear = np.abs(difference) > 0.01
    assert ((red > blue) == (difference > 0))[clear].all()
    size = np.abs(difference)
    darkness = -(red + blue)
    if scale == "row_max":
        strongest = darkness[np.arange(len(at)), size.argmax(1)]
        assert (np.ptp(strongest[difference[np.arange(len(at)), size.argmax(1)] > 0]) <= 1).all()
    order = size.ravel().argsort()
    assert darkness.ravel()[order[-1]] > darkness.ravel()[order[0]] + 40


def test_heads_are_ranked_by_how_much_they_differ_and_chosen(open_pair, pair):
    opened = open_pair(*pair)
    expect(opened.locator(".compare-entry")).to_have_count(6)
    rows = ranking(opened)
    at = np.array(PAIRS)
    for name, head, mean in rows:
        a, b = (stored_weights(recording, name, head) for recording in pair)
        expected = np.abs(b[np.ix_(at[:, 1], at[:, 1])] - a[np.ix_(at[:, 0], at[:, 0])]).mean()
        assert mean == pytest.approx(expected, rel=1e-5)
    means = [mean for *_, mean in rows]
    assert means == sorted(means, reverse=True)
    for text, (name, head, _) in zip(opened.locator(".compare-entry .value").all_inner_texts(), rows, strict=True):
        a, b = (exact_weights(recording, name, head) for recording in pair)
        assert_printed(text, np.abs(b[np.ix_(at[:, 1], at[:, 1])] - a[np.ix_(at[:, 0], at[:, 0])]).mean(), 1e-6)
    opened.locator(".compare-entry .name").nth(1).click()
    name, head, _ = rows[1]
    expect(opened).to_have_url(re.compile(f"#layer={name}&head={head}&unit=tokens$"))
    assert opened.locator(".compare-entry[aria-selected=true]").get_attribute("data-head") == str(head)
    for key, to in (("ArrowDown", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 5)):
        opened.keyboard.press(key)
        expect(opened).to_have_url(re.compile(f"#layer={rows[to][0]}&head={rows[to][1]}&unit=tokens$"))
    opened.get_by_label("Order").select_option("model")
    assert [name for name, *_ in ranking(opened)] == ["encoder.0"] * 3 + ["encoder.1"] * 3


def test_a_token_is_selected_in_every_view(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0&views=text,compare")
    canvas = opened.locator(".compare-panel.b .matrix-frame canvas")
    point_at(opened, "b", 2, 0)  # "animal", at position 1 of A
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
    assert opened.locator("#compare [role=status].visually-hidden").inner_text().startswith("was to The: A ")


def test_masked_cells_have_no_difference(open_pair):
    a, b = (encoder_recording(TOKENS_A, seed, mask=regard.Causal()) for seed in (0, 1))
    opened = open_pair(a, b, "#layer=encoder.0&head=0")
    point_at(opened, "difference", 2, 5)
    assert tip(opened) == {"A": "masked", "B": "masked", "B − A": "none: masked"}
    expect(opened.locator(".compare-legend")).to_contain_text("masked in A or in B")
    for name, head, mean in ranking(opened):
        weights = [stored_weights(recording, name, head) for recording in (a, b)]
        allowed = np.tril(np.ones_like(weights[0], dtype=bool))
        assert mean == pytest.approx(np.abs(weights[1] - weights[0])[allowed].mean(), rel=1e-5)


def test_layers_belong_together_by_kind_where_names_differ(open_pair):
    """Heads are matched by number; a head that the other recording lacks is reported."""
    a = encoder_recording(TOKENS_A, 0, heads=3)
    b = encoder_recording(TOKENS_A, 1, heads=2, layers=1, name="bert.layer.{}.attention")
    opened = open_pair(a, b, "#layer=encoder.0&head=1")
    note = opened.locator(".compare-note")
    assert (
        note.inner_text() == "encoder.0 of A is compared with bert.layer.0.attention of B. 8 of 8 tokens are in both."
    )
    point_at(opened, "a", 3, 4)
    assert tip(opened)["B"] == printed(exact_weights(b, "bert.layer.0.attention", 1)[3, 4])
    opened.locator(".thumbnail").nth(2).click(modifiers=["Shift"])
    expect(note).to_contain_text("Head 2 exists only in A; skipped.")
    assert opened.locator(".compare-panel.difference").is_visible()
    opened.locator(".thumbnail").nth(2).click()
    expect(note).to_contain_text("B has no head 2")
    assert opened.locator(".compare-panel.a").is_visible()
    assert opened.locator(".compare-panel.b").is_hidden()
    assert opened.locator(".compare-panel.difference").is_hidden()
    opened.locator(".thumbnail").nth(3).click()
    expect(note).to_contain_text("B has no layer to compare with encoder.1 of A")
    assert opened.locator(".compare-panel.a").is_visible()
    assert opened.locator(".compare-entry").count() == 2
    assert opened.locator(".compare-ranking [role=status]").inner_text() == "Not compared: encoder.1"


LONG = 700


@pytest.fixture(scope="module")
def long_pair():
    tokens = tuple(f"▁w{index % 53}" for index in range(LONG))
    return (
        encoder_recording(tokens, 0, heads=2, layers=1),
        encoder_recording((*tokens[:-1], "▁end"), 1, heads=2, layers=1),
    )


def test_long_texts_are_compared_by_blocks(open_pair, long_pair):
    opened = open_pair(*long_pair, "#layer=encoder.0&head=1")
    assert opened.locator(".compare-note").inner_text() == (
        f"{LONG - 1} of {LONG} positions have the same token. Blocks are compared by position."
    )
    size = -(-LONG // 256)
    maps = []
    for recording in long_pair:
        weights = recording.layers[0].weights.dense()[0].double().numpy()
        count = math.ceil(LONG / size)
        padded = np.pad(weights, ((0, 0), (0, count * size - LONG), (0, count * size - LONG)))
        sums = padded.reshape(2, count, size, count, size).sum((2, 4))
        rows = np.minimum(size, LONG - size * np.arange(count))
        maps.append(dequantize(quantize(torch.tensor(sums / rows[:, None])).numpy()))
    entries = ranking(opened)
    assert len(entries) == 2
    for _, head, mean in entries:
        assert mean == pytest.approx(np.abs(maps[1][head] - maps[0][head]).mean(), rel=1e-3)
    assert f"a block is {size} × {size} tokens" in opened.locator(".compare-legend").inner_text()
    opened.locator(".compare-panel.difference .matrix-frame canvas").focus()
    opened.keyboard.press("ArrowDown")
    actual = tip(opened)
    if "not stored" in actual["A"] or "not stored" in actual["B"]:
        assert actual["B − A"].endswith(f"to the {size} keys around it, averaged over {size} rows")


def test_long_texts_of_other_lengths_are_not(open_pair, long_pair):
    a = long_pair[0]
    b = encoder_recording(a.layers[0].query_tokens[:-40], 2, heads=2, layers=1)
    opened = open_pair(a, b, ranked=False)
    opened.wait_for_selector(".compare-reason:not([hidden])")
    reason = opened.locator(".compare-reason").inner_text()
    assert "only if A and B have the same number of tokens (A has 700 × 700, B has 660 × 660)" in reason
    assert opened.locator(".compare-note").inner_text() == "660 of 700 tokens are in both (40 only in A)."
    assert opened.locator(".compare-panel.b").is_visible()
    assert opened.locator(".compare-panel.difference").is_hidden()
    opened.wait_for_selector(".compare-ranking", state="hidden")


def test_texts_without_a_common_token_have_no_difference(open_pair):
    opened = open_pair(encoder_recording(("x", "y")), encoder_recording(("z",), 1), ranked=False)
    opened.wait_for_selector(".compare-reason:not([hidden])")
    assert opened.locator(".compare-reason").inner_text() == "No token is in both, so there is no difference to show."
    assert opened.locator(".compare-note").inner_text() == "0 of 2 tokens are in both (2 only in A, 1 only in B)."


def test_a_narrow_window_holds_all_of_it(open_pair, pair):
    opened = open_pair(
        pair[0].replace(title="A long title of the first text, for which two lines of a phone are not enough"),
        pair[1],
        width=400,
    )
    assert opened.locator("h1").evaluate("node => node.scrollHeight <= node.clientHeight")
    assert opened.locator("h1").bounding_box()["height"] > 60
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tops = opened.locator(".compare-panel").evaluate_all("nodes => nodes.map((node) => node.offsetTop)")
    assert tops == sorted(set(tops))  # one below the other


def test_words_are_compared_though_their_subwords_differ(open_pair):
    tokens = (*TOKENS_A[:4], "▁tired", *TOKENS_A[6:])
    a, b = encoder_recording(TOKENS_A, 0), encoder_recording(tokens, 1)
    opened = open_pair(a, b, "#layer=encoder.0&head=1&unit=words")
    expect(opened.locator(".compare-note")).to_have_text("7 of 7 words are in both.")
    point_at(opened, "difference", 1, 4)
    in_a, in_b = exact_weights(a, "encoder.0", 1)[1, 4:6].sum(), exact_weights(b, "encoder.0", 1)[1, 4]
    assert tip(opened) == {"A": printed(in_a), "B": printed(in_b), "B − A": printed_difference(in_b - in_a)}
    opened.select_option("#unit", "tokens")
    expect(opened.locator(".compare-note")).to_have_text("6 of 8 tokens are in both (2 only in A, 1 only in B).")


def test_the_ranking_follows_what_is_hidden(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.0&head=0&hide=first")
    point_at(opened, "difference", 1, 0)
    expect(opened.locator("#compare .tip")).to_contain_text("none: hidden")
    before = ranking(opened)
    opened.evaluate("location.hash = '#layer=encoder.0&head=0'")
    opened.wait_for_function(
        "before => +document.querySelector('.compare-entry').dataset.mean !== before", arg=before[0][2]
    )
    assert {each[:2] for each in ranking(opened)} == {each[:2] for each in before}


def test_the_page_says_that_it_compares_and_opens_on_the_greatest_difference(open_pair, pair):
    opened = open_pair(*pair)
    assert opened.locator("h1").text_content() == "A: One text / B: Another text"
    color = "node => getComputedStyle(node).color"
    letters = [opened.locator(f".compare-panel.{side} figcaption b").evaluate(color) for side in "ab"]
    assert opened.locator(".compare-ends span").evaluate_all(f"nodes => nodes.map({color})") == letters
    assert "all other views, the small maps and the lists show A alone" in opened.locator("#sides").text_content()
    first = opened.locator(".compare-entry").first
    expect(first).to_have_attribute("aria-selected", "true")
    means = opened.locator(".compare-entry").evaluate_all("nodes => nodes.map(node => +node.dataset.mean)")
    assert means[0] == max(means)
    assert opened.locator(".head-name").text_content() == first.get_attribute("title")
    by_link = open_pair(*pair, "#layer=encoder.0&head=1")
    assert by_link.locator(".head-name").text_content() == "encoder.0, head 1"


def test_a_and_b_are_swapped_in_all_views(open_pair, pair):
    fragment = "#layer=encoder.0&head=1&views=text,compare"
    opened = open_pair(*pair, fragment)
    point_at(opened, "difference", 1, 3)
    before = tip(opened)
    opened.get_by_role("button", name="Swap A and B").press("Enter")
    expect(opened.locator("h1")).to_have_text("A: Another text / B: One text")
    expect(opened.get_by_role("button", name="Swap A and B")).to_be_focused()
    expect(opened.locator("#sides")).to_contain_text("show A alone (Another text).")
    assert opened.locator("#text .token").all_text_contents() == [label(token) for token in TOKENS_B]
    point_at(opened, "difference", 1, 3)
    assert tip(opened) == {
        "A": before["B"],
        "B": before["A"],
        "B − A": before["B − A"].translate(str.maketrans("+−", "−+")),
    }
    expect(opened).to_have_url(re.compile("swap=1"))
    opened = open_pair(*pair, f"{fragment}&swap=1")
    expect(opened.locator("h1")).to_have_text("A: Another text / B: One text")
    opened.evaluate("location.hash = 'layer=encoder.0&head=1'")
    expect(opened.locator("h1")).to_have_text("A: One text / B: Another text")
    assert opened.locator("#sides button").count() == 1


def test_one_recording_has_one_title(open_page, pair):
    opened = open_page(pair[0])
    assert opened.locator("h1").text_content() == "One text"
    assert not opened.locator("#sides").is_visible()
