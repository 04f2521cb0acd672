"""Recordings with known weights, and a real Chromium to which every network is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

import regard
from helpers.explore import serving
from helpers.explore.axe import axe  # noqa: F401 - a fixture
from helpers.explore.browser_pages import BrowserPages, in_tokens, listening, load
from helpers.explore.comparison_cases import TOKENS_A, TOKENS_B, encoder_recording
from regard.explore.html_page import write_html
from regard.explore.playground import write_playground
from regard.ops.weight_matrix import WeightMatrix
from regard.pipelines import Translator
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

SOURCE = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
WRITTEN = ("▁Das", "▁Tier", "▁war", "▁zu", "▁mü", "de", ".", "</s>", "▁(", "n")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--process-per-site"]


def weights_of(shares: torch.Tensor) -> WeightMatrix:
    """A view whose weights are the given ones, (heads, queries, keys): the softmax of their logarithms."""
    keys = torch.eye(shares.shape[-1], dtype=shares.dtype).expand(1, len(shares), -1, -1)
    return regard.weights(shares.log()[None], keys, scale=1.0)


def recording_of(
    source: tuple[str, ...] = SOURCE,
    written: tuple[str, ...] = WRITTEN,
    encoders=2,
    decoders=2,
    heads=3,
    title="A title",
) -> Recording:
    """A recording of a translator with random weights, some large and some small."""
    generator = torch.Generator().manual_seed(len(source))

    def attention(queries: int, keys: int, causal: bool = False) -> WeightMatrix:
        query = 3 * torch.randn(1, heads, queries, 8, generator=generator)
        key = torch.randn(1, heads, keys, 8, generator=generator)
        return regard.weights(query, key, mask=regard.Causal() if causal else None)

    layers = [
        Layer(f"encoder.{index}", "encoder", attention(len(source), len(source)), source, source)
        for index in range(encoders)
    ]
    for index in range(decoders):
        itself = attention(len(written), len(written), causal=True)
        layers.append(Layer(f"decoder.{index}", "decoder", itself, written, ("<s>", *written[:-1])))
        layers.append(Layer(f"cross.{index}", "cross", attention(len(written), len(source)), written, source))
    return Recording(title, "a model", tuple(layers), {"source": "The animal ...", "translation": "Das Tier ..."})


@pytest.fixture(scope="module")
def long_recording() -> Recording:
    return serving.recording_of()


@pytest.fixture(scope="module")
def address(long_recording) -> Iterator[str]:
    with serving.served(long_recording) as url:
        yield url


@pytest.fixture(scope="session")
def recording() -> Recording:
    return recording_of()


@pytest.fixture
def make_recording() -> Callable[..., Recording]:
    return recording_of


@pytest.fixture
def make_weights() -> Callable[[torch.Tensor], WeightMatrix]:
    return weights_of


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """A headless Chromium; without one, tests are skipped, but never in continuous integration."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # as pages have; a machine may have other work
    with sync_playwright() as playwright:
        bundled = Path(playwright.chromium.executable_path)
        path = next(filter(None, map(shutil.which, NAMES)), str(bundled) if bundled.exists() else None)
        if path is None and os.environ.get("CI"):
            pytest.fail(f"CI is set, so browser tests must run, but none of {', '.join(NAMES)} was found")
        if path is None:
            pytest.skip(f"no browser: none of {', '.join(NAMES)} was found")
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def browser_pages(browser, tmp_path_factory) -> Iterator[BrowserPages]:
    pages = BrowserPages(browser, tmp_path_factory.mktemp("empty") / "empty.html")
    yield pages
    pages.close()


@pytest.fixture(scope="module")
def tab(browser_pages) -> Iterator:
    """An empty page for all tests of a file; at the end, no script of it has failed."""
    errors: list[str] = []
    with browser_pages.borrow() as take:
        page = take()
        with listening(page, pageerror=lambda error: errors.append(str(error))):
            yield page
    assert errors == []


@pytest.fixture
def take_page(browser_pages) -> Iterator[Callable]:
    """Take an empty page, with a network by default, for one test."""
    with browser_pages.borrow() as take:
        yield take


@pytest.fixture
def open_file(take_page, tmp_path) -> Iterator[Callable]:
    """Open a page as a file, without a network; at the end, nothing was requested, and nothing went wrong."""
    opened, complaints, requests = 0, [], []
    listeners = {
        "request": lambda request: requests.append(request.url),
        "console": lambda message: complaints.append(message.text),
        "pageerror": lambda error: complaints.append(str(error)),
        "popup": lambda popup: complaints.append(f"opened {popup.url}"),
        "dialog": lambda dialog: (complaints.append(dialog.message), dialog.dismiss()),
    }
    with ExitStack() as stack:

        def open_it(path: Path, fragment: str = "", **options):
            nonlocal opened
            page = take_page(offline=True, **options)
            stack.enter_context(listening(page, **listeners))
            load(page, path.as_uri() + fragment)
            opened += 1
            return page

        yield open_it
    assert complaints == []
    own = tmp_path.as_uri()
    assert [url for url in requests if urlsplit(url).scheme != "data" and not url.startswith(own)] == []
    assert len([url for url in requests if urlsplit(url).scheme == "file"]) == opened


@pytest.fixture
def open_page(open_file, tmp_path) -> Callable:
    """Open a recording's page in the same way, in tokens unless the fragment has a unit."""

    def open_it(recording: Recording, fragment: str = "", **options):
        page = open_file(write_html(recording, tmp_path / "attention.html"), in_tokens(fragment), **options)
        page.wait_for_selector(".panel")
        return page

    return open_it


@pytest.fixture
def open_pair(open_file, tmp_path):
    """Open the page of two recordings, in tokens, too, and wait until all heads are compared."""

    def open_it(a, b, fragment="", ranked=True, **options):
        opened = open_file(write_html(a, tmp_path / "compare.html", compare_with=b), in_tokens(fragment), **options)
        opened.wait_for_selector(".compare-panel.a canvas[data-cell]")
        if ranked:
            opened.wait_for_selector(".compare-entry")
        return opened

    return open_it


@pytest.fixture
def pair():
    return encoder_recording(TOKENS_A, 0, title="One text"), encoder_recording(TOKENS_B, 1, title="Another text")


@pytest.fixture(scope="session")
def translator() -> Translator:
    return Translator.load()


@pytest.fixture(scope="session")
def playground(translator, tmp_path_factory):
    return write_playground(translator, tmp_path_factory.mktemp("playground") / "playground.html")


@pytest.fixture
def open_playground(playground, open_file, tmp_path):
    def open_it(fragment: str = "", **options):
        page = open_file(Path(shutil.copy(playground, tmp_path)), fragment, **options)
        page.wait_for_selector(".panel")
        return page

    return open_it
