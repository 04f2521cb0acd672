"""The explorer's page: file size, time to write it, and response times in Chromium.

The model is transformers' BERT base with random weights, 12 layers of 12 heads, float32. Random weights attend almost
uniformly, which compresses well; therefore queries are scaled by 1 and by 4, and the larger file counts. The time to
write the page is relative to the forward pass of the model (lower is better).

In headless Chromium without a network: time from the start of the navigation until the first matrix is drawn, time to
respond to a pointer on a cell, and time per frame while the matrix is zoomed and moved. A pointer on a token of a long
served text (random queries and keys) is timed apart, until its row and its column are drawn, with the CPU time of the
page's main thread. Memory is the peak while a page is written, above that before, in a process of its own.

If BertViz is installed, its views of the same recordings are measured in the same browser: the model view, which draws
all heads, and the head view, which draws one layer and responds to a pointer on a token. They load require, d3 and
jQuery from a network; ``--libraries`` is a folder with copies (``npm install requirejs@2.3.6 d3@5.7.0 jquery@2.2.4``).

Run: ``python benchmarks/explorer.py``; for a quick check: ``--files 128 --served 512 --text 512 --memory 512``.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from memory import in_subprocess, peak_megabytes
from timing import report, seconds

import regard
from regard.explore.html_page import write_html
from regard.explore.server import bind
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from watching import SEED, VOCAB, bert, forward

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
  const offset = Object.fromEntries(Object.entries(canvas.dataset).map(([name, value]) => [name, Number(value)]));
  const box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  for (let at = 0; at < count; at++) {
    const y = offset.top + (box.height - offset.top - 8) * (0.3 + (0.65 * at) / count);
    const x = offset.left + (box.width - offset.left) * 0.3 * ((at % 7) / 7);
    await frame();
    const start = performance.now();
    const at_cell = { clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerType: "mouse" };
    canvas.dispatchEvent(new PointerEvent("pointermove", at_cell));
    const responded = () => /rank|masked|at most/.test(document.querySelector(".tip").textContent);
    document.querySelector(".tip").replaceChildren();
    do await frame(); while (!responded() && performance.now() - start < 5000);
    times.push(performance.now() - start);
  }
  return times;
}"""

TEXT_HOVERS = """async (count) => {
  const tokens = [...document.querySelectorAll("#text .token")];
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  for (let at = 0; at < count; at++) {
    const token = tokens[3 + 5 * at];
    const responded = () => {
      const panels = [...document.querySelectorAll("#details .panel")];
      return panels.length === 2 && panels.every((panel) =>
        panel.querySelector("b").textContent === token.textContent && panel.querySelector("li"));
    };
    const start = performance.now();
    const listed = new Promise((resolve) => {
      const observer = new MutationObserver(() => responded() && resolve(observer.disconnect()));
      observer.observe(document.querySelector("#details"), { childList: true, subtree: true });
    });
    token.dispatchEvent(new PointerEvent("pointerover", { bubbles: true, pointerType: "mouse" }));
    await listed;
    await frame(); // the text is drawn, too
    times.push(performance.now() - start);
  }
  return times;
}"""

FRAMES = """async (count) => {
  const canvas = document.querySelector("#matrix canvas");
  const box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let before = await frame();
  for (let at = 0; at < count; at++) {
    const zoom = { deltaY: at < count / 2 ? -40 : 40, ctrlKey: true };
    const x = box.left + box.width * (0.4 + 0.2 * Math.sin(at / 5));
    const position = { clientX: x, clientY: box.top + box.height * 0.6, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...zoom, ...position }));
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}"""


