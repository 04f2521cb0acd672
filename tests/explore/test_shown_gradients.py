"""Gradients, gradients × weights and relevance on a page, of a file or a server, equal those of float64."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore import serving
from helpers.explore.browser_pages import in_tokens
from helpers.explore.page_actions import settle, spoken, token
from regard.explore.html_page import write_html
from regard.explore.recording_service import RecordingService
from regard.ops import GradientMatrix
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

TOKENS = ("<s>", "▁The", "▁ani", "mal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
WORDS = [0, 1, 2, 2, 3, 4, 5, 5, 6, 7]
LONG = ("<s>", *(f"▁word{n}" for n in range(298)), "</s>")
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def recording_of(tokens: tuple[str, ...] = TOKENS, size=1e-3, layers=2) -> Recording:
    """Two layers of two heads that share a value, with gradients of a loss."""
    generator = torch.Generator().manual_seed(3)

    def normal(heads: int) -> torch.Tensor:
        return torch.randn(1, heads, len(tokens), 8, generator=generator)

    made = []
    for number in range(layers):
        weights = regard.weights(normal(2), normal(2), mask=regard.Causal())
        weights.with_gradient(GradientMatrix.of(size * normal(2), normal(1)))
        made.append(Layer(f"decoder.{number}", "decoder", weights, tokens, tokens))
    return Recording("A text", "a model", tuple(made))


def exact(layer: Layer, show: str) -> np.ndarray:
    """(heads, queries, keys) in float64, from the factors; NaN where masked."""
    factors, request = layer.weights.grad.request, layer.weights.request
    gradient = factors.query[0].double() @ factors.key[0].double().mT
    scores = request.query[0].double() @ request.key[0].double().mT * request.scale
    allowed = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    values = gradient if show == "gradient" else gradient * weights
    return values.masked_fill(~allowed, torch.nan).numpy()


def relevance(recording: Recording) -> np.ndarray:
    """Equations 5 and 6 of Chefer et al. 2021 in float64, without the identity."""
    identity = np.eye(len(recording.layers[0].query_tokens))
    total = identity
    for layer in recording.layers:
        total = total + np.nan_to_num(exact(layer, "gradient_times_weights")).clip(min=0).mean(0) @ total
    return total - identity


def number_of(text: str) -> tuple[float, float]:
    """A printed number, and how far it may be from the exact one by its digits."""
    text = text.replace("−", "-")
    if text.startswith("0 ± "):
        return 0.0, number_of(text.removeprefix("0 ± "))[0]
    mantissa, _, power = text.partition("·10")
    exponent = int(power.translate(SUPERSCRIPTS)) if power else 0
    decimals = len(mantissa.partition(".")[2])
    return float(mantissa) * 10.0**exponent, 0.5000001 * 10.0 ** (exponent - decimals)


@pytest.fixture(scope="module", params=["file", "server", "long server"])
def source(request, tmp_path_factory):
    recording = recording_of(LONG if request.param == "long server" else TOKENS)
    if request.param == "file":
        yield recording, write_html(recording, tmp_path_factory.mktemp("page") / "page.html").as_uri()
    else:
        with serving.served(recording) as address:
            yield recording, address


def opened(tab, address: str, fragment: str):
    tab.goto("about:blank")
    tab.goto(address + in_tokens(f"#layer=decoder.1&{fragment}"))
    tab.wait_for_selector(".panel")
    settle(tab)
    tab.wait_for_function("() => !/Loading|loading/.test(document.querySelector('#details').textContent)")
    settle(tab)
    return tab


def listed(page, panel: int) -> list[tuple[float, float]]:
    return [number_of(text) for text in page.locator(".panel").nth(panel).locator(".value").all_text_contents()]


def assert_listed(page, panel: int, line: np.ndarray, tokens: tuple[str, ...] = TOKENS) -> None:
    """A list has the largest values of a line under the right names, with true digits."""
    names = page.locator(".panel").nth(panel).locator(".name").all_text_contents()
    places = [[token.strip("▁") for token in tokens].index(name.strip("·")) for name in names]
    assert len(places) == min(8, (~np.isnan(line)).sum())
    others = np.delete(line, places)
    for (number, slack), value in zip(listed(page, panel), line[places], strict=True):
        assert number == pytest.approx(value, rel=1e-6, abs=slack)
        assert np.nanmax(np.abs(others), initial=0) <= abs(number) + slack


@pytest.mark.parametrize("show", ["gradient", "gradient_times_weights"])
@pytest.mark.parametrize("heads", ["1", "0,1"])
def test_lists_have_the_values_of_rows_and_columns(tab, source, show, heads):
    recording, address = source
    at = len(recording.layers[1].query_tokens) - 2
    values = exact(recording.layers[1], show)
    values = values[1] if heads == "1" else values.mean(0)
    page = opened(tab, address, f"head={heads}&token=source.{at}&show={show}")
    assert_listed(page, 0, values[at], recording.layers[1].query_tokens)
    assert_listed(page, 1, values[:, at], recording.layers[1].query_tokens)
    rest = page.locator(".panel").nth(0).locator(".hint").first.text_content()
    match = re.fullmatch(r"(.+) from (\d+) more together", rest)
    others = sorted(values[at][~np.isnan(values[at])], key=abs, reverse=True)[8:]
    number, slack = number_of(match[1])
    assert number == pytest.approx(sum(others), rel=1e-4, abs=slack + 1e-9)
    assert int(match[2]) == len(others)


def test_regions_are_summed(tab, source):
    recording, address = source
    values = exact(recording.layers[1], "gradient_times_weights")[0]
    page = opened(tab, address, "head=0&region=5.8.1.4&show=gradient_times_weights")
    [(number, slack)] = listed(page, 0)
    assert number == pytest.approx(np.nansum(values[5:9, 1:5]), rel=1e-5, abs=slack)


def test_relevance_is_that_of_all_layers(tab, source):
    recording, address = source
    is_long = len(recording.layers[0].query_tokens) > 256
    page = opened(tab, address, "head=0&token=source.6&show=relevance")
    options = page.locator("#show option").all_text_contents()
    assert options == ["weights", "gradient", "gradient × weight", *([] if is_long else ["relevance"])]
    if is_long:
        return
    values = relevance(recording)
    assert_listed(page, 0, values[6])
    library = regard.analysis.relevance(recording.layers)[0].numpy() - np.eye(len(TOKENS))
    assert library == pytest.approx(values, abs=1e-6)


def test_words_and_hidden_keys(tab, source):
    recording, address = source
    if len(recording.layers[0].query_tokens) > 256:
        return
    show = "gradient_times_weights"
    values = np.nan_to_num(exact(recording.layers[1], show)[0])
    values[:, 0] = 0
    sums = np.zeros((8, 8))
    for (query, key), value in np.ndenumerate(values):
        sums[WORDS[query], WORDS[key]] += value / WORDS.count(WORDS[query])
    page = opened(tab, address, f"head=0&token=source.6,source.7&show={show}&unit=words&hide=first&rescale=1")
    numbers = listed(page, 0)
    expected = sorted(sums[5, 1:6], key=abs, reverse=True)
    for (number, slack), value in zip(numbers, expected, strict=True):
        assert number == pytest.approx(value, rel=1e-6, abs=slack)


def test_csv_names_what_it_holds(tab, source):
    recording, address = source
    page = opened(tab, address, "head=1&token=source.5&show=gradient")
    with page.expect_download() as download:
        page.locator("section.view:visible").first.get_by_role("button", name="as CSV").click()
    text = download.value.path().read_bytes().decode("utf-8-sig")
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header[4].startswith("gradient")
    values = exact(recording.layers[1], "gradient")[1]
    assert len(rows) == 6 + len(values) - 5 - 1
    largest = np.nanmax(np.abs(values))
    for row in rows:
        assert float(row[4]) == pytest.approx(values[int(row[0]), int(row[2])], abs=largest / 30_000, rel=1e-5)


# The page itself.


def test_the_option_is_in_the_address_and_only_where_there_are_gradients(open_page, recording):
    page = open_page(recording_of(), "#layer=decoder.1&head=0&token=source.6")
    assert page.locator(".legend-title").text_content().startswith("Attention weight")
    page.get_by_label("Show").select_option("gradient_times_weights")
    page.wait_for_url("**&show=gradient_times_weights*")
    expect(page.locator(".legend-title")).to_contain_text("Gradient × weight")
    assert page.locator(".panel h3").first.text_content() == "ti: gradient × weight on"
    assert spoken(page).startswith("ti: gradient × weight on ")
    settle(page)
    values = exact(recording_of().layers[1], "gradient_times_weights")[0][6]
    for sign, name in ((1, "positive"), (-1, "negative")):
        drawn = page.locator(f".arc.out.{name}").evaluate_all("nodes => nodes.map(node => +node.dataset.key)")
        largest = np.nanmax(np.abs(exact(recording_of().layers[1], "gradient_times_weights")[0]))
        assert {*drawn} == {key for key in range(7) if sign * values[key] >= 0.01 * largest}
        tinted = [key for key in drawn if token(page, 0, key).evaluate("node => node.style.cssText").find("attended")]
        assert tinted == drawn
    again = open_page(recording, "#show=gradient")
    assert not again.get_by_label("Show").is_visible()
    assert again.locator(".legend-title").text_content().startswith("Attention weight")


def test_a_layer_without_a_gradient_shows_its_weights_and_says_so(open_page):
    recording = recording_of()
    bare = recording.layers[0].replace(
        weights=recording.layers[0].weights.__class__(recording.layers[0].weights.request)
    )
    page = open_page(Recording("t", "m", (bare, recording.layers[1])), "#layer=decoder.0&head=0&show=gradient")
    assert "This layer has no gradient here" in page.locator(".legend-notes").text_content()
    assert page.locator(".legend-title").text_content().startswith("Attention weight")
    assert page.locator("#show option").all_text_contents() == ["weights", "gradient", "gradient × weight"]


def test_a_file_of_a_long_text_says_how_to_see_its_gradients(open_page):
    long, short = recording_of(LONG, layers=1), recording_of(LONG[:20], layers=1).layers[0].replace(name="short")
    page = open_page(Recording("t", "m", (long.layers[0], short)), "#layer=decoder.0&head=0")
    note = "This file has no gradients of a text this long. Save the recording, recording.save(path): regard serve path"
    assert note in page.locator(".legend-notes").text_content()
    page = open_page(Recording("t", "m", (long.layers[0], short)), "#layer=short&head=0&show=gradient")
    assert note not in page.locator(".legend-notes").text_content()
    assert page.locator(".legend-title").text_content().startswith("Gradient")


def test_a_gradient_that_waits_for_its_backward_pass_is_none(open_page):
    recording = recording_of()
    for layer in recording.layers:
        layer.weights.with_gradient(lambda: "call backward() first")
    assert not open_page(recording).get_by_label("Show").is_visible()


def test_a_saved_recording_has_them_too(open_page, tmp_path):
    recording_of().save(tmp_path / "a.regard")
    page = open_page(regard.load(tmp_path / "a.regard"), "#layer=decoder.1&head=0&token=source.6&show=gradient")
    assert_listed(page, 0, exact(recording_of().layers[1], "gradient")[0][6])


def test_the_server_computes_parts_alone():
    """Tiles of a long text are sums of the cells of float64; nothing of size queries × keys is made."""
    recording = recording_of(LONG)
    service = RecordingService(recording)
    values = np.nan_to_num(exact(recording.layers[0], "gradient_times_weights")[1])
    size = service.header["layers"][0]["levels"][0]
    tile = np.frombuffer(service.tile(0, 1, size, 0, 0, "gradient_times_weights"), "<f4").reshape(75, 75)
    blocks = values.reshape(75, size, 75, size).sum((1, 3)) / size
    assert np.nan_to_num(tile) == pytest.approx(blocks, abs=1e-8)
    assert np.isnan(tile).sum() == 75 * 74 // 2
    assert service.largest(0, 1, "gradient_times_weights") == pytest.approx(np.abs(values).max(), rel=1e-5)
