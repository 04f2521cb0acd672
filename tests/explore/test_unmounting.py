"""What is mounted on a page for a while leaves neither listeners nor nodes behind."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

import regard
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

TIMES = 20
MOUNT = """async (times) => {
    const { readRecording } = regard["data/recording.js"];
    const { createStore } = regard["state/store.js"];
    const { Units } = regard["state/unit.js"];
    const { bindAddress, defaultState, fieldsOf } = regard["state/url.js"];
    const { mountDetails } = regard["ui/details.js"];
    const { mountHeadGrid } = regard["ui/head_grid.js"];
    const { mountLegend } = regard["ui/legend.js"];
    const { mountOptions } = regard["ui/options.js"];
    const { mountTheme } = regard["ui/theme.js"];
    const { View } = regard["ui/view.js"];
    const { initialViews, mountViews, VIEWS } = regard["views/index.js"];
    document.body.replaceChildren(...document.querySelectorAll("script"));
    const recording = readRecording(document);
    await Promise.all(recording.layers.map((layer) => layer.load()));
    const fields = fieldsOf(VIEWS, initialViews);
    const views = VIEWS.filter(({ isAvailable }) => isAvailable?.(recording) ?? true).map(({ name }) => name);
    for (let time = 0; time < times; time++) {
        const page = new AbortController();
        const place = () => document.body.appendChild(document.createElement("div"));
        const store = createStore({ ...defaultState(recording, fields), views }, page.signal);
        const units = new Units(recording, store);
        mountTheme(place(), store);
        mountHeadGrid(place(), recording, units);
        mountLegend(place(), recording, units);
        mountOptions(place(), recording, store);
        mountViews(place(), recording, units, () => "");
        new View(place(), recording, units).mount(mountDetails);
        bindAddress(store, recording, fields);
        for (const button of document.querySelectorAll("button[title=Play]")) button.click();
        for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
        page.abort();
        document.body.replaceChildren(...document.querySelectorAll("script"));
    }
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
    return views;
}"""


def image_recording() -> Recording:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(2) for column in range(2)))
    vectors = torch.randn(2, 1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    layer = Layer("layers.0", "encoder", regard.weights(*vectors), tokens, tokens)
    return Recording("a.png", "a model", (layer,), {"image": "a.png"}, file.getvalue())


def counts(page, protocol) -> dict[str, int]:
    for _ in range(2):  # what the first collection frees holds more
        protocol.send("HeapProfiler.collectGarbage")
    metrics = {each["name"]: each["value"] for each in protocol.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("JSEventListeners", "Nodes")}


def test_all_views_leave_nothing_behind(open_page, open_pair, pair, make_recording):
    seen: set[str] = set()
    for open_it, *recordings in (
        (open_page, make_recording(encoders=1, decoders=1)),
        (open_page, image_recording()),
        (open_pair, *pair),
    ):
        page = open_it(*recordings)
        protocol = page.context.new_cdp_session(page)
        protocol.send("Performance.enable")
        page.evaluate(MOUNT, 3)
        before = counts(page, protocol)
        seen.update(page.evaluate(MOUNT, TIMES))
        after = counts(page, protocol)
        assert all(after[name] < before[name] + TIMES for name in after), (before, after)
        every = page.evaluate("regard['views/index.js'].VIEWS.map(({ name }) => name)")
        protocol.detach()
    assert seen == set(every)
