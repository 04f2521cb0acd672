"""The translation word by word, in a real Chromium: its lines are the alignment of the recording."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

from explore.opened import settle, token
from regard.analysis import align
from regard.explore.codes import ERROR
from regard.pipelines import Translator

pytestmark = pytest.mark.browser

FOUR_DIGITS = 0.5e-4
"""The rounding of a weight that is written with four."""

FAINTEST = 0.01


def near(shown: float, exact: float, pieces: int = 1) -> bool:
    """Whether a weight that is shown may be the exact one, summed up from so many that are stored."""
    return abs(shown - exact) <= ERROR[0] * exact + ERROR[1] * pieces + FOUR_DIGITS


def texts(page, side: str) -> list[str]:
    return page.locator(f".side.{side} .word:not(.special)").all_text_contents()


def word(page, side: str, text: str):
    return page.locator(f".side.{side} .word").get_by_text(text, exact=True)


def lines(page) -> dict[tuple[str, str], float]:
    """The weights of the lines that are drawn, by source and target word; words are told apart by their text."""
    settle(page)
    return {
        (source, target): weight
        for source, target, weight in page.evaluate(
            """() => {
                const text = (side, index) =>
                    document.querySelector(`.side.${side} [data-index="${index}"]`).textContent;
                return [...document.querySelectorAll(".aligned")].map(({dataset}) =>
                    [text("source", dataset.source), text("target", dataset.target), Number(dataset.weight)]);
            }"""
        )
    }


def held(page) -> list[tuple[int, int]]:
    """What is held in the text view, once it is drawn: line and token."""
    settle(page)
    return page.locator(".tokens").evaluate_all(
        """lines => lines.flatMap((line, place) => [...line.querySelectorAll('[aria-selected="true"]')]
            .map(node => [place, Number(node.dataset.index)]))"""
    )


def fragment_is(page, part: str) -> None:
    page.wait_for_function("part => location.hash.replaceAll('%2C', ',').includes(part)", arg=part)


@pytest.mark.parametrize(
    ("fragment", "heads"),
    [
        ("layer=cross.1&head=2", {"cross.1": [2]}),
        ("layer=cross.1&head=0,2", {"cross.1": [0, 2]}),
        ("layer=cross.0&head=0&aligned=layer", {"cross.0": [0, 1, 2]}),
        ("layer=cross.0&head=0&aligned=all", "mean"),
        ("layer=decoder.0&head=0", "mean"),
    ],
)
def test_pointing_at_a_word_shows_its_alignment(open_page, recording, fragment, heads):
    page = open_page(recording, f"#views=translation&{fragment}")
    exact = align(recording, heads)
    assert texts(page, "target") == list(exact.target)
    assert texts(page, "source") == list(exact.source)
    for row, target in enumerate(exact.target):
        word(page, "target", target).hover()
        settle(page)
        drawn = {
            source: weight for (source, of), weight in lines(page).items() if source in exact.source and of == target
        }
        assert drawn
        assert {of for _, of in lines(page)} == {target}
        for column, source in enumerate(exact.source):
            weight = exact.weights[row, column].item()
            if source in drawn:
                assert near(drawn[source], weight, 4)
            else:
                assert weight < 1.01 * FAINTEST
        best = exact.source[exact.weights[row].argmax()]
        assert (
            word(page, "source", best).get_attribute("data-weight")
            == f"{drawn[best]:.{3 if drawn[best] >= 0.1 else 4}f}"
        )


def test_pointing_at_a_source_word_shows_which_words_it_was_translated_by(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1")
    exact = align(recording, {"cross.1": [1]})
    for column, source in enumerate(exact.source):
        word(page, "source", source).hover()
        settle(page)
        drawn = {
            target: weight for (of, target), weight in lines(page).items() if target in exact.target and of == source
        }
        for row, target in enumerate(exact.target):
            weight = exact.weights[row, column].item()
            assert near(drawn[target], weight, 4) if target in drawn else weight < 1.01 * FAINTEST
    assert page.locator(".aligned.in").count() == page.locator(".aligned").count() > 0


def test_at_rest_each_word_has_a_line_to_its_strongest(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.0&head=0&hidden=special")
    exact = align(recording, {"cross.0": [0]})
    drawn = lines(page)
    for source, target in exact.pairs:
        assert near(drawn[exact.source[source], exact.target[target]], exact.weights[target, source].item(), 4)
    assert "</s>" not in {source for source, _ in drawn}


def test_the_bundled_translator_is_aligned_as_in_python(open_page):
    recording = Translator.load().record("The animal didn't cross the street.", "Das Tier überquerte die Straße nicht.")
    page = open_page(recording, "#views=translation&aligned=all&layer=cross.0", width=2560)
    exact = align(recording)
    assert texts(page, "source") == list(exact.source) == ["The", "animal", "didn't", "cross", "the", "street", "."]
    assert texts(page, "target") == list(exact.target)
    word(page, "target", "Tier").hover()
    settle(page)
    row = exact.target.index("Tier")
    assert near(lines(page)["animal", "Tier"], exact.weights[row, 1].item(), 3)
    assert page.locator(".alignment.columns").count() == 0
    assert page.locator(".told").text_content().startswith("Tier: animal 0.")


def test_holding_a_word_holds_all_its_pieces_everywhere(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    word(page, "target", "müde").click()
    assert held(page) == [[1, 4], [1, 5]]
    word(page, "source", "animal").click(modifiers=["Control"])
    assert held(page) == [[0, 1], [1, 4], [1, 5]]
    fragment_is(page, "token=written.4,written.5,source.1")
    assert word(page, "target", "müde").get_attribute("aria-selected") == "true"
    word(page, "target", "müde").click()
    word(page, "target", "müde").click()
    assert held(page) == []
    assert "müde" in page.locator(".told").text_content()  # at which the mouse still is


def test_what_another_view_points_at_is_aligned_here(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    token(page, 1, 5).hover()  # the second piece of a word
    settle(page)
    assert page.locator(".side.target .word.at").all_text_contents() == ["müde"]
    token(page, 0, 4).click()
    page.mouse.move(0, 0)
    settle(page)
    assert page.locator(".side.source .word.at").all_text_contents() == ["tired"]
    assert page.locator('.side.source .word[aria-selected="true"]').all_text_contents() == ["tired"]


def test_a_cell_of_the_matrix_is_a_pair_of_words(open_page, recording):
    page = open_page(recording, "#views=matrix,translation&layer=cross.1&head=1")
    page.locator("#matrix canvas").focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    told = page.locator(".told")
    expect(told).to_have_text(re.compile("^Tier – animal: "))
    exact = align(recording, {"cross.1": [1]}).weights[1, 1].item()
    assert near(float(told.text_content().rstrip(".").split(": ")[1]), exact)


def test_everything_goes_by_keyboard(open_page, recording):
    page = open_page(recording, "#views=text,translation&layer=cross.1&head=1")
    page.locator("#aligned").focus()
    page.keyboard.press("Tab")
    assert page.locator(":focus").text_content() == "The"
    vertical = page.locator(".alignment.columns").count() > 0
    along, other = ("ArrowDown", "ArrowRight") if vertical else ("ArrowRight", "ArrowDown")
    page.keyboard.press(along)
    page.wait_for_function("() => document.querySelector('.told').textContent.startsWith('animal: ')")
    page.keyboard.press("Enter")
    assert held(page) == [[0, 1]]
    page.keyboard.press(other)
    assert page.locator(":focus").text_content() == "Das"
    page.keyboard.press("End")
    assert page.locator(":focus").text_content() == "n"
    page.keyboard.press("Escape")
    assert held(page) == []


def test_a_link_reopens_what_it_is_aligned_by(open_page, recording):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1")
    page.locator("#aligned").select_option("all")
    fragment_is(page, "aligned=all")
    page = open_page(recording, page.evaluate("() => location.hash"))
    page.wait_for_selector(".aligned")
    assert page.locator("#aligned").input_value() == "all"
    assert "cross.0, cross.1" in page.locator(".translation .controls").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_have_columns_and_nothing_sticks_out(open_page, recording, scheme):
    page = open_page(recording, "#views=translation&layer=cross.1&head=1", width=400, color_scheme=scheme)
    assert page.locator(".alignment.columns").count() == 1
    word(page, "target", "Tier").hover()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    source, target = (page.locator(f".side.{side}").bounding_box() for side in ("source", "target"))
    assert source["x"] + source["width"] < target["x"]


def test_there_is_none_without_cross_attention(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")), "#views=text,translation")
    assert page.get_by_role("button", name="Translation").count() == 0
    assert page.locator(".translation").count() == 0


def test_a_sketch_says_what_it_does_not_name(open_page, make_recording):
    source = tuple(f"▁w{place}" for place in range(300))
    recording = make_recording(source, tuple(f"▁z{place}" for place in range(280)), encoders=0, decoders=1, heads=1)
    page = open_page(recording, "#views=translation&layer=cross.0&head=0")
    weights = align(recording).weights
    word(page, "target", "z5").hover()
    settle(page)
    told = page.locator(".told").text_content()
    best = weights[5].argmax()
    assert told.startswith(f"z5: w{best} ")
    left = float(told.split("; ")[1].split()[0])
    assert left == pytest.approx(1 - weights[5].topk(16).values.sum().item(), abs=0.02)
    assert "which this file does not name" in told
    assert torch.isfinite(weights).all()
