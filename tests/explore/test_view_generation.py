"""The text step by step, as it was read or written, in a real Chromium."""

from __future__ import annotations

import csv
import io

import pytest
import torch

import regard
from helpers.explore.page_actions import layer_of, settle, token
from helpers.explore.page_cases import NOT_COMPUTED
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser


def written(weight: float) -> str:
    """A weight as the page writes it if it can compute it from query and key."""
    return f"{weight:.{3 if weight >= 0.1 else 4}f}"


def tints(page, line: int) -> dict[int, float]:
    """The tint of each token of a line that has one; 0 is the source, where there is one."""
    actual = (
        page.locator(".generated-text")
        .nth(line)
        .locator(".generated-token")
        .evaluate_all(
            """nodes => nodes.filter(node => node.style.getPropertyValue("--attended") && node.offsetParent)
            .map(node => [Number(node.dataset.index), Number(node.style.getPropertyValue("--attended"))])"""
        )
    )
    return dict(actual)


def visible(page, line: int, name: str = "generated-token") -> list[str]:
    return [
        node.text_content()
        for node in page.locator(".generated-text").nth(line).locator(f".{name}").all()
        if node.is_visible()
    ]


def sentence(page) -> str:
    settle(page)
    return page.locator(".generation-step .hint").last.text_content()


def labels(words: list[str]) -> list[str]:
    """Tokens as sentences name them: `de` continues a word, and punctuation is in quotation marks."""
    return [{"de": "·de", "n": "·n", ".": "“.”", "(": "“(”"}.get(word, word) for word in words]


def step_is(page, number: int) -> None:
    page.wait_for_function(
        "text => document.querySelector('.generation-step .hint').textContent.startsWith(text)", arg=f"Step {number} "
    )


def causal(count: int, **options) -> Recording:
    """A recording of a decoder that reads its input."""
    generator = torch.Generator().manual_seed(count)
    query, key = (torch.randn(1, 2, count, 8, generator=generator) for _ in range(2))
    words = tuple(f"▁w{position}" for position in range(count))
    weights = regard.weights(3 * query, key, mask=regard.Causal(), **options)
    return Recording("a text", "a model", (Layer("layers.0", "decoder", weights, words, words),))


def test_a_decoder_that_reads_its_target_attends_to_the_source_too(open_page, recording):
    """As in training: the decoder's rows are the tokens that it read."""
    read = layer_of(recording, "decoder.1").key_tokens
    layers = [layer.replace(query_tokens=read) if layer.kind != "encoder" else layer for layer in recording.layers]
    page = open_page(recording.replace(layers=layers), "#views=generation&layer=cross.1&head=2&step=3")
    step_is(page, 4)
    exact = layer_of(recording, "cross.1").weights[0, 2, 3]
    assert max(tints(page, 0), key=tints(page, 0).get) == int(exact.argmax())
    assert "Step 4 of 10 reads" in page.locator(".generation-step").inner_text()
    assert (
        page.locator("#head-note")
        .text_content()
        .startswith("Each row is a token that the decoder read; it attends to the")
    )
    assert "is not part of these steps" not in page.locator(".generation-step").inner_text()


@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_step_shows_what_it_attended_to_what_it_wrote_and_what_came_later(open_page, recording, step):
    page = open_page(recording, f"#views=generation&layer=decoder.1&head=2&step={step}")
    layer = layer_of(recording, "decoder.1")
    step_is(page, step + 1)
    words = [token.removeprefix("▁") for token in layer.query_tokens]
    assert page.locator(".step-token").text_content() == words[step]
    assert page.locator(".generation-step .hint").first.text_content() == f"Step {step + 1} of 10 writes"
    assert visible(page, 1) == ["<s>", *words]
    assert visible(page, 1, "current") == [words[step]]
    assert visible(page, 1, "later") == words[step + 1 :]
    shown = tints(page, 1)
    assert set(shown) == set(range(step + 1))
    weights = layer.weights.dense()[0, 2, step, : step + 1]
    assert shown == {key: pytest.approx(weight**0.5, abs=0.00051) for key, weight in enumerate(weights.tolist())}
    assert tints(page, 0) == {}
    best = weights.topk(min(3, step + 1))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    named = ", ".join(f"{['<s>', *labels(words)][key]} {written(weight)}" for key, weight in pairs)
    rest = 1 - best.values.sum().item()
    more = f"; {written(rest)} on {step - 2} more" if rest >= 0.0005 and step > 2 else ""
    assert sentence(page) == f"attends most to {named}{more}"


