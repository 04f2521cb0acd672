"""The page of a recording on a server, in a real Chromium: it shows the numbers of the matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from helpers.explore.browser_pages import listening, pages_of
from helpers.explore.page_actions import settle, token
from helpers.explore.serving import served
from regard.analysis.head_scores import head_scores


@pytest.fixture
def open_served(take_page, address) -> Iterator:
    with pages_of(take_page, address) as open_any:

        def open_it(fragment: str = ""):
            page = open_any(fragment)
            page.wait_for_selector("#matrix canvas[data-cell]")
            return page

        yield open_it


def test_a_cell_of_the_served_page_has_the_exact_weight(open_served, long_recording):
    page = open_served("#layer=long&head=1&views=matrix&zoom=300,290,20")
    canvas = page.locator("#matrix canvas")
    data = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    query, key = 300, 291
    x = data["left"] + (key + 0.5 - data["column"]) * data["cell"]
    y = data["top"] + (query + 0.5 - data["row"]) * data["cell"]
    canvas.hover(position={"x": x, "y": y})
    page.locator(".tip .rank", has_text="rank").wait_for()  # its row has come
    weight = float(long_recording.layers[0].weights[0, 1, query, key])
    assert float(page.locator(".tip .value").inner_text()) == pytest.approx(weight, abs=6e-4 if weight >= 0.1 else 6e-5)
    rank = 1 + int((long_recording.layers[0].weights[0, 1, query] > weight).sum())
    assert page.locator(".tip .rank").inner_text().startswith(f"rank {rank} ")


def test_the_readout_of_a_served_token_is_exact(open_served, long_recording):
    page = open_served("#layer=long&head=2&token=source.500")
    page.wait_for_selector(".panel li")
    best = long_recording.layers[0].weights[0, 2, 500].max()
    assert float(page.locator(".panel .value").first.inner_text()) == pytest.approx(float(best), abs=6e-4)
    assert "does not name" not in page.locator("#details").inner_text()


def test_the_maps_of_every_layer_come(open_served):
    page = open_served()
    page.locator(".thumbnail canvas.drawn").nth(4 + 2 + 2 - 1).wait_for()
    assert page.locator(".thumbnail canvas:not(.drawn)").count() == 0


def test_served_heads_are_sorted_by_what_they_do(open_served, long_recording):
    page = open_served("#sort=entropy")
    page.get_by_text("The number is the entropy in nats").wait_for()
    heads = head_scores(long_recording)
    page.locator(".captioned").nth(len(heads["head"]) - 1).wait_for()
    printed = page.locator(".captioned .caption").all_text_contents()
    assert [float(each) for each in printed] == pytest.approx(sorted(heads["entropy"], reverse=True), abs=0.0051)
    assert (
        page.locator("p.hint", has_text="entropy")
        .text_content()
        .endswith("evenly a row is spread, averaged over the rows.")
    )
    page.select_option("#sort", "first_token")
    assert float(page.locator(".captioned .caption").first.text_content()) == pytest.approx(
        max(heads["first_token"]), abs=0.0051
    )


def test_the_graph_of_a_served_text_is_that_of_rollout(open_served, long_recording):
    page = open_served("#layer=long&head=0&token=source.599&views=matrix,graph")
    page.locator("#graph .shares li").first.wait_for()
    shares = torch.zeros(150)
    shares[-1] = 1.0
    for index in (2, 0):  # in blocks of four tokens
        heads = long_recording.layers[index].weights.dense()[0].mean(0)
        blocks = heads.unflatten(0, (150, 4)).mean(1).unflatten(1, (150, 4)).sum(2)
        shares = 0.5 * shares + 0.5 * shares @ blocks
    printed = [float(text) for text in page.locator("#graph .shares .value").all_inner_texts()]
    assert printed == pytest.approx(shares.topk(len(printed)).values.tolist(), rel=0.02, abs=1e-4)


def test_the_sum_of_a_region_is_exact(open_served, long_recording):
    page = open_served("#layer=long&head=1&region=300.304.200.204&views=matrix")
    page.locator(".panel", has_text="Sum of its weights").wait_for()
    exact = long_recording.layers[0].weights[0, 1, 300:305].double()[:, 200:205].sum()
    assert float(page.locator(".panel .value").first.inner_text()) == pytest.approx(float(exact), abs=6e-4)


def test_one_message_when_the_server_has_ended(take_page, long_recording):
    requested: list[str] = []
    with served(long_recording) as address:
        page = take_page()
        page.goto(address + "#layer=long&head=1&views=matrix&sort=entropy")
        page.locator(".captioned").nth(7).wait_for()  # the last that it requests by itself
        assert page.get_by_role("alert").count() == 0
    with listening(page, request=lambda request: requested.append(request.url)):
        page.evaluate("location.hash = '#layer=long&head=3&zoom=300,290,20&views=matrix&token=source.500'")
        page.get_by_role("alert").wait_for()
        page.wait_for_timeout(1000)
    assert 0 < len(requested) < 8
    assert "attends to nothing" not in page.locator("#details").text_content()


TINTS = """name => [...document.querySelectorAll("#text .token")].map(node => node.style.getPropertyValue(name))"""


def test_what_is_in_sight_of_a_long_text_is_tinted(open_served, long_recording):
    """As styles of all tokens would take long to change; what comes into sight has its tint, too."""
    page = open_served("#views=text,matrix&layer=long&head=0&token=source.20")
    exact = [f"{round(20 * weight**0.5) / 20:.2f}" for weight in long_recording.layers[0].weights[0, 0, :, 20].tolist()]
    expected = ["" if tint == "0.00" else tint for tint in exact]
    page.locator(f"#text .token[style*='--attending: {expected[21]}']").first.wait_for()
    settle(page)
    tints = page.evaluate(TINTS, "--attending")
    assert tints[20:60] == expected[20:60]
    assert not any(tints[500:])
    page.locator("#text .scroller").evaluate("node => node.scrollTo(0, node.scrollHeight)")
    settle(page)
    tints = page.evaluate(TINTS, "--attending")
    assert tints[560:] == expected[560:]
    assert any(tints[560:])
    assert not any(tints[20:60])


def test_a_text_changes_only_the_tokens_that_look_different(open_served):
    page = open_served("#views=text,matrix&layer=long&head=0&token=source.300")
    page.wait_for_function("() => document.querySelectorAll('.token[style]').length > 20")
    settle(page)
    page.evaluate(
        """() => {
            window.changed = new Set();
            const note = (records) => records.forEach(({target}) => window.changed.add(target));
            new MutationObserver(note).observe(document.querySelector("#text"), {subtree: true, attributes: true});
        }"""
    )
    page.get_by_role("button", name="Matrix", exact=True).click()  # an update of all views
    settle(page)
    assert page.evaluate("window.changed.size") == 0
    token(page, 0, 301).hover()
    settle(page)
    assert page.evaluate("window.changed.size") > 20
