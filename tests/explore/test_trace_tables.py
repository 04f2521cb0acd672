"""A trace in the terminal: what fits, what is counted, and what one head and one query leave."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console

import regard
from regard.errors import InvalidArgument
from regard.explore.trace_tables import step_tables, trace_table
from regard.text import display_tokens
from regard.tracing import trace_layer


def drawn(trace, width=80, **options):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(trace_table(trace, **options))
    return console.export_text()


def step_of(trace, name):
    return next(step for step in trace if step.name == name)


def test_every_number_has_four_decimals():
    text = drawn(regard.trace())
    assert "word 3  0.2393  0.0007  0.7592  0.0007" in text
    for step in regard.trace().names:
        assert f"  {step}: " in text


def test_each_step_is_explained():
    text = " ".join(drawn(regard.trace()).split())
    for step in regard.trace():
        assert step.explanation in text
    assert "Divided by √3 ≈ 1.732 it does not depend on that" in text


def test_a_narrow_terminal_puts_keys_below_and_counts_features():
    layer = regard.nn.MultiHeadAttention(16, 2)
    names = ["▁The", "▁cat", "s", "▁sat", ".", "</s>"]
    text = drawn(trace_layer(layer, torch.randn(1, 6, 16), tokens=names, mask=regard.Causal()), width=40)
    scores = text[text.index("scores: S = Q Kᵀ") : text.index("scaled scores")]
    assert re.findall(r"^ +The .*|^ +sat .*", scores, re.MULTILINE)  # the keys in two tables, and all of them
    assert all(len(re.findall(rf"\s{name}\s", scores)) >= 2 for name in ("The", "cat", "s", "sat", "</s>"))
    assert "… and 8 more rows" in text
    assert re.search(r"… and \d+ more columns", text)
    assert max(map(len, text.splitlines())) <= 40


def test_parts_of_a_step_are_labeled():
    trace = trace_layer(regard.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4), tokens=["a", "b", "c"])
    tables = step_tables(step_of(trace, "weighted values"), queries=[1], heads=[0, 1])
    assert [table.caption for table in tables] == ["head 0, query b", "head 1, query b"]
    with pytest.raises(InvalidArgument, match=r"heads: expected indices from 0 to 1, got \[5\]"):
        trace_table(trace, heads=[5])


def test_one_query_is_one_row_with_all_its_keys():
    trace = trace_layer(regard.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4), tokens=["a", "b", "c"])
    shown = {
        "input": ("b", "0123"),
        "query": ("b", "01"),
        "key": ("abc", "01"),
        "weights": ("b", "abc"),
        "output": ("b", "0123"),
    }
    for name, (rows, columns) in shown.items():
        (table,) = step_tables(step_of(trace, name), queries=[1], heads=[1])
        assert (table.rows, table.columns) == (tuple(rows), tuple(columns))
    (weights,) = step_tables(step_of(trace, "weights"), queries=[1], heads=[1])
    assert weights.numbers == [trace["weights"][1, 1].tolist()]
    (mean,) = step_tables(step_of(trace, "sums"), queries=[1], heads=[1])
    assert mean.numbers == [[trace["sums"][1, 1].item()]]


def test_a_head_is_shown_with_the_keys_that_it_shares():
    layer = regard.nn.MultiHeadAttention(8, 4, num_kv_heads=2)
    trace = trace_layer(layer, torch.randn(1, 3, 8))
    (key,) = step_tables(step_of(trace, "key"), heads=[3], num_heads=4)
    assert key.numbers == trace["key"][1].tolist()
    text = drawn(trace, heads=[3], queries=[0])
    assert f"{trace['key'][1, 2, 1]:.4f}".replace("-", "−") in text[text.index("key: K =") : text.index("value: V =")]


def test_tokens_are_labeled_as_everywhere_else():
    tokens = ["The", "ĠcafÃ©", "gar@@", "den", "dog</w>", "Ċ"]
    x = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    trace = trace_layer(regard.nn.MultiHeadAttention(4, 1), x, tokens=tokens)
    (table,) = step_tables(step_of(trace, "weights"))
    assert list(table.rows) == display_tokens(tokens)
    assert table.rows[:2] == ("The", "café")
