"""Actions of browser tests: pointing at elements and reading what is drawn."""

from __future__ import annotations

import pytest

from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

FOUR_DIGITS = 0.5e-4
"""The rounding of a weight that is written with four decimals."""
SETTLED = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    for (let count = 0; count < 2; count++) await frame();
    while (document.querySelector("#details .lists")?.textContent === "Loading …") await frame();
    for (let count = 0; count < 2; count++) await frame();
}"""


def as_shown(exact):
    """What a weight, or several, may look like: stored within 1/6000, and printed with three decimals."""
    return pytest.approx(exact, rel=2e-3, abs=0.5e-3 + 1 / 6000)


def settle(page) -> None:
    """Wait until what was chosen is read and drawn, which views do in animation frames."""
    page.evaluate(SETTLED)


def layer_of(recording: Recording, name: str) -> Layer:
    return next(layer for layer in recording.layers if layer.name == name)


def place_of(page) -> dict[str, float]:
    """The position of the matrix on its canvas: left, top, the side of a cell, and the first visible row and column."""
    settle(page)
    dataset = page.locator("#matrix canvas").evaluate("node => ({...node.dataset})")
    return {name: float(value) for name, value in dataset.items()}


def spot(page, query: int, key: int) -> tuple[float, float]:
    """The middle of a cell, in pixels of the canvas."""
    drawing = place_of(page)
    x = drawing["left"] + (key + 0.5 - drawing["column"]) * drawing["cell"]
    return x, drawing["top"] + (query + 0.5 - drawing["row"]) * drawing["cell"]


def point_at(page, query: int, key: int) -> None:
    """Move the mouse to the middle of a cell of the matrix; -1 is the labels."""
    canvas = page.locator("#matrix canvas")
    canvas.scroll_into_view_if_needed()
    x, y = spot(page, query, key)
    canvas.hover(position={"x": x, "y": y})
    settle(page)


def arcs(page, direction: str) -> set[tuple[int, int]]:
    settle(page)
    pairs = page.locator(f".arc.{direction}").evaluate_all(
        "nodes => nodes.map(n => [+n.dataset.query, +n.dataset.key])"
    )
    return {(query, key) for query, key in pairs}


def values(within, places: str) -> list[float]:
    """The numbers that are written at some places of a page, or of a part of it."""
    settle(getattr(within, "page", within))
    return [number_of(text) for text in within.locator(places).all_text_contents()]


def number_of(text: str) -> float:
    """The printed number; 0 for a number below the printed precision."""
    return 0.0 if text.startswith("<") else float(text.removeprefix("≈ ").replace("−", "-").replace("+", ""))


def spoken(page) -> str:
    """The text that a screen reader announces for the hovered element."""
    settle(page)
    return page.locator("#details [role=status]").text_content()


def choose(page, head: str) -> None:
    """Click on a small map, as `encoder.0, head 1`."""
    page.get_by_role("gridcell", name=head, exact=True).click()
    settle(page)


def open_options(page) -> None:
    """Unfold the scale, the colors, and what is hidden."""
    page.locator("details.options:not([open]) summary").click()


def token(page, line: int, index: int):
    return page.locator("#text .tokens").nth(line).locator(".token").nth(index)
