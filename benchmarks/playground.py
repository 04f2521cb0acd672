"""The playground: time to open it, to translate what is typed and to draw its attention, and memory of its tab.

The page is that of ``regard playground``, in headless Chromium without a network. Opening it takes until the first
translation is shown. A key stroke changes a sentence of twelve words; beam search and the redrawing of all open views
are timed apart: the first until the new translation is shown, the second from then until the next frame is drawn.
Memory is the proportional set size of the tab's process, after all key strokes (Linux only).

Run: ``python benchmarks/playground.py``; for a quick check: ``--rounds 1 --strokes 5``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from explorer import FLAGS, NAMES, median
from timing import report

from regard.explore.playground import write_playground
from regard.pipelines import Translator

TEXT = "The animal didn't cross the street because it was too tired."

OPENED = """() => new Promise((done) => {
  const output = () => document.querySelector("#live-translation")?.textContent;
  const look = () => output() ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""

STROKES = """async ([text, count]) => {
  const [input, output] = ["#live-text", "#live-translation"].map((name) => document.querySelector(name));
  const task = () => new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = resolve;
    port2.postMessage(null);
  });
  const times = { translation: [], attention: [] };
  for (let at = 0; at < count; at++) {
    const start = performance.now();
    input.value = at % 2 ? text : `${text.slice(0, -1)}!`;
    input.dispatchEvent(new Event("input"));
    const shown = new Promise((resolve) => {
      new MutationObserver((_, observer) => {
        if (output.classList.contains("outdated")) return;
        observer.disconnect();
        resolve(performance.now());
      }).observe(output, { attributes: true });
    });
    const translated = await shown;
    await new Promise(requestAnimationFrame);
    await task(); // what the frame draws is drawn
    times.translation.push(translated - start);
    times.attention.push(performance.now() - translated);
    await new Promise((resolve) => setTimeout(resolve, 400)); // the address is written, too
  }
  return times;
}"""


def tab_megabytes(browser: Any) -> float | None:
    """Of the largest renderer; None where the system does not say."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    sizes = []
    for process in processes:
        path = Path(f"/proc/{process['id']}/smaps_rollup")
        if process["type"] == "renderer" and path.exists():
            sizes.append(int(re.search(r"^Pss:\s+(\d+) kB", path.read_text("utf-8"), re.MULTILINE)[1]) / 1e3)
    return round(max(sizes), 1) if sizes else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how many times the page is opened")
    parser.add_argument("--strokes", type=int, default=20, help="key strokes each time")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    times: dict[str, list[float]] = {"opening": [], "translation": [], "attention": []}
    memory = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = write_playground(Translator.load(), Path(folder) / "playground.html", example=TEXT)
        path = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        for _ in range(arguments.rounds):
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(file.as_uri(), wait_until="commit")
            times["opening"].append(page.evaluate(OPENED))
            page.wait_for_timeout(1000)
            strokes = page.evaluate(STROKES, [TEXT, arguments.strokes])
            for name, values in strokes.items():
                times[name] += values
            memory.append(tab_megabytes(browser))
            browser.close()
        megabytes = round(file.stat().st_size / 1e6, 2)
    milliseconds = {name: median(values) for name, values in times.items()}
    known = [size for size in memory if size is not None]
    tab = statistics.median(known) if known else None
    load = round(os.getloadavg()[0], 1)
    print(f"playground: {megabytes} MB, median milliseconds {milliseconds}, tab {tab} MB, load {load}")
    report("playground", {}, 0, megabytes=megabytes, milliseconds=milliseconds, tab=tab, load=load)


if __name__ == "__main__":
    main()