LIBRARIES = {
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
"""Files that BertViz loads from the network, and their paths in node_modules."""

TOKENS_HOVERED = """async (count) => {
  const frame = () => new Promise(requestAnimationFrame);
  const tokens = [...document.querySelectorAll("svg #left g")].filter((node) => typeof node.__data__ === "string");
  const times = [];
  for (let at = 0; at < count; at++) {
    const token = tokens[Math.floor((tokens.length * at) / count)];
    await frame();
    const start = performance.now();
    token.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
    await frame();
    await frame();
    times.push(performance.now() - start);
  }
  return times;
}"""


def record(tokens: int, scale: float, rounds: int = ROUNDS) -> tuple[Recording, float]:
    """A recording of the model with scaled queries, and the median seconds of its forward pass (0 without rounds)."""
    model, input_ids = bert(tokens), torch.randint(VOCAB, (1, tokens))
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(scale)
    run = forward(model, input_ids)
    if rounds:
        run()
    forward_seconds = statistics.median([seconds(run) for _ in range(rounds)] or [0.0])
    with regard.watch(model) as result:
        run()
    names = [f"▁word{index}" for index in range(tokens)]
    recording = result.recording.select(tokens=names, title=f"{tokens} tokens")
    return recording.replace(model_name="BERT base"), forward_seconds


def random_recording(tokens: int, layers: int = 12, heads: int = 12) -> Recording:
    """A recording with random queries and keys, without a model."""
    names = tuple(f"▁word{index}" for index in range(tokens))
    made = []
    for index in range(layers):
        weights = regard.weights(*(torch.randn(1, heads, tokens, 64) for _ in range(2)))
        made.append(Layer(f"encoder.{index}", "encoder", weights, names, names))
    return Recording("", "", tuple(made))


def memory_of_writing(tokens: int) -> float:
    """Peak memory in MB of writing the page of 12 layers of 12 heads."""
    recording = random_recording(tokens)
    with tempfile.TemporaryDirectory() as folder:
        return peak_megabytes(lambda: write_html(recording, Path(folder) / "page.html"))


def measure_bertviz(launch: Any, tokens: int, libraries: Path, folder: Path) -> dict[str, Any]:
    """Size in MB and milliseconds of BertViz's pages of a recording; None if not drawn within a minute."""
    from bertviz import head_view, model_view
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    recording, _ = record(tokens, SCALES[-1], rounds=0)
    weights = [layer.weights.dense() for layer in recording.layers]
    views: dict[str, Any] = {}
    for name, view in (("model view", model_view), ("head view", head_view)):
        file = folder / "bertviz.html"
        file.write_text(view(weights, list(recording.layers[0].query_tokens), html_action="return").data)
        pictures, hovers = [], []
        for _ in range(ROUNDS):
            browser = launch()  # a new one, because a page that hangs blocks its browser
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            for name_in_page, path in LIBRARIES.items():
                page.route(f"**/{name_in_page}", fulfill_from(libraries / path))
            page.goto(file.as_uri(), wait_until="commit")
            try:
                page.wait_for_selector("svg line, svg path", state="attached", timeout=60_000)
            except PlaywrightTimeout:
                browser.close()
                break
            pictures.append(page.evaluate("performance.now()"))
            page.wait_for_timeout(1000)
            hovers += page.evaluate(TOKENS_HOVERED, 20) if view is head_view else []
            browser.close()
        first = median(pictures) if pictures else None
        views[name] = {"megabytes": round(file.stat().st_size / 1e6, 2), "first picture": first}
        if hovers:
            views[name]["hover"] = median(hovers)
    return views


def fulfill_from(path: Path) -> Callable[[Any], None]:
    return lambda route: route.fulfill(path=path)


def median(milliseconds: list[float]) -> float:
    return round(statistics.median(milliseconds), 1)


@contextmanager
def served(recording: Recording) -> Iterator[str]:
    """Serve a recording; yields its URL."""
    with bind(recording) as (server, listener, url):
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


def response_times(browser: Any, address: str) -> dict[str, float]:
    """Median milliseconds until the first picture, until a response to a pointer, and per frame."""
    times: dict[str, list[float]] = {"first picture": [], "hover": [], "frame": []}
    for _ in range(ROUNDS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}#views=matrix", wait_until="commit")
        times["first picture"].append(page.evaluate(FIRST_PICTURE))
        page.wait_for_timeout(3000)
        times["hover"] += page.evaluate(HOVERS, 20)
        times["frame"] += page.evaluate(FRAMES, 60)
        page.close()
    return {name: median(values) for name, values in times.items()}


def text_response(browser: Any, address: str, count: int = 20) -> dict[str, float]:
    """Median milliseconds until a token that is pointed at is drawn, and CPU time of the page for it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    pending: set[Any] = set()
    page.on("request", lambda request: pending.add(request))
    page.on("requestfinished", lambda request: pending.discard(request))
    page.goto(f"{address}#views=text,matrix", wait_until="commit")
    page.evaluate(FIRST_PICTURE)
    quiet = 0
    while quiet < 4:  # thumbnails and scores are requested one after the other
        page.wait_for_timeout(500)
        quiet = 0 if pending else quiet + 1
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time

    def task_seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = task_seconds()
    times = page.evaluate(TEXT_HOVERS, count)
    cpu = 1e3 * (task_seconds() - before) / count
    page.close()
    return {"hover": median(times), "CPU": round(cpu, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--files", type=int, nargs="*", default=[64, 128, 256, 512, 4096], help="tokens of pages in files"
    )
    parser.add_argument("--served", type=int, nargs="*", default=[4096, 16384], help="tokens of served pages")
    parser.add_argument("--text", type=int, nargs="*", default=[16384], help="tokens of served texts to point at")
    parser.add_argument("--memory", type=int, nargs="*", default=[2048, 4096, 8192], help="tokens of written pages")
    parser.add_argument("--bertviz", type=int, nargs="*", default=[64, 128, 256], help="tokens of BertViz pages")
    parser.add_argument("--libraries", type=Path, default=Path("node_modules"), help="libraries of BertViz")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    torch.manual_seed(SEED)
    megabytes: dict[str, float] = {}
    milliseconds: dict[str, Any] = {}
    writing: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        launch = partial(playwright.chromium.launch, executable_path=path, args=FLAGS)
        browser = launch()
        for tokens in arguments.files:
            sizes = []
            for scale in SCALES:
                recording, forward_seconds = record(tokens, scale)
                file = Path(folder) / "page.html"
                ratio = seconds(partial(write_html, recording, file)) / forward_seconds
                writing.setdefault(f"time relative to the forward pass: writing the page, {tokens}", []).append(ratio)
                sizes.append(file.stat().st_size / 1e6)
            megabytes[str(tokens)] = round(max(sizes), 2)
            milliseconds[f"file, {tokens}"] = response_times(browser, file.as_uri())
            print(f"explorer: file, {tokens}: {max(sizes):.1f} MB, {milliseconds[f'file, {tokens}']}", flush=True)
        bertviz = {}
        if importlib.util.find_spec("bertviz"):
            for tokens in arguments.bertviz:
                bertviz[str(tokens)] = measure_bertviz(launch, tokens, arguments.libraries, Path(folder))
                print(f"explorer: BertViz, {tokens}: {bertviz[str(tokens)]}", flush=True)
        for tokens in arguments.served:
            recording, _ = record(tokens, SCALES[-1], rounds=0)
            with served(recording) as address:
                milliseconds[f"server, {tokens}"] = response_times(browser, address)
            print(f"explorer: server, {tokens}: {milliseconds[f'server, {tokens}']}", flush=True)
        text = {}
        for tokens in arguments.text:
            with served(random_recording(tokens, layers=2, heads=2)) as address:
                text[str(tokens)] = text_response(browser, address)
            print(f"explorer: text on a server, {tokens}: {text[str(tokens)]}", flush=True)
        browser.close()
    memory = {str(tokens): round(in_subprocess(memory_of_writing, tokens), 1) for tokens in arguments.memory}
    print(f"explorer: peak memory of writing in MB: {memory}")
    settings = {
        "megabytes": megabytes,
        "milliseconds": milliseconds,
        "text": text,
        "memory": memory,
        "bertviz": bertviz,
    }
    report("explorer", writing, SEED, **settings)


if __name__ == "__main__":
    main()
