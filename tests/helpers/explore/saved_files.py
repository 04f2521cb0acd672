"""Files that a page saves, and what is in them."""

from __future__ import annotations

import csv
import io
import re
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"


def saved(page, view: str, kind: str, timeout: float = 30_000) -> tuple[str, bytes]:
    """Press a button of a view: the name of the file, and its content."""
    with page.expect_download(timeout=timeout) as download:
        page.locator(f"section.view:has(#{view})").get_by_role("button", name=f"as {kind}").click()
    return download.value.suggested_filename, download.value.path().read_bytes()


def status(page, view: str):
    """The message of a view about what it saves, or why it does not."""
    return page.locator(f"section.view:has(#{view}) .exports [role=status]")


def rows_of(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def weights_in(data: bytes) -> dict[tuple[int, int], float]:
    """The weights of a file by query and key, each of which it has once."""
    rows = rows_of(data)[1:]
    weights = {(int(query), int(key)): float(weight) for query, _, key, _, weight in rows}
    assert len(weights) == len(rows)
    return weights


def precision_in(data: bytes) -> float:
    """The error of the weights that the header of a file declares, 0 by default."""
    match = re.search(r" \(± ([\d.]+)\)$", rows_of(data)[0][4])
    return float(match[1]) if match else 0.0


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(node.itertext()) for node in svg.iter(f"{SVG}text")]


def bars(data: bytes, fill: str, height: float) -> list[tuple[float, float, float]]:
    """Left, top and width of the rectangles of a color and a height."""
    rectangles = [node for node in ElementTree.fromstring(data).iter(f"{SVG}rect") if node.get("fill") == fill]
    return [
        (float(node.get("x")), float(node.get("y")), float(node.get("width")))
        for node in rectangles
        if float(node.get("height")) == pytest.approx(height, abs=0.1)
    ]


def boxes_of(page, selector: str) -> list[dict[str, float]]:
    return page.locator(selector).evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().toJSON())")
