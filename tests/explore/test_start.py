"""Start here: eight stops of the playground, whose numbers and claims are those of NumPy and of the model."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from helpers.explore.axe import VIOLATIONS
from helpers.explore.page_actions import settle
from helpers.pairwise import each_value
from regard.explore.playground import EXAMPLE, write_playground
from regard.pipelines import Translator

pytestmark = pytest.mark.browser

TABLES = """nodes => nodes.map(table => [
    table.caption.textContent,
    [...table.rows].map(row => [...row.querySelectorAll("td")].map(cell => cell.textContent)).filter(row => row.at(-1)),
])"""


def written(numbers: np.ndarray) -> list[list[str]]:
    return [[f"{value:.0f}" if value == int(value) else f"{value:.2f}" for value in row] for row in numbers]


def test_every_number_of_four_words_is_that_of_numpy(open_playground):
    np.random.seed(42)  # noqa: NPY002 - as the example is defined
    w_q, w_k, w_v = (np.random.randint(3, size=(3, 3)) for _ in range(3))  # noqa: NPY002
    words = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    query, key, value = words @ w_q, words @ w_k, words @ w_v
    scores = query @ key.T
    powers = np.exp(scores / 3**0.5)
    sums = powers.sum(1, keepdims=True)
    weights = powers / sums
    expected = [
        words, w_q, query, w_k, key, w_v, value, scores, scores / 3**0.5, powers, sums, weights,
        *(np.vstack([row[:, None] * value, row @ value]) for row in weights),
    ]  # fmt: skip
    page = open_playground("#start=1")
    tables = page.locator(".four-words table").evaluate_all(TABLES)
    assert len(tables) == len(expected)
    for (name, numbers), right in zip(tables, expected, strict=True):
        assert numbers == written(right), name


CHOICES = {"layer": "encoder.2", "head": "0", "token": "source.9"}


def address(page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(page.evaluate("location.hash.slice(1)")).items()}


def arrive(page, number: int) -> None:
    expect(page.locator("#start-title")).to_have_text(re.compile(f"^{number} "))
    page.wait_for_selector("#live-translation:not(.outdated)", state="attached")
    page.wait_for_function(
        f"() => location.hash.includes('start={number}&') || location.hash.endsWith('start={number}')"
    )
    settle(page)


def test_the_stops_are_short_and_back_and_forward_go_over_them(open_playground):
    page = open_playground(height=720)
    assert page.locator(".start").is_hidden()
    page.get_by_role("link", name="Start here").press("Enter")
    arrive(page, 1)
    expect(page.get_by_role("link", name="Next")).to_be_focused()
    texts, addresses = [], []
    for number in range(1, 9):
        arrive(page, number)
        texts.append(page.locator(".start-text").text_content())
        addresses.append(address(page))
        assert page.locator(".start-text").bounding_box()["y"] < 200
        if number < 8:
            page.keyboard.press("ArrowRight" if number % 2 else "Enter")
    for text in texts:
        assert len(re.findall(r"[.?!]( |$)", text)) <= 2, text
        assert len(text) < 300
    assert len({tuple(each.items()) for each in addresses}) == 8
    page.go_back()
    arrive(page, 7)
    assert address(page) == addresses[6]
    page.go_forward()
    arrive(page, 8)
    page.keyboard.press("Escape")
    expect(page.locator(".start")).to_be_hidden()
    expect(page.get_by_role("link", name="Start here")).to_be_focused()
    left = {name: value for name, value in addresses[7].items() if name != "start"}
    page.wait_for_timeout(400)
    assert address(page) == left


def test_the_number_of_a_stop_is_enough(open_playground):
    page = open_playground("#start=4")
    arrive(page, 4)
    page.locator(".stage .step h4", has_text="Scores").wait_for()
    page.wait_for_timeout(400)
    views = {"views": "calculation", "calculation": "scores"}
    assert address(page) == {"start": "4", **CHOICES, "unit": "tokens", **views}
    page.evaluate("location.hash = '#start=5&theme=dark'")
    arrive(page, 5)
    page.locator(".stage .step h4", has_text="Softmax").wait_for()
    page.wait_for_timeout(400)
    views["calculation"] = "softmax"
    assert address(page) == {"start": "5", **CHOICES, "unit": "tokens", **views, "theme": "dark"}
    page.go_back()
    arrive(page, 4)
    expect(page.locator(".stage .step h4")).to_contain_text("Scores")


SEEN = {
    3: "#text .token.focused",
    4: ".stage .step h4",
    5: ".stage .step h4",
    6: ".counts button",
    8: ".choices summary",
}
"""What stops speak of."""


def test_on_phones_the_text_of_a_stop_stays_in_view_next_to_what_it_speaks_of(open_playground):
    page = open_playground("#start=2", width=400, height=800, has_touch=True, is_mobile=True)
    for number, seen in SEEN.items():
        page.locator(".start-ways").get_by_role("link", name=str(number)).click()
        arrive(page, number)
        page.locator(seen).first.wait_for()
        settle(page)
        text, place = page.locator(".start").bounding_box(), page.locator(seen).first.bounding_box()
        assert text["y"] >= 0
        assert text["y"] + text["height"] <= place["y"] < 700, number
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_the_stops_say_is_so(open_playground, translator):
    """The text is cut, a head is switched off, and the next word is chosen as they say."""
    page = open_playground("#start=2&unit=tokens&views=text")
    parts = page.locator("#text .token.part")
    assert parts.all_text_contents() == ["imal", "'t"]
    assert "'·'" in {
        *parts.evaluate_all("n => n.map(m => getComputedStyle(m, '::before').content.replaceAll('\"', \"'\"))")
    }
    assert translator.tokenizer.vocab_size == 5000
    assert translator.model.config.d_model == 256
    for number in (3, 5, 6, 7, 8):
        page.locator(".start-ways").get_by_role("link", name=str(number)).click()
        arrive(page, number)
        text = page.locator(".start-text").text_content()
        if number == 5:
            names = translator.record(EXAMPLE).layers["encoder.2"].key_tokens
            weights = translator.record(EXAMPLE).layers["encoder.2"].weights.dense()[0, 0, 9]
            an, imal = weights[names.index("▁an")], weights[names.index("imal")]
            assert f"{imal:.3f} for ·imal and {an:.3f} for an are the {an + imal:.3f} of" in text
            expect(page.locator(".stage .reading")).to_contain_text(f"= {imal:.4f}.")
        if number == 3:
            original = page.locator("#live-translation").text_content()
            assert page.locator("#details .name").first.text_content() == "animal"
        if number == 6:
            assert page.locator(".counts button").count() > 3
        if number == 7:
            assert "nicht" in original
            assert "nicht" not in page.locator("#live-changed").text_content()
    choices = page.locator(".probabilities li")
    for choice, name in ((choices.nth(0), "es"), (choices.nth(1), "sie")):
        assert choice.inner_text().split()[0] == name
        assert f"{float(choice.locator('.value').text_content()):.2f} to “{name}”" in text
    assert page.locator("#details .name").first.text_content() == "animal"
    looked = [
        translator.record(EXAMPLE).layers[f"cross.{layer}"].weights.dense()[0, :, 10].argmax(-1) for layer in range(3)
    ]
    assert (torch.stack(looked) == 9).float().mean() > 0.5
    page.evaluate("location.hash = 'off=encoder.2.0'")
    expect(page.locator("#live-difference")).to_have_text("The change makes no difference to the text.")


@pytest.mark.parametrize(("theme", "width"), each_value(["light", "dark"], [1280, 400]))
def test_nothing_serious_is_found_by_axe(open_playground, axe, theme, width):
    page = open_playground(f"#start=1&theme={theme}", width=width)
    page.evaluate(axe)
    assert page.evaluate(VIOLATIONS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [link.bounding_box() for link in page.locator(".start-ways a:visible").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= 24  # for fingers


def test_other_models_have_no_stops(open_file, tmp_path, translator):
    other = Translator(translator.model, translator.tokenizer, name="another")
    page = open_file(write_playground(other, tmp_path / "other.html"), "#start=3")
    page.wait_for_selector(".panel")
    assert page.get_by_role("link", name="Start here").count() == 0
    assert page.locator(".start").count() == 0
