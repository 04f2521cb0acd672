"""Rows, columns, regions and rankings on a page equal Python's numbers: from a file, from a server, in every unit."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch

import regard
from helpers.explore import serving
from helpers.explore.displayed_weights import assert_printed, displayed_weights
from helpers.explore.page_actions import settle
from regard.explore.html_page import write_html
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.text.words import word_indices

pytestmark = pytest.mark.browser

TOKENS = (
    "<s>",
    "▁The",
    "▁ani",
    "mal",
    "▁didn",
    "'",
    "t",
    "▁cross",
    "▁the",
    "▁street",
    ",",
    "▁it",
    "▁was",
    "▁too",
    "▁ti",
    "red",
    ".",
    "</s>",
)
LONG = ("<s>", *(f"▁word{n // 2}" if n % 2 == 0 else "ly" for n in range(598)), "</s>")


def recording_of(kind: str) -> Recording:
    """A layer of two heads, whose rows the page computes (exact, long), or has stored (stored, sketch)."""
    tokens = LONG if kind in ("long", "sketch") else TOKENS
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(1, 2, len(tokens), 16, generator=generator) for _ in range(2))
    score = regard.SoftCap(regard.ScaledDotProduct(), 20.0) if kind in ("stored", "sketch") else None
    weights = regard.weights(2 * query, key, score=score, mask=regard.Causal())
    return Recording("A text", "a model", (Layer("decoder.0", "decoder", weights, tokens, tokens),))


@pytest.fixture(scope="module", params=["exact file", "stored file", "long file", "exact server", "long server"])
def source(request, tmp_path_factory):
    """A recording, the address of its page, and how far a weight in it may be from the exact one."""
    kind, location = request.param.split()
    recording = recording_of(kind)
    if location == "server":
        with serving.served(recording) as address:
            yield recording, address, 0.0
    else:
        path = write_html(recording, tmp_path_factory.mktemp("page") / "page.html")
        yield recording, path.as_uri(), 1 / 6000 if kind == "stored" else 0.0


FLOAT32 = 1e-6
"""How far a weight of the model may be from that of float64."""

OPTIONS = {
    "plain": {},
    "hidden": {"hide": ("first", "special")},
    "rescaled": {"hide": ("first",), "rescale": True},
    "words": {"words": True},
    "hidden words": {"words": True, "hide": ("first", "special")},
    "rescaled words": {"words": True, "hide": ("first", "special"), "rescale": True},
    "mean": {"heads": (0, 1)},
    "sum": {"heads": (0, 1), "reduce": "sum", "hide": ("first",)},
}


def fragment_of(heads=(0,), reduce="mean", hide=(), rescale=False, words=False, **more: str) -> str:
    fields = {"layer": "decoder.0", "head": ",".join(map(str, heads)), "reduce": reduce, "hide": ",".join(hide)}
    fields |= {"rescale": "1"} if rescale else {}
    fields["unit"] = "words" if words else "tokens"
    return "#" + "&".join(f"{name}={value}" for name, value in {**fields, **more}.items())


CHANGE_HASH = """hash => new Promise(done => {
    if (new URL(hash, location).href === location.href) return done();
    addEventListener("hashchange", done, {once: true}); // after the page's own listener
    location.hash = hash;
})"""


def opened(tab, address: str, fragment: str):
    """The page at a fragment; a page that is open follows it without being loaded again."""
    if tab.url.partition("#")[0] == address.partition("#")[0]:
        tab.evaluate(CHANGE_HASH, fragment)
    else:
        tab.goto(address + fragment)
    tab.wait_for_selector(".panel")
    wait_until_loaded(tab)
    return tab


def wait_until_loaded(tab) -> None:
    settle(tab)
    tab.wait_for_function("() => !/Loading|loading/.test(document.querySelector('#details').textContent)")
    settle(tab)


def listed(tab, panel: int) -> list[tuple[str, str]]:
    """The names and the printed numbers of a list."""
    entries = tab.locator(".panel").nth(panel).locator("li")
    names, values = (entries.locator(part).all_text_contents() for part in (".name", ".value"))
    return list(zip(names, values, strict=True))


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_columns_and_rankings(tab, source, name):
    recording, address, _ = source
    options = OPTIONS[name]
    layer = recording.layers[0]
    heads = options.get("heads", (0,))
    exact = displayed_weights(layer, heads, **{k: v for k, v in options.items() if k != "heads"})
    # The token, and its position among words.
    token = len(layer.query_tokens) - 3

    at = word_indices(layer.query_tokens)[token] if options.get("words") else token
    page = opened(tab, address, fragment_of(**options, token=f"source.{token}"))
    for panel, line in ((0, exact[at]), (1, exact[:, at])):
        line = np.where(np.isnan(line), -1, line)
        order = np.argsort(-line, kind="stable")
        order = order[line[order] >= 0][:8]
        entries = listed(page, panel)
        assert len(entries) == len(order)
        for (_, text), index in zip(entries, order, strict=True):
            assert_printed(text, line[index], FLOAT32)


@pytest.mark.parametrize("name", ["plain", "hidden", "rescaled", "words", "rescaled words", "mean", "sum"])
def test_region(tab, source, name):
    recording, address, _ = source
    options = OPTIONS[name]
    layer = recording.layers[0]
    heads = options.get("heads", (0,))
    exact = displayed_weights(layer, heads, **{k: v for k, v in options.items() if k != "heads"})
    last = len(layer.query_tokens) - 1
    top, bottom, left, right = last - 5, last - 1, 0, last - 4
    page = opened(tab, address, fragment_of(**options, region=f"{top}.{bottom}.{left}.{right}"))
    if options.get("words"):
        words = word_indices(layer.query_tokens)
        top, bottom, left, right = words[top], words[bottom], words[left], words[right]
    expected = np.nansum(exact[top : bottom + 1, left : right + 1])
    cells = (bottom - top + 1) * (right - left + 1)
    assert_printed(listed(page, 0)[0][1], expected, FLOAT32 * cells)


@pytest.mark.parametrize("name", ["plain", "rescaled", "hidden words", "sum"])
def test_csv(tab, source, name):
    recording, address, precision = source
    options = OPTIONS[name]
    layer = recording.layers[0]
    heads = options.get("heads", (0,))
    exact = displayed_weights(layer, heads, **{k: v for k, v in options.items() if k != "heads"})
    token = 7
    page = opened(tab, address, fragment_of(**options, token=f"source.{token}"))
    with page.expect_download() as download:
        page.locator("section.view:visible").first.get_by_role("button", name="as CSV").click()
    text = download.value.path().read_bytes().decode("utf-8-sig")
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]

    at = word_indices(layer.query_tokens)[token] if options.get("words") else token
    actual = {(int(row[0]), int(row[2])): float(row[4]) for row in rows}
    expected = {(q, k) for q, k in np.argwhere(~np.isnan(exact)).tolist() if at in (q, k)}
    assert set(actual) == expected
    for (query, key), weight in actual.items():
        assert weight == pytest.approx(exact[query, key], rel=6e-6, abs=1e-8 if precision == 0 else 8 * precision)


def test_digits_of_a_sketch_are_certain_and_lists_that_may_miss_a_weight_say_so(tab, tmp_path):
    tokens = tuple(f"▁word{n}" for n in range(600))
    generator = torch.Generator().manual_seed(4)
    query, key = torch.randn(2, 1, 4, len(tokens), 16, generator=generator)
    score = regard.SoftCap(regard.ScaledDotProduct(), 20.0)  # which a page cannot compute
    layer = Layer("encoder.0", "encoder", regard.weights(2 * query, key, score=score), tokens, tokens)
    address = write_html(Recording("A text", "a model", (layer,)), tmp_path / "page.html").as_uri()
    names = [token.removeprefix("▁") for token in tokens]
    marked = 0
    for heads, token in [((0,), 17), ((0, 1), 300), ((1, 2, 3), 299), ((0, 1, 2, 3), 512), ((3,), 444)]:
        fragment = fragment_of(heads, token=f"source.{token}").replace("decoder.0", "encoder.0")
        page = opened(tab, address, fragment)
        exact = displayed_weights(layer, heads)
        for panel, line in ((0, exact[token]), (1, exact[:, token])):
            entries = listed(page, panel)
            assert entries
            for name, text in entries:
                assert_printed(text, line[names.index(name)], FLOAT32)
                marked += text.startswith("≈")
            is_ranking = [names.index(name) for name, _ in entries] == np.argsort(-line)[: len(entries)].tolist()
            says_so = "among the weights in this file" in page.locator(".panel h3").nth(panel).inner_text()
            assert is_ranking or says_so
            assert says_so == (panel == 1 or len(heads) > 1)
    assert marked
