"""The explorer's page: how large its file is, how long it takes to be written, and how fast it answers in Chromium.

The model is transformers' BERT base with random weights, 12 layers of 12 heads, float32. Random weights attend nearly
evenly, and what is even compresses well: so its queries are scaled by 1 and by 4, and the larger file counts. Writing
is told in times of the model's own forward pass.

In the browser, headless and with a network of its own machine alone: the first picture, from the beginning of the
navigation to the first matrix that is drawn; an answer to a pointer that comes to a cell; and the frames while the
matrix is zoomed and moved, from one to the next. Memory is the most that is resident while a page is written, above
what was resident before, in a process of its own.

Where BertViz is installed, its views of the same recordings stand beside it, in the same browser: a model view, which
draws all heads, and a head view, which draws one layer and answers a pointer that comes to a token. They load require,
d3 and jQuery from a network: their copies are looked for in ``--libraries``, a folder of node's modules
(``npm install requirejs@2.3.6 d3@5.7.0 jquery@2.2.4``).

Run: ``python benchmarks/explorer.py``; smaller, to see that it runs: ``--files 128 --served 512 --memory 512``.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attention import peak
from side_by_side import report, seconds
from watching_memory import alone

import regard
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore.page import write_page
from regard.explore.server import listening
from watching import SEED, VOCAB, bert, reads

SCALES = (1.0, 4.0)
ROUNDS = 3
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

FIRST_PICTURE = """() => new Promise((done) => {
  const drawn = () => document.querySelector("#matrix canvas[data-cell]");
  const look = () => drawn() ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""

HOVERS = """async (count) => {
  const canvas = document.querySelector("#matrix canvas");
  const place = Object.fromEntries(Object.entries(canvas.dataset).map(([name, value]) => [name, Number(value)]));
  const box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  const found = [];
  for (let at = 0; at < count; at++) {
    const y = place.top + (box.height - place.top - 8) * (0.3 + (0.65 * at) / count);
    const x = place.left + (box.width - place.left) * 0.3 * ((at % 7) / 7);
    await frame();
    const start = performance.now();
    const at_cell = { clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerType: "mouse" };
    canvas.dispatchEvent(new PointerEvent("pointermove", at_cell));
    const answered = () => /rank|masked|at most/.test(document.querySelector(".tip").textContent);
    document.querySelector(".tip").replaceChildren();
    do await frame(); while (!answered() && performance.now() - start < 5000);
    found.push(performance.now() - start);
  }
  return found;
}"""

FRAMES = """async (count) => {
  const canvas = document.querySelector("#matrix canvas");
  const box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  const found = [];
  let before = await frame();
  for (let at = 0; at < count; at++) {
    const zoom = { deltaY: at < count / 2 ? -40 : 40, ctrlKey: true };
    const x = box.left + box.width * (0.4 + 0.2 * Math.sin(at / 5));
    const place = { clientX: x, clientY: box.top + box.height * 0.6, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...zoom, ...place }));
    const now = await frame();
    found.push(now - before);
    before = now;
  }
  return found;
}"""


LIBRARIES = {
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
"""What BertViz asks a network for, and where node's modules have it."""

TOKENS_HOVERED = """async (count) => {
  const frame = () => new Promise(requestAnimationFrame);
  const tokens = [...document.querySelectorAll("svg #left g")].filter((node) => typeof node.__data__ === "string");
  const found = [];
  for (let at = 0; at < count; at++) {
    const token = tokens[Math.floor((tokens.length * at) / count)];
    await frame();
    const start = performance.now();
    token.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
    await frame();
    await frame();
    found.push(performance.now() - start);
  }
  return found;
}"""


def recorded(tokens: int, scale: float, rounds: int = ROUNDS) -> tuple[Recording, float]:
    """What the model attends to, and the seconds of its forward pass, of which there are some to be timed."""
    model, words = bert(tokens), torch.randint(VOCAB, (1, tokens))
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(scale)
    forward = reads(model, words)
    if rounds:
        forward()
    taken = statistics.median([seconds(forward) for _ in range(rounds)] or [0.0])
    with regard.watch(model) as result:
        forward()
    names = [f"▁word{number}" for number in range(tokens)]
    recording = result.recording.select(tokens=names, title=f"{tokens} tokens")
    return recording.replace(model_name="BERT base"), taken


def memory_of_writing(tokens: int) -> float:
    """Megabytes that writing the page of 12 layers of 12 heads takes."""
    names = tuple(f"▁word{number}" for number in range(tokens))
    layers = []
    for number in range(12):
        weights = regard.weights(*(torch.randn(1, 12, tokens, 64) for _ in range(2)))
        layers.append(Layer(f"encoder.{number}", "encoder", weights, names, names))
    with tempfile.TemporaryDirectory() as folder:
        return peak(lambda: write_page(Recording("", "", tuple(layers)), Path(folder) / "page.html"))


def beside_bertviz(chromium: Any, tokens: int, libraries: Path, folder: Path) -> dict[str, Any]:
    """Megabytes and milliseconds of BertViz's pages of what is recorded; None: not drawn in a minute."""
    from bertviz import head_view, model_view  # pyright: ignore[reportMissingImports]
    from playwright.sync_api import TimeoutError as NotDrawn

    recording, _ = recorded(tokens, SCALES[-1], rounds=0)
    weights = [layer.weights.dense() for layer in recording.layers]
    found: dict[str, Any] = {}
    for name, view in (("model view", model_view), ("head view", head_view)):
        file = folder / "bertviz.html"
        file.write_text(view(weights, list(recording.layers[0].query_tokens), html_action="return").data)
        pictures, hovers = [], []
        for _ in range(ROUNDS):
            browser = chromium()  # which can be ended though its page hangs
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            for asked, path in LIBRARIES.items():
                page.route(f"**/{asked}", answered_by(libraries / path))
            page.goto(file.as_uri(), wait_until="commit")
            try:
                page.wait_for_selector("svg line, svg path", state="attached", timeout=60_000)
            except NotDrawn:
                browser.close()
                break
            pictures.append(page.evaluate("performance.now()"))
            page.wait_for_timeout(1000)
            hovers += page.evaluate(TOKENS_HOVERED, 20) if view is head_view else []
            browser.close()
        first = median(pictures) if pictures else None
        found[name] = {"megabytes": round(file.stat().st_size / 1e6, 2), "first picture": first}
        if hovers:
            found[name]["hover"] = median(hovers)
    return found


def answered_by(path: Path) -> Callable[[Any], None]:
    return lambda route: route.fulfill(path=path)


def median(milliseconds: list[float]) -> float:
    return round(statistics.median(milliseconds), 1)


@contextmanager
def served(recording: Recording) -> Iterator[str]:
    """The recording on a server; yields its address."""
    with listening(recording) as (server, address):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server.bound]})
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def looked_at(browser: Any, address: str) -> dict[str, float]:
    """Milliseconds, medians: first pictures, answers to pointers, frames."""
    found: dict[str, list[float]] = {"first picture": [], "hover": [], "frame": []}
    for _ in range(ROUNDS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}#views=matrix", wait_until="commit")
        found["first picture"].append(page.evaluate(FIRST_PICTURE))
        page.wait_for_timeout(3000)
        found["hover"] += page.evaluate(HOVERS, 20)
        found["frame"] += page.evaluate(FRAMES, 60)
        page.close()
    return {what: median(values) for what, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--files", type=int, nargs="*", default=[64, 128, 256, 512, 4096], help="tokens of what is in files"
    )
    parser.add_argument("--served", type=int, nargs="*", default=[4096, 16384], help="tokens of what is served")
    parser.add_argument("--memory", type=int, nargs="*", default=[2048, 4096, 8192], help="tokens of what is written")
    parser.add_argument("--bertviz", type=int, nargs="*", default=[64, 128, 256], help="tokens of what BertViz shows")
    parser.add_argument("--libraries", type=Path, default=Path("node_modules"), help="what BertViz asks a network for")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    torch.manual_seed(SEED)
    megabytes: dict[str, float] = {}
    milliseconds: dict[str, Any] = {}
    writing: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        chromium = partial(playwright.chromium.launch, executable_path=path, args=FLAGS)
        browser = chromium()
        for tokens in arguments.files:
            sizes = []
            for scale in SCALES:
                recording, forward = recorded(tokens, scale)
                file = Path(folder) / "page.html"
                start = time.perf_counter()
                write_page(recording, file)
                taken = time.perf_counter() - start
                writing.setdefault(f"writing the page in times of the forward pass, {tokens}", []).append(
                    taken / forward
                )
                sizes.append(file.stat().st_size / 1e6)
            megabytes[str(tokens)] = round(max(sizes), 2)
            milliseconds[f"file, {tokens}"] = looked_at(browser, file.as_uri())
            print(f"explorer: file, {tokens}: {max(sizes):.1f} MB, {milliseconds[f'file, {tokens}']}", flush=True)
        bertviz = {}
        if importlib.util.find_spec("bertviz"):
            for tokens in arguments.bertviz:
                bertviz[str(tokens)] = beside_bertviz(chromium, tokens, arguments.libraries, Path(folder))
                print(f"explorer: BertViz, {tokens}: {bertviz[str(tokens)]}", flush=True)
        for tokens in arguments.served:
            recording, _ = recorded(tokens, SCALES[-1], rounds=0)
            with served(recording) as address:
                milliseconds[f"server, {tokens}"] = looked_at(browser, address)
            print(f"explorer: server, {tokens}: {milliseconds[f'server, {tokens}']}", flush=True)
        browser.close()
    memory = {str(tokens): round(alone(memory_of_writing, tokens), 1) for tokens in arguments.memory}
    print(f"explorer: megabytes of memory that writing takes: {memory}")
    told = {"megabytes": megabytes, "milliseconds": milliseconds, "memory": memory, "bertviz": bertviz}
    report("explorer", writing, SEED, **told)


if __name__ == "__main__":
    main()
