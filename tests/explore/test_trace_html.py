"""The page of a trace as text: its numbers are those of the trace, and it runs only its own script."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256

import numpy as np
import pytest
import torch

import regard
from helpers.explore.traces import TRACES, tables_of, translator
from regard.errors import InvalidArgument, InvalidFile
from regard.explore import trace_numbers
from regard.explore.trace_html import trace_html, write_trace_html
from regard.explore.trace_selection import select
from regard.explore.trace_view import format_number

HEAD, QUERY = 1, 2


def page_of(name):
    trace = TRACES[name]()
    heads, queries, _ = trace["weights"].shape
    head, query = min(HEAD, heads - 1), min(QUERY, queries - 1)
    return trace, trace_html(trace, head=head, query=query), head, query


def numbers(cells):
    return [float(cell.replace("−∞", "-inf").replace("−", "-")) for cell in cells]


def close(cells, expected):
    expected = expected.float().tolist()[: len(cells)]
    assert numbers(cells) == pytest.approx(expected, abs=6e-5, rel=1e-3)


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="trace">(.*?)</script>', page, re.DOTALL)[1])


@pytest.mark.parametrize("name", TRACES)
def test_weights_and_their_sum_are_those_of_the_trace(name):
    trace, page, head, query = page_of(name)
    (table,) = tables_of(page)["softmax"]
    rows = table[1:-1]
    close([row[3] for row in rows], trace["weights"][head, query])
    assert table[-1][:2] == ["sum", ""]
    close(table[-1][3:4], trace["weights"][head, query].sum()[None])
    powers = torch.tensor(numbers([row[2] for row in rows]))
    assert float(table[-1][2]) == pytest.approx(powers.sum().item(), abs=1e-3)
    assert max(powers) == 1
    scores = trace["masked scores" if "masked scores" in trace else "biased scores" if "biased scores" in trace else
                   "scaled scores" if "scaled scores" in trace else "scores"]  # fmt: skip
    close([row[1] for row in rows], scores[head, query])


@pytest.mark.parametrize("name", TRACES)
def test_queries_keys_and_values_are_those_of_the_trace(name):
    trace, page, head, query = page_of(name)
    tables, heads = tables_of(page), len(trace["weights"])
    query_of_head = trace["query"] if trace["query"].ndim == 2 else trace["query"][head]
    close(tables["query"][0][-1][2:], query_of_head[query])
    for step in ("key", "value"):
        if step not in trace:
            continue
        value = trace[step] if trace[step].ndim == 2 else trace[step][head * len(trace[step]) // heads]
        for row, expected in zip(tables[step][0][1:], value, strict=True):
            close(row[1:], expected)
        strongest = trace["weights"][head, query].argmax()
        close(tables[step][1][-1][2:], value[strongest])
    assert ("rotation" in tables) == ("rotated query" in trace)
    if "rotated query" in trace:
        close(tables["rotation"][0][2][1:], trace["rotated query"][head, query])


@pytest.mark.parametrize("name", TRACES)
def test_products_add_up_to_the_scores(name):
    trace, page, head, query = page_of(name)
    table = tables_of(page)["scores"][-1]
    close([row[1] for row in table[1:]], trace["scores"][head, query])
    for row in table[1:]:
        assert sum(numbers(row[2:])) == pytest.approx(numbers(row[1:2])[0], abs=1e-3)


@pytest.mark.parametrize("name", TRACES)
def test_weighted_values_and_the_output_are_those_of_the_trace(name):
    trace, page, head, query = page_of(name)
    tables = tables_of(page)
    table = tables["weighted-values"][0]
    weighted = trace["weighted values"][head, query]
    for row, expected in zip(table[1:-1], weighted, strict=True):
        close(row[2:], expected)
    close(table[-1][2:], weighted.sum(0))
    if "W_O" in trace:
        close(tables["output"][0][-1][2:], trace["output"][query])
        part = (
            trace["sum of weighted values"][head, query] @ trace["W_O"].unflatten(0, (len(trace["weights"]), -1))[head]
        )
        (row,) = [row for row in tables["output"][0] if row[0] == f"head {head}"]
        close(row[2:], part)
    else:
        assert "output" not in tables


@pytest.mark.parametrize("name", TRACES)
def test_what_comes_before_the_projections_is_that_of_the_trace(name):
    trace, page, _, query = page_of(name)
    tables = tables_of(page)
    sections = {
        "token embedding": "embedding",
        "embedding": "position",
        "embedding norm": "embedding-norm",
        "hidden state": "hidden-state",
        "norm weight": "norm",
        "memory": "memory",
    }
    for step, section in sections.items():
        assert (step in trace) == (section in tables)
    if "embedding" in trace:
        close(tables["position"][0][-1][1:], trace["embedding"][query])
    if "memory" in trace:
        for row, expected in zip(tables["memory"][0][1:], trace["memory"], strict=True):
            close(row[1:], expected)
    if "norm weight" in trace:
        close(tables["norm"][0][-1][1:], trace["input"][query])
    elif "token embedding" not in trace:
        for row, expected in zip(tables["input"][0][1:], trace["input"], strict=True):
            close(row[1:], expected)


def test_a_query_that_attends_to_nothing_has_no_weights():
    page = trace_html(regard.trace(torch.eye(2), mask=torch.tensor([[True, True], [False, False]])), query=1)
    table = tables_of(page)["softmax"][0]
    assert [row[1:4] for row in table[1:-1]] == [["−∞", "0.0000", "0.0000"]] * 2
    assert table[-1][2:4] == ["0.0000", "0.0000"]


def test_sentences_have_the_numbers_of_the_head_and_the_query():
    trace, page, head, query = page_of("encoder.0")
    text = re.sub(r"<[^>]+>", "", page[page.index("<main>") :])
    key = int(trace["weights"][head, query].argmax())
    score, scaled = (format_number(float(trace[name][head, query, key])) for name in ("scores", "scaled scores"))
    assert f"{score} · 1/√8 = {scaled}." in text
    assert f"Here μ is {format_number(float(trace['mean'][query]))}" in text
    first = format_number(float(trace["query"][head, query, 0]))
    assert re.search(rf"Its first feature is .* \+ … \+ .* = {first}\.", text)


def test_the_screens_follow_the_calculation():
    screens = {
        "encoder.0": "embedding position norm query key value scores scale softmax weighted-values output",
        "alibi": "input query key value scores scale bias mask softmax weighted-values output",
        "relative": "input query key value scores scale bias mask softmax distance weighted-values output",
        "llama": "embedding norm query key value rotation scores scale mask softmax weighted-values output",
        "cross.1": "hidden-state norm memory query key value scores scale softmax weighted-values output",
        "recurrent": "input memory query key hidden-layer scores softmax weighted-values",
    }
    for name, expected in screens.items():
        assert " ".join(tables_of(trace_html(TRACES[name]()))) == expected


def test_a_note_names_what_a_decoder_reads():
    page = trace_html(TRACES["decoder.0"](), query="müde")
    text = re.sub(r"<[^>]+>", "", page)
    assert "At the step that writes “müde”, the decoder reads “war”" in text
    assert "The row of “war”" in text


@pytest.mark.parametrize("name", ["encoder.0", "alibi", "recurrent"])
def test_the_packed_numbers_are_those_of_the_trace(name):
    trace, page, _, _ = page_of(name)
    steps = data_of(page)["steps"]
    assert set(trace.names) - set(steps) <= set(trace_numbers.NOT_ON_PAGE)
    for step, packed in steps.items():
        array = np.frombuffer(base64.b64decode(packed["data"]), f"<{'i2' if packed['type'] == 'int16' else 'f4'}")
        actual = torch.from_numpy(array.reshape(packed["shape"]) * (1e-4 if packed["type"] == "int16" else 1.0))
        if step in trace and step != "W_O":
            expected = trace[step]
            limit = 5.1e-5 if packed["type"] == "int16" else 1e-6
            torch.testing.assert_close(actual.double(), expected, atol=limit, rtol=1e-6)


def test_the_page_is_one_file_that_runs_only_its_own_scripts():
    page = trace_html(TRACES["encoder.0"]())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(sha256(content.encode()).digest()).decode() for content in contents]
        assert rules[directive] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert rules["default-src"] == "'none'"
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", page)
    assert not re.search(r"<[^>]* style=", page)


def test_tokens_and_titles_are_text():
    hostile = ["<script>alert(1)</script>", "{query}", "{#scores}", "▁&amp;", '"><b>']
    trace = translator("encoder.0", hostile, hostile)
    page = trace_html(trace)
    assert page.count("<script") == 1 + 4  # the data, and its modules
    assert "<b>" not in page.replace('<div id="choice"><p>Head', "").split("<main>")[1]
    text = tables_of(page)["softmax"][0]
    assert [row[0] for row in text[1:-1]] == ["<script>alert(1)</script>", "{query}", "{#scores}", "&amp;", '"><b>']
    assert "encoder.0 &amp; more" in page


def test_keys_that_occur_several_times_have_their_position():
    source = ["▁the", "▁cat", "▁the", "▁mat", "</s>"]
    page = trace_html(translator("encoder.0", source))
    assert [row[0] for row in tables_of(page)["softmax"][0][1:-1]] == ["the (0)", "cat", "the (2)", "mat", "</s>"]
    assert data_of(page)["labels"]["query"] == ["the", "cat", "the", "mat", "</s>"]


def test_large_traces_have_one_head_or_one_query(monkeypatch):
    trace = TRACES["decoder.0"]()
    everything = trace_numbers.page_numbers(trace, select(trace, 1, 2))
    of_one_head = everything.narrow("head", 1, 1)
    assert data_of(trace_html(trace))["choices"] == {"head": True, "query": True}
    complete = tables_of(trace_html(trace, head=1, query=2))
    for numbers, has_queries, message in (
        (everything, True, "only this head: choose with --head of regard steps"),
        (of_one_head, False, "only this head and query: choose with --head and --query of regard steps"),
    ):
        monkeypatch.setattr(trace_numbers, "MAX_BYTES", numbers.packed_size - 1)
        page = trace_html(trace, head=1, query=2)
        data = data_of(page)
        assert data["choices"] == {"head": False, "query": has_queries}
        assert message in page
        assert sum(len(step["data"]) for step in data["steps"].values()) < numbers.packed_size
        assert data["steps"]["weights"]["shape"] == [1, 6 if has_queries else 1, 6]
        assert tables_of(page) == complete


def test_of_very_large_features_a_page_has_the_first(monkeypatch):
    trace = translator("encoder.0", d_model=80, num_heads=4)
    monkeypatch.setattr(trace_numbers, "MAX_BYTES", 1)
    page = trace_html(trace, head=0, query=0)
    assert "contains the first 64 of 80 features" in page
    close(tables_of(page)["query"][0][-1][2:], trace["query"][0, 0])


def test_of_many_keys_those_with_the_largest_weights_are_shown():
    source = [f"▁word{index}" for index in range(40)]
    trace = translator("encoder.0", source)
    page = trace_html(trace, head=0, query=3)
    rows = tables_of(page)["softmax"][0][1:-1]
    expected = sorted(trace["weights"][0, 3].topk(14).indices.tolist())
    assert [row[0] for row in rows] == [f"word{index}" for index in expected]
    assert "26 more rows" in page


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.12345, "0.1235"),
        (-0.00001, "0.0000"),
        (-0.5, "−0.5000"),
        (12.34567, "12.346"),
        (-123.4567, "−123.46"),
        (4321.123, "4321.1"),
        (-250_000.0, "−2.5e5"),
        (1e12, "1.0e12"),
        (float("-inf"), "−∞"),
        (float("nan"), "–"),
        (0.0, "0.0000"),
    ],
)
def test_numbers_have_about_seven_characters(number, text):
    assert format_number(number) == text


def test_what_cannot_be_written(tmp_path):
    trace = regard.trace()
    path = write_trace_html(trace, tmp_path / "steps.html", query="word 1")
    assert path.read_text(encoding="utf-8") == trace_html(trace, query=0)
    with pytest.raises(InvalidArgument, match=r"query: expected .* got 9"):
        write_trace_html(trace, tmp_path / "steps.html", query=9)
    with pytest.raises(InvalidFile):
        write_trace_html(trace, tmp_path / "no" / "folder" / "steps.html")
