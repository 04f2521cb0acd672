"""The selected weights, and the numbers of a view, as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.browser_pages import listening, pages_of
from helpers.explore.displayed_weights import displayed_weights
from helpers.explore.page_actions import layer_of
from helpers.explore.page_cases import NOT_COMPUTED
from helpers.explore.saved_files import precision_in, rows_of, saved, status, weights_in
from helpers.explore.serving import served
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.text.words import group_into_words

pytestmark = pytest.mark.browser

HEADER = ["query index", "query token", "key index", "key token", "weight"]
LARGE = tuple(f"▁word{number}" for number in range(320))
SELECTED = sorted(torch.randperm(320, generator=torch.Generator().manual_seed(1))[:150].tolist())


def assert_weights(found: dict[tuple[int, int], float], exact: np.ndarray, precision: float = 0.0) -> None:
    """They are exact to six significant digits, or within a stated precision."""
    places = np.array(list(found))
    expected = exact[places[:, 0], places[:, 1]]
    # Half a unit of the sixth digit, and what float32 loses in exp(score - lse).
    np.testing.assert_allclose(list(found.values()), expected, rtol=0 if precision else 8e-6, atol=precision + 1e-9)


def cells_of(exact: np.ndarray) -> set[tuple[int, int]]:
    return set(map(tuple, np.argwhere(~np.isnan(exact)).tolist()))


@pytest.fixture
def stored() -> Recording:
    """Weights that the page cannot compute, between words of several tokens."""
    tokens = ("<s>", "▁The", "▁ani", "mal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
    generator = torch.Generator().manual_seed(5)
    query, key = (torch.randn(1, 3, 10, 8, generator=generator) for _ in range(2))
    weights = regard.weights(query, key, score=regard.SoftCap(regard.ScaledDotProduct(), 20.0), mask=regard.Causal())
    return Recording("t", "m", (Layer("decoder.0", "decoder", weights, tokens, tokens),))


def test_the_weights_of_a_selected_token_are_exact(open_page, recording):
    page = open_page(recording, "#layer=decoder.1&head=2&token=written.5")
    name, data = saved(page, "text", "CSV")
    assert name == "regard-decoder.1-head-2-tokens-de.csv"
    assert data.startswith(b"\xef\xbb\xbf")
    layer = layer_of(recording, "decoder.1")
    header, *rows = rows_of(data)
    assert header == HEADER
    for query, query_token, key, key_token, _ in rows:
        assert (int(query), query_token, key_token) == (5, layer.query_tokens[5], layer.key_tokens[int(key)])
    found = weights_in(data)
    assert set(found) == {(5, key) for key in range(6)}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert_weights(found, displayed_weights(layer, [2]))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_rows_and_columns_of_several_heads_are_saved_once(open_page, recording, reduce):
    page = open_page(recording, f"#layer=encoder.0&head=0,1&token=source.1,source.3&reduce={reduce}")
    name, data = saved(page, "matrix", "CSV")
    assert name == f"regard-encoder.0-head-0-1-{reduce}-tokens-animal-too.csv"
    assert rows_of(data)[0] == [*HEADER[:4], f"weight, {reduce} of 2 heads"]
    found = weights_in(data)
    assert set(found) == {(query, key) for query in range(8) for key in range(8) if {query, key} & {1, 3}}
    assert_weights(found, displayed_weights(layer_of(recording, "encoder.0"), [0, 1], reduce=reduce))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "weight (± 0.0002)"),
        ({"heads": [0, 1, 2]}, "weight, mean of 3 heads"),
        ({"heads": [0, 1, 2], "reduce": "sum"}, "weight, sum of 3 heads"),
        ({"words": True}, "weight"),
        ({"hide": ["first", "special"]}, "weight (± 0.0002)"),
        ({"hide": ["first"], "rescale": True}, "weight, rescaled"),
        ({"hide": ["first"], "rescale": True, "words": True}, "weight, rescaled"),
    ],
)
def test_stored_weights_have_the_digits_that_the_header_promises(open_page, stored, options, name):
    fragment = "&".join(
        [
            f"head={','.join(map(str, options.get('heads', [0])))}",
            f"reduce={options.get('reduce', 'mean')}",
            f"hide={','.join(options.get('hide', []))}",
            *(["rescale=1"] if options.get("rescale") else []),
            *(["unit=words"] if options.get("words") else []),
        ]
    )
    _, data = saved(open_page(stored, f"#{fragment}"), "matrix", "CSV")
    header, *rows = rows_of(data)
    assert header[4].startswith(name)
    precision = precision_in(data)
    assert 0 < precision < 0.01
    exact = displayed_weights(stored.layers[0], **{"heads": [0], **options})
    if options.get("rescale"):
        exact[0] = np.nan  # the first row attends to the hidden key alone
    assert set(weights_in(data)) == cells_of(exact)
    assert_weights(weights_in(data), exact, precision)
    longest = max(len(row[4].partition(".")[2]) for row in rows)
    assert longest == (4 if precision < 0.001 else 3)


def test_rows_that_cannot_be_rescaled_are_not_called_rescaled(open_page, make_weights):
    shares = torch.full((1, 3, 3), 0.25)
    shares[:, :, 0] = 0.5
    shares[:, 1] = torch.tensor([0.9996, 0.0002, 0.0002])
    tokens = ("a", "b", "c")
    recording = Recording("t", "m", (Layer("encoder.0", "encoder", make_weights(shares), tokens, tokens),))
    _, data = saved(open_page(recording, "#hide=first&rescale=1"), "matrix", "CSV")
    assert rows_of(data)[0][4] == "weight, rescaled where possible"
    expected = {0: 0.5, 1: 0.0002, 2: 0.5}
    assert weights_in(data) == {
        (query, key): pytest.approx(weight, rel=1e-5) for query, weight in expected.items() for key in (1, 2)
    }


def test_a_region_and_a_whole_head(open_page, recording):
    page = open_page(recording, "#layer=decoder.0&head=1&region=2.4.1.3&token=written.0")
    name, data = saved(page, "matrix", "CSV")
    assert name == "regard-decoder.0-head-1-region.csv"
    assert list(weights_in(data)) == [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)]
    page = open_page(recording, "#layer=decoder.0&head=1")
    name, data = saved(page, "matrix", "CSV")
    assert name == "regard-decoder.0-head-1-weights.csv"
    exact = displayed_weights(layer_of(recording, "decoder.0"), [1])
    assert set(weights_in(data)) == cells_of(exact)
    assert_weights(weights_in(data), exact)


def test_words_are_saved_as_they_are_displayed(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=1&token=source.4&unit=words")
    name, data = saved(page, "matrix", "CSV")
    assert name == "regard-encoder.0-head-1-words-tokens-tired.csv"
    tokens = layer_of(recording, "encoder.0").query_tokens
    words = [word for word, _ in group_into_words(tokens)]
    assert words[4] == "tired"
    assert {(row[1], row[3]) for row in rows_of(data)[1:]} == {
        pair for word in words for pair in (("tired", word), (word, "tired"))
    }
    assert_weights(weights_in(data), displayed_weights(layer_of(recording, "encoder.0"), [1], words=True))


def test_a_long_text_whose_weights_are_computed_saves_all_of_a_region(open_page, make_recording):
    words = tuple(f"▁word{index}" for index in range(300))
    recording = make_recording(words, words, heads=1)
    page = open_page(recording, "#layer=encoder.0&head=0&region=20.39.50.149")
    found = weights_in(saved(page, "matrix", "CSV")[1])
    assert found.keys() == {(query, key) for query in range(20, 40) for key in range(50, 150)}
    assert_weights(found, layer_of(recording, "encoder.0").weights.dense()[0, 0].numpy())
    assert status(page, "matrix").text_content() == ""


def test_a_sketch_saves_what_it_stores_and_says_so(open_page):
    words = tuple(f"▁word{index}" for index in range(300))
    weights = regard.weights(*torch.randn(2, 1, 1, 300, 8), score=NOT_COMPUTED)
    recording = Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),))
    page = open_page(recording, "#layer=encoder.0&head=0&region=20.39.50.149")
    count = len(rows_of(saved(page, "matrix", "CSV")[1])) - 1
    assert status(page, "matrix").text_content() == (
        f"{count} weights were saved, all that this file stores of the selection. "
        "Weights that are not in the table are not zero."
    )
    assert 0 < count < 20 * 100


def test_all_entries_of_a_sketch_are_saved(open_page):
    torch.manual_seed(0)
    tokens = tuple(f"▁t{index}" for index in range(700))
    weights = regard.weights(2 * torch.randn(1, 1, 700, 8), torch.randn(1, 1, 700, 8), score=NOT_COMPUTED)
    recording = Recording("t", "m", (Layer("a layer/0", "encoder", weights, tokens, tokens),))
    name, data = saved(open_page(recording, "#token=source.300"), "text", "CSV")
    assert name == "regard-a-layer-0-head-0-tokens-t300.csv"
    found, exact = weights_in(data), weights.dense()[0, 0]
    top_keys = exact.topk(16).indices
    rows = {query for query in range(700) if 300 in top_keys[query]}
    assert set(found) == {(300, key) for key in top_keys[300].tolist()} | {(query, 300) for query in rows}
    assert precision_in(data) == 0.0002
    assert_weights(found, exact.numpy(), 0.0002)


def test_a_spreadsheet_runs_nothing_in_it(open_page):
    tokens = ('=HYPERLINK("http://x")', "+1", "-1", "@a", 'a "quoted", one', "two\nlines", "\ttab", "\ud800", "plain")
    weights = regard.weights(torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4))
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#token=source.0")
    cells = {int(key): token for query, _, key, token, _ in rows_of(saved(page, "text", "CSV")[1])[1:] if query == "0"}
    assert cells == {
        0: '\'=HYPERLINK("http://x")',
        1: "'+1",
        2: "'-1",
        3: "'@a",
        4: tokens[4],
        5: tokens[5],
        6: "'\ttab",
        7: "\ufffd",
        8: "plain",
    }


@pytest.fixture(scope="module")
def large() -> Recording:
    """A text of 320 tokens, one that was read from it, and one of words of two tokens: a page has parts of each."""
    generator = torch.Generator().manual_seed(0)

    def attention(heads: int, queries: int, keys: int, **options):
        query, key = (torch.randn(1, heads, length, 8, generator=generator) for length in (queries, keys))
        return regard.weights(2 * query, key, **options)

    written = tuple(f"▁wort{number}" for number in range(150))
    halves = ("<s>", *(f"▁half{number // 2}" if number % 2 else "ves" for number in range(1, 319)))
    layers = (
        Layer("long", "encoder", attention(2, 320, 320), LARGE, LARGE),
        Layer("cross", "cross", attention(1, 150, 320), written, LARGE),
        Layer("words", "decoder", attention(2, 319, 319, mask=regard.Causal()), halves, halves),
    )
    return Recording("t", "m", layers)


@pytest.fixture(scope="module")
def large_address(large) -> Iterator[str]:
    with served(large) as address:
        yield address


@pytest.fixture
def open_large(take_page, large_address):
    with pages_of(take_page, large_address) as open_it:
        yield open_it


def tokens_field(role: str, indices) -> str:
    return ",".join(f"{role}.{index}" for index in indices)


def test_all_rows_and_columns_of_150_selected_tokens_are_saved(open_large, large):
    page = open_large(f"#layer=long&head=1&views=matrix&token={tokens_field('source', SELECTED)}")
    page.get_by_role("group", name="Save: Matrix").get_by_role("button", name="as CSV").wait_for()
    with page.expect_download(timeout=300_000) as download:
        page.get_by_role("group", name="Save: Matrix").get_by_role("button", name="as CSV").click()
        status(page, "matrix").filter(has_text=re.compile(r"^Loading \d+ of 150 rows …$")).wait_for()
        status(page, "matrix").filter(has_text=re.compile(r"^Loading \d+ of 150 columns …$")).wait_for(timeout=300_000)
    found = weights_in(download.value.path().read_bytes())
    is_selected = np.isin(np.arange(320), SELECTED)
    expected = np.argwhere(is_selected[:, None] | is_selected)
    assert len(found) == len(expected)
    assert set(found) == set(map(tuple, expected.tolist()))
    assert_weights(found, large.layers[0].weights.dense()[0, 1].numpy())
    assert status(page, "matrix").text_content() == ""


def test_selected_keys_alone_are_saved(open_large, large):
    page = open_large(f"#layer=cross&head=0&views=matrix&token={tokens_field('source', SELECTED)}")
    found = weights_in(saved(page, "matrix", "CSV", timeout=120_000)[1])
    assert len(found) == 150 * 150
    assert {key for _, key in found} == set(SELECTED)
    assert_weights(found, large.layers[1].weights.dense()[0, 0].numpy())


@pytest.mark.parametrize(("heads", "reduce"), [([1], "mean"), ([0, 1], "sum"), ([0, 1], "mean")])
def test_a_region_of_a_server_is_saved(open_large, large, heads, reduce):
    head = ",".join(map(str, heads))
    page = open_large(f"#layer=words&head={head}&reduce={reduce}&region=270.300.260.280&views=matrix")
    data = saved(page, "matrix", "CSV")[1]
    assert rows_of(data)[0][4] == ("weight" if len(heads) == 1 else f"weight, {reduce} of 2 heads")
    found = weights_in(data)
    assert set(found) == {(query, key) for query in range(270, 301) for key in range(260, 281) if key <= query}
    assert_weights(found, displayed_weights(large.layers[2], heads, reduce=reduce))


@pytest.mark.parametrize("words", [False, True])
def test_hidden_and_rescaled_weights_of_a_server_wait_for_what_is_hidden(open_large, large, words):
    options = "hide=first,special&rescale=1" + ("&unit=words" if words else "")
    page = open_large(f"#layer=words&head=0&{options}&token=read.301,read.302&views=text")
    data = saved(page, "text", "CSV")[1]
    assert rows_of(data)[0][4] == "weight, rescaled"
    exact = displayed_weights(large.layers[2], [0], hide=["first", "special"], rescale=True, words=words)
    selected = {151} if words else {301, 302}
    found = weights_in(data)
    assert set(found) == {(query, key) for query, key in cells_of(exact) if query in selected or key in selected}
    assert_weights(found, exact)


def test_a_whole_head_of_a_server_is_saved(open_large, large):
    page = open_large("#layer=words&head=1&views=matrix")
    name, data = saved(page, "matrix", "CSV", timeout=120_000)
    assert name == "regard-words-head-1-weights.csv"
    exact = displayed_weights(large.layers[2], [1])
    assert set(weights_in(data)) == cells_of(exact)
    assert_weights(weights_in(data), exact)


def test_too_many_weights_for_a_file_are_refused_before_any_is_loaded(take_page):
    tokens = tuple(f"▁word{number}" for number in range(2100))
    weights = regard.weights(torch.randn(1, 1, 2100, 4), torch.randn(1, 1, 2100, 4))
    recording = Recording("t", "m", (Layer("long", "encoder", weights, tokens, tokens),))
    with served(recording) as address, pages_of(take_page, address) as open_it:
        page = open_it("#views=matrix")
        page.wait_for_selector("#matrix canvas[data-cell]")
        requested = []
        with listening(page, request=lambda request: requested.append(request.url)):
            page.get_by_role("group", name="Save: Matrix").get_by_role("button", name="as CSV").click()
            limit = "A file holds 4,000,000 weights at most, and these are 4,410,000"
            status(page, "matrix").get_by_text(f"{limit}: select fewer tokens, or a region.").wait_for()
        assert [url for url in requested if "/row/" in url] == []


def test_no_file_is_saved_when_the_server_disappears(take_page, large):
    with served(large) as address:
        page = take_page()
        page.goto(f"{address}#layer=long&head=1&views=matrix&token={tokens_field('source', SELECTED)}")
        page.wait_for_selector("#matrix canvas[data-cell]")
        page.get_by_role("group", name="Save: Matrix").get_by_role("button", name="as CSV").click()
        status(page, "matrix").filter(has_text="Loading").wait_for()
    downloads = []
    with listening(page, download=lambda download: downloads.append(download)):
        status(page, "matrix").get_by_text("The server no longer responds, so no file was saved.").wait_for()
        page.wait_for_timeout(300)
    assert downloads == []


def test_a_button_says_of_what_it_saves_weights(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=1&token=source.3")
    button = page.get_by_role("group", name="Save: Matrix").get_by_role("button", name="as CSV")
    assert button.text_content() == "CSV of “too”"
    page.evaluate("location.hash = '#layer=encoder.0&head=1&token=source.3,source.6'")
    expect(button).to_have_text("CSV of 2 words")
    page.evaluate("location.hash = '#layer=encoder.0&head=1&region=0.1.0.1'")
    expect(button).to_have_text("CSV of the region")
    page.evaluate("location.hash = '#layer=cross.0&head=1'")
    expect(button).to_have_text("CSV")
    assert button.get_attribute("aria-label") == "CSV: save all weights of the head as CSV"


def test_a_view_that_shows_nothing_saves_no_file(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=1&views=generation")
    downloads = []
    page.on("download", lambda download: downloads.append(download))
    page.get_by_role("group", name="Save: Step by step").get_by_role("button", name="as CSV").click()
    sentence = "Nothing is shown here for this selection, so no file was saved."
    expect(page.locator(".exports [role=status]:visible")).to_have_text(sentence)
    assert downloads == []
