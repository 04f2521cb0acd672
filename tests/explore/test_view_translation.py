"""The translation word by word, in a real Chromium: its lines are the alignment of the recording."""

from __future__ import annotations

import csv
import io
import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import layer_of, settle, token
from helpers.explore.page_cases import NOT_COMPUTED
from helpers.explore.serving import served
from helpers.pairwise import everything
from regard.analysis import align, word_weights
from regard.pipelines import Translator

pytestmark = pytest.mark.browser

MIN_WEIGHT = 0.01
"""The smallest weight of a line."""
SMALLEST = 0.0005
"""The smallest weight in a sentence."""


def written(weight: float) -> str:
    """A weight as the page writes it if it can compute it from query and key."""
    return f"{weight:.{3 if weight >= 0.1 else 4}f}"


def near(exact: float):
    return pytest.approx(exact, abs=2e-6)


def words(page, side: str) -> list[str]:
    return page.locator(f".side.{side} .word:not(.special)").all_text_contents()


def word(page, side: str, text: str):
    return page.locator(f".side.{side} .word").get_by_text(text, exact=True)


def lines(page) -> dict[tuple[str, str], float]:
    """The weights of the lines that are drawn, by source and target word; words are identified by their text."""
    settle(page)
    return {
        (source, target): weight
        for source, target, weight in page.evaluate(
            """() => {
                const text = (side, index) =>
                    document.querySelector(`.side.${side} [data-index="${index}"]`).textContent;
                return [...document.querySelectorAll(".aligned")].map(({dataset}) =>
                    [text("source", dataset.key), text("target", dataset.query), Number(dataset.weight)]);
            }"""
        )
    }


def numbers(page, side: str) -> dict[str, str]:
    """The weights next to the words of one side, by word."""
    settle(page)
    nodes = page.locator(f".side.{side} .word[data-weight]")
    return dict(nodes.evaluate_all("nodes => nodes.map(node => [node.textContent, node.dataset.weight])"))


def sentence(page) -> str:
    settle(page)
    return page.locator(".alignment-sentence").text_content()


