"""The link that `make demo` prints opens the head that attends from “it” to the animal."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import expect

from helpers.explore.page_actions import choose, layer_of, settle, token
from regard.explore.opening import opening_head, opening_token
from regard.pipelines import Translator
from regard.text import group_into_words

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
SENTENCE = re.search(r'regard show "(.*)"$', MAKEFILE, re.MULTILINE)[1]
FRAGMENT = re.search(r"^IT := (.*)$", MAKEFILE, re.MULTILINE)[1]
FIELDS = dict(field.split("=") for field in FRAGMENT.split("&"))


@pytest.fixture(scope="module")
def translation():
    return Translator.load().record(SENTENCE)


def test_the_link_of_the_demo_selects_it_and_a_head_that_looks_from_it_to_the_animal(translation):
    layer = layer_of(translation, FIELDS["layer"])
    role, _, index = FIELDS["token"].partition(".")
    assert (role, layer.query_tokens[int(index)]) == ("source", "▁it")
    row = layer.weights.at(heads=int(FIELDS["head"]), queries=int(index)).dense().flatten()
    words = {word: row[positions].sum().item() for word, positions in group_into_words(layer.key_tokens)}
    assert max(words, key=words.__getitem__) == "animal"


def test_the_link_of_the_demo_opens_the_ranked_thumbnails(translation, open_page):
    page = open_page(translation, f"#{FRAGMENT}")
    question = page.get_by_role("button", name="Where does “it” look?")
    expect(question).to_have_attribute("aria-pressed", "true")
    layers = translation.layers.by_kind("encoder")
    expect(page.locator(".captioned")).to_have_count(sum(layer.weights.shape[1] for layer in layers))
    expect(page.locator(".head-name")).to_have_text(f"{FIELDS['layer']}, head {FIELDS['head']}")
    expect(token(page, 0, int(FIELDS["token"].partition(".")[2]))).to_have_attribute("aria-selected", "true")


def test_the_opening_sentence_names_a_word_and_is_about_the_head_that_is_selected(translation, open_page):
    page = open_page(translation)
    opening = opening_head(translation)
    layer = translation.layers[opening.layer]
    row = opening_token(layer, opening.head)
    word = next(word for word, positions in group_into_words(layer.query_tokens) if row in positions)
    reason = page.locator("#reason")
    expect(reason).to_have_text(f"{opening.reason} Start with the text: point at “{word}” to see what it attends to.")
    choose(page, "encoder.0, head 0")
    expect(reason).to_be_hidden()


def test_the_captions_of_ranked_thumbnails_are_the_words_that_get_most(translation, open_page):
    page = open_page(translation, f"#{FRAGMENT}")
    expect(page.locator(".captioned").first).to_be_visible()
    captions = [text.split("\n") for text in page.locator(".captioned .caption").all_text_contents()]
    index = int(FIELDS["token"].partition(".")[2])
    best = []
    for layer in translation.layers.by_kind("encoder"):
        words = [(word, at) for word, at in group_into_words(layer.key_tokens) if word.isalpha() or "'" in word]
        for row in layer.weights.at(queries=index).dense()[0, :, 0].double():
            sums = {word + str(at): (row[at].sum().item(), word) for word, at in words if index not in at}
            best.append(max(sums.values()))
    best.sort(reverse=True)
    assert [float(weight) for _, weight in captions] == pytest.approx([weight for weight, _ in best], abs=0.5001e-3)
    assert [word for word, _ in captions] == [word for _, word in best]


def test_the_counts_of_words_filter_the_heads_and_say_which_of_them_is_shown(translation, open_page):
    page = open_page(translation, f"#{FRAGMENT}")
    captions = page.locator(".captioned .caption")
    expect(captions.first).to_be_visible()
    settle(page)
    words = Counter(text.split("\n")[0] for text in captions.all_text_contents())
    buttons = page.locator(".counts button")
    counts = dict(text.rsplit(" ", 1) for text in buttons.all_text_contents())
    assert {word: int(count) for word, count in counts.items()} == words
    assert [*counts.values()] == sorted(counts.values(), key=int, reverse=True)
    total = sum(words.values())
    sentence = f"The head shown is one of the {words['animal']} of {total} that look most at “animal”."
    assert page.locator(".counts .hint").text_content() == sentence
    buttons.filter(has_text="animal").click()
    expect(captions).to_have_count(words["animal"])
    assert {text.split("\n")[0] for text in captions.all_text_contents()} == {"animal"}
    page.wait_for_url("**looks_at=animal*")
    again = open_page(translation, "#" + page.url.partition("#")[2])
    expect(again.locator(".captioned")).to_have_count(words["animal"])
    buttons.filter(has_text="animal").click()
    expect(captions).to_have_count(total)


def test_sorted_thumbnails_name_layer_and_head(translation, open_page):
    page = open_page(translation, f"#{FRAGMENT}")
    expect(page.locator(".captioned").first).to_be_visible()
    names = page.locator(".captioned .thumbnail").evaluate_all("nodes => nodes.map(n => n.getAttribute('aria-label'))")
    shown = page.locator(".caption-head").all_text_contents()
    assert shown == [re.sub(r"encoder\.(\d+), head (\d+)", r"E\1·\2", name) for name in names]
