"""A trace on screen: what fits, what is counted, and a page that runs no script."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console

import regard
from regard.analysis import trace_layer
from regard.errors import InvalidArgument
from regard.explore.steps import sheets, steps_page, tables, write_steps


def drawn(trace, width=80, **options):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables(trace, **options))
    return console.export_text()


def test_every_number_has_four_decimals():
    text = drawn(regard.trace())
    assert "word 3  0.2393  0.0007  0.7592  0.0007" in text
    for step in regard.trace().names:
        assert f"  {step}: " in text


def test_a_narrow_terminal_puts_keys_below_and_counts_features():
    layer = regard.nn.MultiHeadAttention(16, 2)
    names = ["▁The", "▁cat", "s", "▁sat", ".", "</s>"]
    text = drawn(trace_layer(layer, torch.randn(1, 6, 16), tokens=names, mask=regard.Causal()), width=40)
    scores = text[text.index("scores: S = Q Kᵀ") : text.index("scaled scores")]
    assert re.findall(r"^ +The .*|^ +sat .*", scores, re.MULTILINE)  # the keys in two tables, and all of them
    assert all(len(re.findall(rf"\s{name}\s", scores)) >= 2 for name in ("The", "cat", "·s", "sat", "</s>"))
    assert "… and 8 more rows" in text
    assert re.search(r"… and \d+ more columns", text)
    assert max(map(len, text.splitlines())) <= 40


def test_parts_of_a_step_say_which_they_are():
    trace = trace_layer(regard.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4), tokens=["a", "b", "c"])
    step = trace.steps[trace.names.index("weighted values")]
    captions = [sheet.caption for sheet in sheets(step, queries=[1], heads=[0, 1])]
    assert captions == ["head 0, query b", "head 1, query b"]
    with pytest.raises(InvalidArgument, match=r"heads: there are 2, numbered 0 to 1; got \[5\]"):
        tables(trace, heads=[5])


def test_the_page_is_one_file_that_runs_nothing(tmp_path):
    trace = regard.trace([[1.0, -2.0], [0.5, 3.0]], mask=regard.Causal(), tokens=["<b>", "a & b"])
    page = steps_page(trace)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "−∞" in page
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", page)
    path = write_steps(trace, tmp_path / "steps.html")
    assert path.read_text(encoding="utf-8") == page


@pytest.mark.browser
def test_a_browser_shows_it(open_file, tmp_path):
    page = open_file(write_steps(regard.trace(), tmp_path / "steps.html"))
    assert page.locator("section h2").all_inner_texts()[-1] == "12 output"
    cell = page.locator("#step-12 td").filter(has_text="0.9852")
    assert cell.evaluate("node => getComputedStyle(node).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