def saved(page) -> list[list[str]]:
    """The CSV file that the view saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name="as CSV").locator("visible=true").click()
    text = download.value.path().read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))


def selected(page) -> list[tuple[int, int]]:
    """What is selected in the text view, once it is drawn: text and token."""
    settle(page)
    return page.locator(".tokens").evaluate_all(
        """lists => lists.flatMap((list, text) => [...list.querySelectorAll('[aria-selected="true"]')]
            .map(node => [text, Number(node.dataset.index)]))"""
    )


def fragment_is(page, part: str) -> None:
    page.wait_for_function("part => location.hash.replaceAll('%2C', ',').includes(part)", arg=part)


@pytest.mark.parametrize(
    ("fragment", "heads", "factor"),
    [
        ("layer=cross.1&head=2", {"cross.1": [2]}, 1),
        ("layer=cross.1&head=0,2", {"cross.1": [0, 2]}, 1),
        ("layer=cross.1&head=0,2&reduce=sum", {"cross.1": [0, 2]}, 2),
        ("layer=cross.0&head=0&align_by=layer", {"cross.0": [0, 1, 2]}, 1),
        ("layer=cross.0&head=0&align_by=all", "mean", 1),
        ("layer=cross.0&head=0,1&align_by=all&reduce=sum", "mean", 1),
        ("layer=decoder.0&head=0", "mean", 1),
    ],
)
def test_pointing_at_a_word_shows_its_alignment(open_page, recording, fragment, heads, factor):
    page = open_page(recording, f"#views=translation&{fragment}")
    exact = align(recording, heads)
    assert words(page, "target") == list(exact.target)
    assert words(page, "source") == list(exact.source)
    for row, target in enumerate(exact.target):
        word(page, "target", target).hover()
        weights = {source: factor * exact.weights[row, index].item() for index, source in enumerate(exact.source)}
        drawn = lines(page)
        assert {of for _, of in drawn} == {target}
        assert {source: weight for (source, _), weight in drawn.items() if source != "</s>"} == {
            source: near(weight) for source, weight in weights.items() if weight >= MIN_WEIGHT
        }
        numbers_shown = numbers(page, "source")
        numbers_shown.pop("</s>", None)
        assert numbers_shown == {source: written(weight) for source, weight in weights.items() if weight >= 0.05}


def test_pointing_at_a_source_word_shows_which_words_it_was_translated_by(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1")
    exact = align(recording, {"cross.1": [1]})
    for column, source in enumerate(exact.source):
        word(page, "source", source).hover()
        drawn = {target: weight for (_, target), weight in lines(page).items() if target in exact.target}
        weights = {target: exact.weights[index, column].item() for index, target in enumerate(exact.target)}
        assert drawn == {target: near(weight) for target, weight in weights.items() if weight >= MIN_WEIGHT}
    assert page.locator(".aligned.in").count() == page.locator(".aligned").count() > 0


def test_its_sentence_and_the_list_have_the_same_numbers(open_page, recording):
    """A row adds up to 1: four words, and what is left on the others."""
    page = open_page(recording, "#views=translation&layer=cross.1&head=0,1,2&unit=words")
    exact = word_weights(recording, "cross.1")
    for row, target in enumerate(exact.query_words):
        word(page, "target", target).hover()
        weights = sorted(zip(exact.weights[row].tolist(), exact.key_words, strict=True), reverse=True)
        listed = [(weight, name) for weight, name in weights[:4] if weight >= SMALLEST]
        text = ", ".join(f"{'“.”' if name == '.' else name} {written(weight)}" for weight, name in listed)
        rest = 1 - sum(weight for weight, _ in listed)
        more = f"; {written(rest)} on {len(weights) - len(listed)} more" if rest >= SMALLEST else ""
        assert sentence(page) == f"{target}: {text}{more}."
        values = page.locator("#details .value").all_text_contents()[: len(listed)]
        assert values == [written(weight) for weight, _ in listed]


def test_weights_that_the_page_stores_have_the_digits_that_are_true(open_page, recording):
    """With a score function that the page does not compute it has integers, each within 1/6000."""
    cross = layer_of(recording, "cross.1")
    request = cross.weights.request
    capped = regard.weights(
        request.query, request.key, scale=request.scale, score=regard.SoftCap(regard.ScaledDotProduct(), 20.0)
    )
    recording = recording.replace(layers=[cross.replace(weights=capped)])
    page = open_page(recording, "#views=translation&layer=cross.1&head=1")
    exact = align(recording, {"cross.1": [1]})
    for row, target in enumerate(exact.target):
        word(page, "target", target).hover()
        numbers_shown = numbers(page, "source")
        for column, source in enumerate(exact.source):
            weight = exact.weights[row, column].item()
            if source in numbers_shown and source != "tired" and target != "müde":  # of one token each
                assert numbers_shown[source] == f"{weight:.3f}"
            elif source in numbers_shown:
                assert_printed(numbers_shown[source], weight, 1e-6)
            else:
                assert weight < 0.0505


@pytest.mark.parametrize("align_by", ["heads", "layer", "all"])
@pytest.mark.parametrize("rescale", [False, True])
def test_hidden_keys_are_out_and_the_rest_is_rescaled(open_page, recording, align_by, rescale):
    fragment = f"layer=cross.1&head=1&align_by={align_by}&hide=first,special&rescale={int(rescale)}"
    page = open_page(recording, f"#views=translation&{fragment}")
    names = ["cross.0", "cross.1"] if align_by == "all" else ["cross.1"]
    heads = [1] if align_by == "heads" else [0, 1, 2]
    weights = torch.cat([layer_of(recording, name).weights.dense()[0, heads] for name in names]).mean(0)
    weights[:, [0, 7]] = 0  # ▁The, </s>
    if rescale:
        weights /= weights.sum(1, keepdim=True)
    weights = torch.cat([weights[:, :4], weights[:, 4:6].sum(1, keepdim=True), weights[:, 6:7]], 1)
    weights = torch.cat([weights[:4], weights[4:6].mean(0, keepdim=True), weights[6:]])
    for row, target in enumerate(["Das", "Tier", "war", "zu", "müde"]):
        word(page, "target", target).hover()
        exact = dict(zip(["The", "animal", "was", "too", "tired", "."], weights[row].tolist(), strict=True))
        assert {source: weight for (source, _), weight in lines(page).items()} == {
            source: near(weight) for source, weight in exact.items() if weight >= MIN_WEIGHT
        }
    word(page, "source", "The").hover()
    assert sentence(page) == "The: nothing."
    page.locator(".target .word").first.click()
    word(page, "source", "</s>").click(modifiers=["Control"])
    page.mouse.move(0, 0)
    assert sentence(page) == "Das – </s>: hidden."


@pytest.mark.parametrize("words_of", ["", "target", "source"])
def test_its_csv_has_the_weights_of_the_selected_words_or_all(open_page, recording, words_of):
    token = {"": "", "target": "written.4", "source": "source.5"}[words_of]
    page = open_page(recording, f"#views=translation&layer=cross.1&head=1&align_by=layer&token={token}")
    page.wait_for_selector(".aligned")
    exact = word_weights(recording, "cross.1")
    header, *rows = saved(page)
    weight_name = "weight, mean of 3 heads"
    assert header == ["target word index", "target word", "source word index", "source word", weight_name]
    queries = [4] if words_of == "target" else range(len(exact.query_words))
    keys = [4] if words_of == "source" else range(len(exact.key_words))
    assert [row[:4] for row in rows] == [
        [str(query), exact.query_words[query], str(key), exact.key_words[key]] for query in queries for key in keys
    ]
    for query, _, key, _, weight in rows:
        assert float(weight) == near(exact.weights[int(query), int(key)].item())


def test_at_rest_each_word_has_a_line_to_its_strongest(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.0&head=0&hide=special")
    exact = align(recording, {"cross.0": [0]})
    drawn = lines(page)
    expected = {}
    for row, target in enumerate(exact.target):
        weights, columns = exact.weights[row].topk(3)
        for rank, (weight, column) in enumerate(zip(weights.tolist(), columns.tolist(), strict=True)):
            if rank == 0 or weight >= 0.1:
                expected[exact.source[column], target] = near(weight)
    assert {pair: weight for pair, weight in drawn.items() if pair[1] != "</s>"} == expected
    assert "</s>" not in {source for source, _ in drawn}


def test_the_bundled_translator_is_aligned_as_in_python(open_page):
    recording = Translator.load().record("The animal didn't cross the street.", "Das Tier überquerte die Straße nicht.")
    page = open_page(recording, "#views=translation&align_by=all&layer=cross.0", width=2560)
    exact = align(recording)
    assert words(page, "source") == list(exact.source) == ["The", "animal", "didn't", "cross", "the", "street", "."]
    assert words(page, "target") == list(exact.target)
    word(page, "target", "Tier").hover()
    row = exact.target.index("Tier")
    assert lines(page)["animal", "Tier"] == near(exact.weights[row, 1].item())
    assert page.locator(".alignment.columns").count() == 0
    assert sentence(page).startswith(f"Tier: animal {written(exact.weights[row, 1].item())}, ")


def test_selecting_a_word_selects_all_its_subwords_everywhere(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    word(page, "target", "müde").click()
    assert selected(page) == [[1, 4], [1, 5]]
    word(page, "source", "animal").click(modifiers=["Control"])
    assert selected(page) == [[0, 1], [1, 4], [1, 5]]
    fragment_is(page, "token=written.4,written.5,source.1")
    assert word(page, "target", "müde").get_attribute("aria-selected") == "true"
    word(page, "target", "müde").click()
    word(page, "target", "müde").click()
    assert selected(page) == []
    assert sentence(page).startswith("müde: ")  # at which the mouse still is


def test_what_another_view_points_at_is_aligned_here(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    token(page, 1, 5).hover()  # the second subword of a word
    settle(page)
    assert page.locator(".side.target .word.focused").all_text_contents() == ["müde"]
    token(page, 0, 4).click()
    page.mouse.move(0, 0)
    settle(page)
    assert page.locator(".side.source .word.focused").all_text_contents() == ["tired"]
    assert page.locator('.side.source .word[aria-selected="true"]').all_text_contents() == ["tired"]


def test_a_cell_of_the_matrix_is_a_pair_of_words(open_page, recording):
    page = open_page(recording, "#views=matrix,translation&layer=cross.1&head=1")
    page.locator("#matrix canvas").focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    exact = align(recording, {"cross.1": [1]}).weights[1, 1].item()
    expect(page.locator(".alignment-sentence")).to_have_text(f"Tier – animal: {written(exact)}.")
    assert page.locator(".aligned.out:not(.other)").count() == 1


def test_a_cell_of_another_layer_is_two_words_of_the_source(open_page, recording):
    page = open_page(recording, "#views=matrix,translation&layer=encoder.1&head=1")
    page.locator("#matrix canvas").focus()
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".alignment-sentence")).to_have_text(re.compile("^animal: .*; .* from 5 more. was: "))
    assert page.locator(".side.source .word.focused").all_text_contents() == ["animal", "was"]


def test_everything_goes_by_keyboard(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    page.locator("#align-by").focus()
    page.keyboard.press("Tab")
    assert page.locator(":focus").text_content() == "The"
    vertical = page.locator(".alignment.columns").count() > 0
    along, other = ("ArrowDown", "ArrowRight") if vertical else ("ArrowRight", "ArrowDown")
    page.keyboard.press(along)
    expect(page.locator(".alignment-sentence")).to_have_text(re.compile("^animal: "))
    page.keyboard.press("Enter")
    assert selected(page) == [[0, 1]]
    page.keyboard.press(other)
    assert page.locator(":focus").text_content() == "Das"
    page.keyboard.press("End")
    assert page.locator(":focus").text_content() == "n"
    page.keyboard.press("Escape")
    assert selected(page) == []


def test_a_tap_selects_a_word(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1", width=400, has_touch=True)
    word(page, "target", "Tier").tap()
    assert selected(page) == [[1, 1]]
    assert sentence(page).startswith("Tier: ")


def test_a_link_reopens_what_it_is_aligned_by(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1")
    page.locator("#align-by").select_option("all")
    fragment_is(page, "align_by=all")
    page = open_page(recording, page.evaluate("() => location.hash"))
    page.wait_for_selector(".aligned")
    assert page.locator("#align-by").input_value() == "all"
    assert "cross.0, cross.1" in page.locator(".translation .controls").text_content()


def test_only_cross_attention_aligns(open_page, recording):
    page = open_page(recording, "#views=translation&layer=decoder.1&head=1&align_by=heads")
    assert page.locator("#align-by").is_disabled()
    assert page.locator("#align-by").input_value() == "all"
    assert "not a cross-attention head" in page.locator(".translation .controls").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_have_columns_and_nothing_sticks_out(open_page, recording, scheme):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1", width=400, color_scheme=scheme)
    assert page.locator(".alignment.columns").count() == 1
    word(page, "target", "Tier").hover()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    source, target = (page.locator(f".side.{side}").bounding_box() for side in ("source", "target"))
    assert source["x"] + source["width"] < target["x"]


@pytest.mark.parametrize("width", [400, 1280, 2560] if everything() else [400, 2560])
def test_neither_words_nor_their_weights_are_cut(open_page, recording, width):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1&align_by=layer", width=width)
    assert width == 1280 or (page.locator(".alignment.columns").count() == 1) == (width == 400)
    for option in page.locator(".word").all()[::2]:
        option.hover()
        settle(page)
        cut = page.evaluate(
            """() => {
                const frame = document.querySelector(".translation .scroller").getBoundingClientRect();
                const isCut = ([left, right]) => left < frame.left + 2 || right > frame.right - 2;
                const isColumn = document.querySelector(".alignment.columns") !== null;
                return [...document.querySelectorAll(".word")].flatMap((node) => {
                    const box = node.getBoundingClientRect();
                    const width = parseFloat(getComputedStyle(node, "::after").width) || 0;
                    const isSource = node.closest(".source") !== null;
                    const middle = (box.left + box.right) / 2;
                    const weight = !isColumn ? [middle - width / 2, middle + width / 2]
                        : isSource ? [box.left - width, box.left] : [box.right, box.right + width];
                    return isCut([box.left, box.right]) || isCut(weight) ? [node.textContent] : [];
                });
            }"""
        )
        assert cut == []
    assert len(numbers(page, "source")) + len(numbers(page, "target")) > 0
    scroller = page.locator(".translation .scroller")
    assert scroller.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_there_is_none_without_cross_attention(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")), "#views=text,translation")
    assert page.get_by_role("button", name="Translation").count() == 0
    assert page.locator(".translation").count() == 0


def test_a_note_for_what_a_sketch_does_not_store(open_page, make_recording):
    source = tuple(f"▁w{position}" for position in range(300))
    recording = make_recording(
        source, tuple(f"▁z{position}" for position in range(280)), encoders=0, decoders=1, heads=1
    )
    layers = [
        layer.replace(weights=regard.weights(request.query, request.key, mask=request.mask, score=NOT_COMPUTED))
        for layer in recording.layers
        for request in [layer.weights.request]
    ]
    recording = recording.replace(layers=layers)
    page = open_page(recording, "#views=translation&layer=cross.0&head=0")
    weights = align(recording).weights[5]
    word(page, "target", "z5").hover()
    text, rest = sentence(page).split("; ")
    best = weights.topk(4)
    assert text.startswith(f"z5: w{best.indices[0]} {best.values[0]:.3f}, ")
    amount, others = rest.split(" ", 1)
    assert float(amount) == pytest.approx(1 - best.values.sum().item(), abs=4 / 6000 + 0.005)
    assert others == "on others, most of them not stored in this file."
    page.keyboard.press("Tab")
    weakest = int(weights.argmin())
    page = open_page(recording, f"#views=translation&layer=cross.0&head=0&token=written.5,source.{weakest}")
    assert re.fullmatch(rf"z5 – w{weakest}: at most 0\.\d+, not stored in this file\.", sentence(page))


@pytest.mark.parametrize(("align_by", "weight_name"), [("heads", "weight"), ("all", "weight, mean of 4 heads")])
def test_a_server_sends_what_all_heads_need(take_page, make_recording, align_by, weight_name):
    source = tuple(f"▁w{position}" if position % 3 else "x" for position in range(1, 331))
    target = tuple(f"▁z{position}" if position % 3 else "y" for position in range(1, 281))
    recording = make_recording(source, target, encoders=0, decoders=2, heads=2)
    exact = align(recording, "mean" if align_by == "all" else {"cross.0": [0]})
    row = exact.target.index("z5y")
    best = exact.weights[row].topk(4)
    with served(recording) as address:
        page = take_page()
        page.goto(f"{address}#views=translation&layer=cross.0&head=0&align_by={align_by}&token=written.4")
        listed = [
            f"{exact.source[key]} {written(weight)}"
            for weight, key in zip(*map(torch.Tensor.tolist, best), strict=True)
        ]
        rest = 1 - best.values.sum().item()
        expected = f"z5y: {', '.join(listed)}; {written(rest)} on {len(exact.source) - 4} more."
        expect(page.locator(".alignment-sentence")).to_have_text(expected)
        assert lines(page)[exact.source[best.indices[0]], "z5y"] == near(best.values[0].item())
        best = exact.weights[:, 7].topk(1)
        page.goto(f"{address}#views=translation&layer=cross.0&head=0&align_by={align_by}&token=source.10")
        expected = f"{exact.source[7]}: {exact.target[best.indices[0]]} {written(best.values[0].item())}, "
        expect(page.locator(".alignment-sentence")).to_have_text(re.compile(re.escape(expected)))
        header, *rows = saved(page)
        assert header == ["target word index", "target word", "source word index", "source word", weight_name]
        assert [(int(row[0]), int(row[2])) for row in rows] == [(query, 7) for query in range(len(exact.target))]
        assert [float(row[4]) for row in rows] == [near(weight) for weight in exact.weights[:, 7].tolist()]
        page.keyboard.press("Escape")
        page.evaluate("location.hash = location.hash.replace(/&token=[^&]*/, '')")
        settle(page)
        page.get_by_role("button", name="as CSV").locator("visible=true").click()
        expect(page.locator(".exports .hint").locator("visible=true")).to_have_text(re.compile("select some words"))
