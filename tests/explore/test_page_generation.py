"""The text as it was made, step by step, in a real Chromium."""

from __future__ import annotations

import pytest

import regard
from explore.opened import as_shown, layer_of, number_of, settle, token
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore.codes import ERROR

pytestmark = pytest.mark.browser


def tints(page, line: int) -> dict[int, float]:
    """The tint of each token of a line that has one; 0 is the source, where there is one."""
    found = (
        page.locator(".made-text")
        .nth(line)
        .locator(".piece")
        .evaluate_all(
            """nodes => nodes.filter(node => node.style.getPropertyValue("--attended") && node.offsetParent)
            .map(node => [Number(node.dataset.index), Number(node.style.getPropertyValue("--attended"))])"""
        )
    )
    return dict(found)


def visible(page, line: int, name: str = "piece") -> list[str]:
    return [
        node.text_content()
        for node in page.locator(".made-text").nth(line).locator(f".{name}").all()
        if node.is_visible()
    ]


def step_is(page, number: int) -> None:
    page.wait_for_function(
        "text => document.querySelector('.made .hint').textContent.startsWith(text)", arg=f"Step {number} "
    )


def causal(count: int) -> Recording:
    """A recording of a decoder that reads what it is given."""
    import torch

    generator = torch.Generator().manual_seed(count)
    query, key = (torch.randn(1, 2, count, 8, generator=generator) for _ in range(2))
    words = tuple(f"▁w{place}" for place in range(count))
    weights = regard.weights(3 * query, key, mask=regard.Causal())
    return Recording("a text", "a model", (Layer("layers.0", "decoder", weights, words, words),))


def test_a_decoder_that_reads_what_it_is_given_looks_at_the_source_too(open_page, recording):
    """As in training: the decoder's rows are the tokens that it read."""
    read = layer_of(recording, "decoder.1").key_tokens
    given = [layer.replace(query_tokens=read) if layer.kind != "encoder" else layer for layer in recording.layers]
    page = open_page(recording.replace(layers=given), "#views=generation&layer=cross.1&head=2&step=3")
    step_is(page, 4)
    exact = layer_of(recording, "cross.1").weights[0, 2, 3]
    assert max(tints(page, 0), key=tints(page, 0).get) == int(exact.argmax())
    assert "Step 4 of 10 reads" in page.locator(".made").inner_text()
    assert page.locator("#head-note").text_content().startswith("Each row is a token that was read; it attends to the")
    assert "takes no part" not in page.locator(".made").inner_text()


@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_step_shows_what_it_attended_to_what_it_wrote_and_what_was_to_come(open_page, recording, step):
    page = open_page(recording, f"#views=generation&layer=decoder.1&head=2&step={step}")
    layer = layer_of(recording, "decoder.1")
    step_is(page, step + 1)
    words = [piece.removeprefix("▁") for piece in layer.query_tokens]
    assert page.locator(".made-token").text_content() == words[step]
    assert page.locator(".made .hint").first.text_content() == f"Step {step + 1} of 10 writes"
    assert visible(page, 1) == ["<s>", *words]
    assert visible(page, 1, "now") == [words[step]]
    assert visible(page, 1, "later") == words[step + 1 :]
    shown = tints(page, 1)
    assert set(shown) == set(range(step + 1))
    for key, tint in shown.items():
        weight = layer.weights[0, 2, step, key].item()
        assert tint**2 == pytest.approx(weight, rel=ERROR[0] + 0.002, abs=ERROR[1] + 0.0011)
    assert tints(page, 0) == {}
    best = layer.weights[0, 2, step].argmax().item()
    told = page.locator(".made .hint").last.text_content()
    value = float(told.split(",")[0].split()[-1])
    assert value == as_shown(layer.weights[0, 2, step, best].item())


def test_cross_attention_tints_the_source(open_page, recording):
    page = open_page(recording, "#views=generation&layer=cross.0&head=1&step=3")
    weights = layer_of(recording, "cross.0").weights[0, 1, 3]
    step_is(page, 4)
    shown = tints(page, 0)
    assert len(shown) == len(weights)
    assert max(shown, key=shown.__getitem__) == weights.argmax()
    assert tints(page, 1) == {}


def test_a_head_that_takes_no_part_says_so(open_page, recording):
    page = open_page(recording, "#views=generation&layer=encoder.0&head=1&step=3")
    step_is(page, 4)
    assert "encoder.0 takes no part in these steps" in page.locator(".made").text_content()
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


def test_a_row_that_is_held_elsewhere_is_the_step(open_page, recording):
    page = open_page(recording, "#views=text,generation&layer=decoder.1&head=2&step=1")
    step_is(page, 2)
    token(page, 1, 6).click()
    step_is(page, 7)
    token(page, 0, 2).click()  # a key is no step
    step_is(page, 7)


def test_pointing_at_a_token_tells_its_weight_and_a_click_goes_to_its_step(open_page, recording):
    page = open_page(recording, "#views=matrix,generation&layer=decoder.1&head=2&step=5")
    step_is(page, 6)
    text = page.locator(".made-text").nth(1)
    text.locator('[data-part="0"][data-index="2"]').hover()
    settle(page)
    exact = layer_of(recording, "decoder.1").weights[0, 2, 5, 2].item()
    assert number_of(page.locator(".tip .value").text_content()) == as_shown(exact)
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
    assert page.locator(".piece").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    page.get_by_role("button", name="Play").click()  # from the beginning
    step_is(page, 1)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(1000)
    step_is(page, 1)


def test_a_decoder_that_reads_what_is_given_says_so(open_page):
    recording = causal(7)
    page = open_page(recording, "#views=text,generation&head=1&step=4")
    step_is(page, 5)
    assert page.locator(".made .hint").first.text_content() == "Step 5 of 7 reads"
    assert "each step is a token that was read" in page.locator(".generation .note").last.text_content()
    assert visible(page, 1) == [f"w{place}" for place in range(7)]
    assert visible(page, 1, "now") == ["w4"]
    assert visible(page, 1, "later") == ["w5", "w6"]
    assert set(tints(page, 1)) == set(range(5))
    page.locator(".made-text").nth(1).locator(".piece").nth(2).click()
    step_is(page, 3)
    assert token(page, 0, 2).get_attribute("aria-selected") == "true"


@pytest.mark.parametrize(("given", "shown"), [("999999999", 10), ("-1", 1), ("x", 1)])
def test_a_step_that_there_is_not(open_page, recording, given, shown):
    page = open_page(recording, f"#views=generation&step={given}")
    step_is(page, shown)


def test_a_long_text_is_stepped_through_in_its_own_scroller(open_page):
    page = open_page(causal(900), "#views=generation&step=890&token=source.890", width=400)
    step_is(page, 891)
    frame = page.locator(".generation .scroller")
    assert frame.evaluate("node => node.scrollTop > 0 && node.scrollHeight > node.clientHeight")
    node = page.locator(".generation .now").bounding_box()
    assert frame.bounding_box()["y"] <= node["y"] <= frame.bounding_box()["y"] + frame.bounding_box()["height"]
    assert page.evaluate("window.scrollY") == 0
    assert "on others, which this file does not name" in page.locator(".made").text_content()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_there_is_none_without_a_decoder(open_page, recording):
    page = open_page(recording.replace(layers=recording.layers.by_kind("encoder")))
    assert page.get_by_role("button", name="Generation").count() == 0
