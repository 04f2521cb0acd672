"""A comparison as SVG and CSV: signs, bars, and the cells that both recordings have."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import regard
from helpers.explore.comparison_cases import PAIRS, TOKENS_A, TOKENS_B, encoder_recording, exact_weights
from helpers.explore.saved_files import SVG, bars, boxes_of, rows_of, saved, texts
from regard.explore.html_page import write_html

pytestmark = pytest.mark.browser


def test_the_svg_has_bars_and_the_rows_that_are_wholly_in_sight(open_file, tmp_path):
    a, b = (encoder_recording(tokens, seed, heads=6, layers=7) for seed, tokens in enumerate((TOKENS_A, TOKENS_B)))
    opened = open_file(write_html(a, tmp_path / "compare.html", compare_with=b))
    opened.wait_for_selector(".compare-entry:nth-child(42)")
    opened.locator(".compare-list").evaluate("node => node.scrollTop = 10")
    button = opened.locator("section.view:has(#compare)").get_by_role("button", name="as SVG")
    button.scroll_into_view_if_needed()  # as the click will
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
        for track, share, is_whole in zip(tracks, shares, inside, strict=True)
        if is_whole
    ]
    assert drawn == [pytest.approx(bar, abs=0.05) for bar in meant]


def test_the_svg_has_the_signs_of_the_difference(open_pair, pair):
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    a, b = (exact_weights(recording, "encoder.1", 2) for recording in pair)
    at = opened.locator(".compare-panel.difference .matrix-frame canvas").evaluate("node => ({...node.dataset})")
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
    assert signs == {key: "+" if value > 0 else "−" for key, value in differences.items() if abs(value) >= 0.01}
    assert set(signs.values()) == {"+", "−"}


PLACES = [f"{side} {what}" for side in ("query", "key") for what in ("index A", "index B", "token")]


@pytest.mark.parametrize("score", [None, regard.SoftCap(regard.ScaledDotProduct(), 20.0)], ids=["exact", "stored"])
def test_the_csv_has_the_cells_that_both_have(open_pair, score):
    pair = [encoder_recording(tokens, seed, score=score) for seed, tokens in enumerate((TOKENS_A, TOKENS_B))]
    opened = open_pair(*pair, "#layer=encoder.1&head=2")
    name, data = saved(opened, "compare", "CSV")
    assert name == "regard-encoder.1-head-2-compare.csv"
    header, *rows = rows_of(data)
    assert header[:6] == PLACES
    errors = [1e-6] * 3
    if score is None:
        assert header[6:] == ["A: weight", "B: weight", "B − A: weight"]
    else:
        matches = [
            re.fullmatch(rf"{name}: weight \(± ([\d.]+)\)", text)
            for name, text in zip(("A", "B", "B − A"), header[6:], strict=True)
        ]
        errors = [float(match[1]) for match in matches if match]
        assert len(errors) == 3
        assert max(errors) < 5e-4
    a, b = (exact_weights(recording, "encoder.1", 2) for recording in pair)
    expected = [
        (str(qa), str(qb), TOKENS_A[qa], str(ka), str(kb), TOKENS_A[ka], a[qa, ka], b[qb, kb], b[qb, kb] - a[qa, ka])
        for qa, qb in PAIRS
        for ka, kb in PAIRS
    ]
    for row, cells in zip(rows, expected, strict=True):
        assert tuple(row[:6]) == cells[:6]
        for text, weight, error in zip(row[6:], cells[6:], errors, strict=True):
            assert float(text) == pytest.approx(weight, rel=1e-5, abs=error)


def test_the_csv_is_of_words_in_words_mode_and_without_masked_cells(open_pair):
    """`red` continues `ti`: of seven words six are in both, and each attends to those before it."""
    a, b = (encoder_recording(tokens, seed, mask=regard.Causal()) for seed, tokens in enumerate((TOKENS_A, TOKENS_B)))
    opened = open_pair(a, b, "#layer=encoder.0&head=0&unit=words")
    rows = rows_of(saved(opened, "compare", "CSV")[1])[1:]
    words = [(0, 0, "The"), (1, 2, "animal"), (2, 3, "was"), (3, 4, "too"), (5, 6, "."), (6, 7, "</s>")]
    assert [(int(row[0]), int(row[1]), row[2]) for row in rows if row[3] == "0"] == words
    assert len(rows) == 6 * 7 / 2


def test_the_csv_of_long_texts_has_blocks(open_pair):
    tokens = tuple(f"▁w{index}" for index in range(600))
    a, b = (encoder_recording(tokens, seed, heads=1, layers=1) for seed in (0, 1))
    opened = open_pair(a, b, "#layer=encoder.0&head=0")
    header, *rows = rows_of(saved(opened, "compare", "CSV")[1])
    assert header[:6] == PLACES
    assert header[6].startswith("A: weight (±")
    assert header[6].endswith(", blocks of 3 × 3 tokens")
    assert rows[201][:6] == ["3", "3", "▁w3", "3", "3", "▁w3"]
    weights = a.layers[0].weights.dense()[0, 0, 3:6, 3:6].double()
    assert float(rows[201][6]) == pytest.approx(float(weights.sum() / 3), abs=3e-4)