def test_cross_attention_tints_the_source(open_page, recording):
    page = open_page(recording, "#views=generation&layer=cross.0&head=1&step=3")
    weights = layer_of(recording, "cross.0").weights[0, 1, 3]
    step_is(page, 4)
    shown = tints(page, 0)
    assert len(shown) == len(weights)
    assert max(shown, key=shown.__getitem__) == weights.argmax()
    assert tints(page, 1) == {}


def test_a_note_for_heads_that_are_not_shown(open_page, recording):
    page = open_page(recording, "#views=generation&layer=encoder.0&head=1&step=3")
    step_is(page, 4)
    assert "encoder.0 is not part of these steps" in page.locator(".generation-step").text_content()
    assert tints(page, 0) == tints(page, 1) == {}


def test_a_step_points_the_other_views_at_its_row(open_page, recording):
    page = open_page(recording, "#views=text,matrix,generation&layer=decoder.1&head=2")
    slider = page.get_by_role("slider", name="Step")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    step_is(page, 4)
    assert token(page, 1, 3).get_attribute("aria-selected") == "true"
    assert page.locator('.token[aria-selected="true"]').count() == 1
    assert page.locator(".panel h3").first.text_content() == "zu attends to"
    assert slider.get_attribute("aria-valuetext").startswith("Step 4 of 10 writes zu, attends most to ")
    page.get_by_role("button", name="Next step").click()
    page.get_by_role("button", name="Next step").click()
    page.get_by_role("button", name="Previous step").click()
    step_is(page, 5)
    page.wait_for_function("() => location.hash.includes('step=4') && location.hash.includes('token=written.4')")
    again = open_page(recording, page.evaluate("() => location.hash"))
    step_is(again, 5)
    assert again.get_by_role("slider", name="Step").input_value() == "4"


def test_a_row_that_is_selected_in_another_view_is_the_step(open_page, recording):
    page = open_page(recording, "#views=text,generation&layer=decoder.1&head=2&step=1")
    step_is(page, 2)
    token(page, 1, 6).click()
    step_is(page, 7)
    token(page, 0, 2).click()  # a key is not a step
    step_is(page, 7)


def test_pointing_at_a_token_shows_its_weight_and_a_click_goes_to_its_step(open_page, recording):
    page = open_page(recording, "#views=matrix,generation&layer=decoder.1&head=2&step=5")
    step_is(page, 6)
    text = page.locator(".generated-text").nth(1)
    text.locator('[data-part="0"][data-index="2"]').hover()
    settle(page)
    exact = layer_of(recording, "decoder.1").weights[0, 2, 5, 2].item()
    assert page.locator(".tip .value").text_content() == written(exact)
    text.locator('[data-part="0"][data-index="2"]').click()
    step_is(page, 2)  # which wrote it
    text.locator('[data-part="1"][data-index="8"]').click()
    step_is(page, 9)


def test_it_plays_to_the_end_and_then_stops(open_page, make_recording):
    recording = make_recording(written=("▁a", "▁b", "▁c"), encoders=0, decoders=1)
    page = open_page(recording, "#views=generation&layer=decoder.0", reduced_motion="reduce")
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    step_is(page, 2)
    step_is(page, 3)
    page.get_by_role("button", name="Play").wait_for()
    assert page.locator(".generated-token").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    page.get_by_role("button", name="Play").click()  # from the beginning
    step_is(page, 1)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(1000)
    step_is(page, 1)


def test_a_note_for_a_decoder_that_reads_its_input(open_page):
    recording = causal(7)
    page = open_page(recording, "#views=text,generation&head=1&step=4")
    step_is(page, 5)
    assert page.get_by_role("button", name="Step by step", exact=True).get_attribute("aria-pressed") == "true"
    words = page.locator("main").inner_text().lower()
    assert not any(word in words for word in ("generate", "generation"))
    assert page.locator(".generation-step .hint").first.text_content() == "Step 5 of 7 reads"
    assert "each step is a token, which attends to itself" in page.locator(".generation .note").last.text_content()
    assert visible(page, 1) == [f"w{position}" for position in range(7)]
    assert visible(page, 1, "current") == ["w4"]
    assert visible(page, 1, "later") == ["w5", "w6"]
    assert set(tints(page, 1)) == set(range(5))
    page.locator(".generated-text").nth(1).locator(".generated-token").nth(2).click()
    step_is(page, 3)
    assert token(page, 0, 2).get_attribute("aria-selected") == "true"


