"""What is saved of two recordings beside each other: their signs, their bars, and the cells that both have."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import regard
from explore.pairs import ONE, OTHER, PAIRS, encoder_of, stored
from explore.test_page_exports import SVG, bars, boxes_of, rows_of, saved, texts
from regard.explore.page import write_page

pytestmark = pytest.mark.browser


def test_what_is_saved_has_the_signs_and_the_bars_and_whole_rows_only(open_file, tmp_path):
    """Of a list that scrolls the rows are drawn that are in sight whole."""
    one, other = (encoder_of(tokens, seed, heads=6, layers=7) for seed, tokens in enumerate((ONE, OTHER)))
    opened = open_file(write_page(one, tmp_path / "compare.html", compare_with=other))
    opened.wait_for_selector(".compare-entry:nth-child(42)")
    opened.locator(".compare-list").evaluate("node => node.scrollTop = 10")
    frame = boxes_of(opened, ".compare-list")[0]
    entries, tracks, means = (boxes_of(opened, f".compare-entry{part}") for part in ("", " .compare-bar", " .value"))
    inside = [frame["top"] - 1 < box["top"] and box["bottom"] < frame["bottom"] + 1 for box in entries]
    assert 10 < sum(inside) < len(means) == 42
    data = saved(opened, "compare", "SVG")[1]
    svg = ElementTree.fromstring(data)
    assert sum(text.startswith("head ") for text in texts(svg)) == sum(inside)
    shares = opened.locator(".compare-entry").evaluate_all("nodes => nodes.map(node => +node.dataset.mean)")
    muted = opened.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--muted').trim()")
    drawn = bars(data, muted, tracks[0]["height"])
    meant = [
        (track["left"], track["top"], track["width"] * share / max(shares))
        for track, share, whole in zip(tracks, shares, inside, strict=True)
        if whole
    ]
    assert drawn == [pytest.approx(bar, abs=0.05) for bar in meant]


def test_what_is_saved_has_the_signs_of_the_difference(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    a, b = (stored(recording, "encoder.1", 2) for recording in pair)
    at = opened.locator(".compare-panel.difference canvas").evaluate("node => ({...node.dataset})")
    left, top, cell = (float(at[name]) for name in ("left", "top", "cell"))
    differences = {
        (row, column): b[rb, cb] - a[ra, ca]
        for row, (ra, rb) in enumerate(PAIRS)
        for column, (ca, cb) in enumerate(PAIRS)
    }
    svg = ElementTree.fromstring(saved(opened, "compare", "SVG")[1])
    # The group of the panel: a canvas is drawn from its own corner on.
    group = [node for node in svg.iter(f"{SVG}g") if "transform" in node.attrib][-1]
    signs = {
        (
            round((float(node.get("y")) - top) / cell - 0.5),
            round((float(node.get("x")) - left) / cell - 0.5),
        ): node.text
        for node in group.iter(f"{SVG}text")
        if node.text in ("+", "−")
    }
    assert signs == {place: "+" if value > 0 else "−" for place, value in differences.items() if abs(value) >= 0.01}
    assert set(signs.values()) == {"+", "−"}


def test_the_csv_has_the_cells_that_both_have(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    name, data = saved(opened, "compare", "CSV")
    assert name == "regard-encoder.1-head-2-compare.csv"
    header, *rows = rows_of(data)
    places = [f"{side} {what}" for side in ("query", "key") for what in ("index A", "index B", "token")]
    assert header == [*places, "weight A", "weight B", "B − A"]
    a, b = (stored(recording, "encoder.1", 2) for recording in pair)
    meant = [
        (str(ra), str(rb), ONE[ra], str(ca), str(cb), ONE[ca], a[ra, ca], b[rb, cb], b[rb, cb] - a[ra, ca])
        for ra, rb in PAIRS
        for ca, cb in PAIRS
    ]
    for row, cells in zip(rows, meant, strict=True):
        assert tuple(row[:6]) == cells[:6]
        assert [float(cell) for cell in row[6:]] == pytest.approx(cells[6:], abs=1e-5)


def test_the_csv_is_of_words_where_words_are_seen_and_without_what_is_masked(open_pair):
    """`red` goes on `ti`: of seven words five are in both, and each sees those before it."""
    one, other = (encoder_of(tokens, seed, mask=regard.Causal()) for seed, tokens in enumerate((ONE, OTHER)))
    opened = open_pair(one, other, "#layer=encoder.0&head=0&words=1")
    rows = rows_of(saved(opened, "compare", "CSV")[1])[1:]
    words = [(0, 0, "The"), (1, 2, "animal"), (2, 3, "was"), (3, 4, "too"), (5, 6, "."), (6, 7, "</s>")]
    assert [(int(row[0]), int(row[1]), row[2]) for row in rows if row[3] == "0"] == words
    assert len(rows) == 6 * 7 / 2
