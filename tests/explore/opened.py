"""What browser tests do with a page: point at things, and read what is drawn."""

from __future__ import annotations

from regard.analysis.recording import Layer, Recording

FOUR_DIGITS = 0.5e-4
"""The rounding of a weight that is written."""


def layer_of(recording: Recording, name: str) -> Layer:
    return next(layer for layer in recording.layers if layer.name == name)


def point_at(page, query: int, key: int) -> None:
    """Move the mouse to the middle of a cell of the matrix; -1 is the labels."""
    canvas = page.locator("#matrix canvas")
    canvas.scroll_into_view_if_needed()
    place = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    x, y = (place[side] + (index + 0.5) * place["cell"] for side, index in (("left", key), ("top", query)))
    canvas.hover(position={"x": x, "y": y})


def arcs(page, direction: str) -> set[tuple[int, int]]:
    pairs = page.locator(f".arc.{direction}").evaluate_all(
        "nodes => nodes.map(n => [+n.dataset.query, +n.dataset.key])"
    )
    return {(query, key) for query, key in pairs}


def token(page, line: int, index: int):
    return page.locator(".tokens").nth(line).locator(".token").nth(index)