@pytest.mark.parametrize(("fragment", "shown"), [("999999999", 10), ("-1", 1), ("x", 1)])
def test_a_step_that_does_not_exist(open_page, recording, fragment, shown):
    page = open_page(recording, f"#views=generation&step={fragment}")
    step_is(page, shown)


def test_a_long_text_is_stepped_through_in_its_own_scroller(open_page):
    page = open_page(causal(900, score=NOT_COMPUTED), "#views=generation&step=890&token=source.890", width=400)
    step_is(page, 891)
    frame = page.locator(".generation .scroller")
    assert frame.evaluate("node => node.scrollTop > 0 && node.scrollHeight > node.clientHeight")
    node = page.locator(".generation .current").bounding_box()
    assert frame.bounding_box()["y"] <= node["y"] <= frame.bounding_box()["y"] + frame.bounding_box()["height"]
    assert page.evaluate("window.scrollY") == 0
    assert sentence(page).endswith(" on others, most of them not stored in this file")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_there_is_none_without_a_decoder(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")))
    assert page.get_by_role("button", name="Step by step", exact=True).count() == 0


@pytest.mark.parametrize("rescale", [False, True])
def test_hidden_keys_have_no_tint_and_the_rest_is_rescaled(open_page, recording, rescale):
    fragment = f"layer=cross.1&head=0,2&step=3&hide=first,special&rescale={int(rescale)}"
    page = open_page(recording, f"#views=generation&{fragment}")
    step_is(page, 4)
    weights = layer_of(recording, "cross.1").weights.dense()[0, [0, 2], 3].mean(0)
    total = weights[1:-1].sum().item()
    weights = weights / total if rescale else weights
    shown = tints(page, 0)
    exact = dict(enumerate(weights.tolist()))
    assert shown == {key: pytest.approx(exact[key] ** 0.5, abs=0.00051) for key in range(1, len(exact) - 1)}
    best = weights[1:-1].topk(3)
    rest = (1 if rescale else total) - best.values.sum().item()
    assert sentence(page).startswith("attends most to ")
    assert [text.split()[-1] for text in sentence(page).split(";")[0].split(", ")] == [
        written(weight) for weight in best.values.tolist()
    ]
    assert sentence(page).endswith(f"; {written(rest)} on 3 more")


def test_the_tint_has_the_scale_of_the_page(open_page, recording):
    page = open_page(recording, "#views=generation&layer=cross.1&head=1&step=3&scale=row_max")
    step_is(page, 4)
    weights = layer_of(recording, "cross.1").weights[0, 1, 3]
    exact = (weights / weights.max()).tolist()
    assert tints(page, 0) == {key: pytest.approx(share, abs=0.00051) for key, share in enumerate(exact)}


def test_subwords_of_a_word_stand_together_where_the_step_divides_them(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=2&step=5")
    step_is(page, 6)  # which wrote the second token of müde
    text = page.locator(".generated-text").nth(1).inner_text()
    assert " ".join(text.split()) == "<s> Das Tier war zu müde. </s> (n"


def test_a_tap_goes_to_the_step_of_a_token(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=2&step=5", width=400, has_touch=True)
    step_is(page, 6)
    page.locator(".generated-text").nth(1).locator('[data-part="1"][data-index="7"]').tap()
    step_is(page, 8)


def test_with_ctrl_several_tokens_are_selected(open_page, recording):
    page = open_page(recording, "#views=text,generation&layer=decoder.1&head=2&step=5")
    step_is(page, 6)
    text = page.locator(".generated-text").nth(1)
    for index in (7, 8):
        text.locator(f'[data-part="1"][data-index="{index}"]').click(modifiers=["Control"])
        settle(page)
    selected = page.locator('#text .token[aria-selected="true"]')
    assert selected.evaluate_all("nodes => nodes.map(node => Number(node.dataset.index))") == [7, 8]


def test_its_csv_has_the_weights_of_the_step(open_page, recording):
    page = open_page(recording, "#views=generation&layer=decoder.1&head=1&step=4&hide=first")
    step_is(page, 5)
    with page.expect_download() as download:
        page.get_by_role("button", name="as CSV").locator("visible=true").click()
    text = download.value.path().read_bytes().decode("utf-8-sig")
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    layer = layer_of(recording, "decoder.1")
    assert header == ["query index", "query token", "key index", "key token", "weight"]
    assert [row[:4] for row in rows] == [["4", "▁mü", str(key), layer.key_tokens[key]] for key in range(1, 5)]
    exact = layer.weights[0, 1, 4, 1:5].tolist()
    assert [float(row[4]) for row in rows] == [pytest.approx(weight, abs=2e-6) for weight in exact]
