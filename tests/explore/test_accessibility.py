"""axe-core finds nothing serious in the page, in every state."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.explore.axe import VIOLATIONS
from helpers.explore.page_actions import settle
from helpers.pairwise import each_value
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def long_recording() -> Recording:
    words = tuple(f"▁word{index}" for index in range(300))
    vectors = torch.randn(2, 1, 2, 300, 8, generator=torch.Generator().manual_seed(0))
    weights = regard.weights(*vectors, mask=regard.Causal())
    return Recording("A long text", "a model", (Layer("decoder.0", "decoder", weights, words, words),))


def serious(page, axe: str) -> list:
    """Violations, after everything that can be opened has been opened."""
    for button in page.locator(".view-buttons button[aria-pressed]").all():
        if button.get_attribute("aria-pressed") == "false":
            button.click()
    for summary in page.locator("summary:visible").all():
        summary.click()
    settle(page)
    page.evaluate(axe)  # as a debugger does: the page's policy refuses scripts from elsewhere
    return page.evaluate(VIOLATIONS)


@pytest.mark.parametrize(("theme", "width"), each_value(["light", "dark"], [1280, 400]))
def test_nothing_serious_is_found_in_a_translation(open_page, recording, axe, theme, width):
    fragment = f"#layer=cross.0&head=1&token=written.2,source.1&region=1.3.2.5&search=Tier&theme={theme}"
    assert serious(open_page(recording, fragment, width=width), axe) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_in_a_long_text(open_page, long_recording, axe, theme):
    fragment = f"#layer=decoder.0&head=0&token=source.200&sort=entropy&hide=first&theme={theme}"
    assert serious(open_page(long_recording, fragment), axe) == []


def test_what_is_wrong_would_be_found(open_page, recording, axe):
    page = open_page(recording)
    page.evaluate("document.querySelector('#sort').labels[0].replaceWith(document.querySelector('#sort'))")
    assert "select-name" in [violation[0] for violation in serious(page, axe)]
