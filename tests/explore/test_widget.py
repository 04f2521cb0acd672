"""The page in a notebook: the widget's front end in a real Chromium, with as much of a notebook as it needs."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from regard.explore.display import SANDBOX, HtmlFrame
from regard.explore.html_page import static, to_html

pytestmark = pytest.mark.browser

# What anywidget gives a front-end module: https://anywidget.dev/en/afm/, of which the parts that are used.
NOTEBOOK = """
<!doctype html><meta charset="utf-8"><title>A notebook</title><body style="margin: 0"><div id="cell"></div>
<script type="module">
const esm = document.getElementById("esm").textContent;
const module = await import(URL.createObjectURL(new Blob([esm], {type: "text/javascript"})));
const traits = JSON.parse(document.getElementById("traits").textContent);
const listeners = [];
window.saved = [];
window.model = {
  get: (name) => traits[name],
  set(name, value) { if (traits[name] !== value) { traits[name] = value; this.tell(name); } },
  save_changes() { window.saved.push({...traits, html: undefined}); },
  on: (event, listener) => listeners.push([event, listener]),
  off(event, listener) {
    const at = listeners.findIndex((each) => each[0] === event && each[1] === listener);
    if (at >= 0) listeners.splice(at, 1);
  },
  tell: (name) => listeners.filter(([event]) => event === `change:${name}`).forEach(([, listener]) => listener()),
};
window.listeners = listeners;
window.end = module.default.render({ model: window.model, el: document.getElementById("cell") });
</script>
"""


@pytest.fixture
def open_widget(open_file, tmp_path):
    """The widget's front end in a page in place of a notebook, and the frame that it adds."""

    def open_it(text: str, state: str = "", height: int = 800, views: int = 1, **options):
        traits = json.dumps({"html": text, "state": state, "height": height}).replace("<", "\\u003c")
        blocks = (
            f'<script type="text/plain" id="esm">{static("widget.mjs")}</script>'
            f'<script type="application/json" id="traits">{traits}</script>'
        )
        path = tmp_path / "notebook.html"
        path.write_text(NOTEBOOK.replace("<script type", f"{blocks}<script type", 1), "utf-8")
        notebook = open_file(path, **options)
        frame = notebook.frame_locator("iframe")
        frame.locator(".panel").first.wait_for()
        return notebook, frame

    return open_it


def state_of(notebook) -> str:
    return notebook.evaluate("model.get('state')")


def test_the_page_is_in_the_frame_and_works(open_widget, recording):
    notebook, frame = open_widget(to_html(recording))
    expect(frame.locator("h1")).to_have_text("A title")
    expect(frame.locator(".thumbnail canvas")).to_have_count(sum(layer.weights.shape[1] for layer in recording.layers))
    frame.locator(".token").first.click()
    expect(frame.locator(".token[aria-selected=true]")).to_have_count(1)
    assert notebook.locator("iframe").get_attribute("title")


def test_what_is_chosen_in_the_page_is_the_state(open_widget, recording):
    notebook, frame = open_widget(to_html(recording))
    assert state_of(notebook) == ""  # nothing was chosen yet
    frame.locator(".thumbnail").nth(4).click()
    expect(frame.locator(".head-name")).to_have_text("encoder.1, head 1")
    notebook.wait_for_timeout(300)
    assert state_of(notebook) == "layer=encoder.1&head=1"
    assert [saved["state"] for saved in notebook.evaluate("saved")] == ["layer=encoder.1&head=1"]


def test_a_state_that_is_set_is_shown(open_widget, recording):
    notebook, frame = open_widget(to_html(recording), "layer=decoder.1&head=2")
    expect(frame.locator(".head-name")).to_have_text("decoder.1, head 2")
    notebook.evaluate("model.set('state', 'layer=encoder.0&head=0&token=source.3')")
    expect(frame.locator(".head-name")).to_have_text("encoder.0, head 0")
    expect(frame.locator(".token[aria-selected=true]")).to_have_text("too")
    notebook.wait_for_timeout(300)
    assert notebook.evaluate("saved") == []  # setting the state sends nothing back
    notebook.evaluate("model.set('state', 'layer=nowhere')")
    expect(frame.locator(".token[aria-selected=true]")).to_have_count(0)
    notebook.wait_for_timeout(300)
    assert re.fullmatch(r"layer=cross\.[01]&head=\d", state_of(notebook))  # what is shown instead


def test_two_recordings_are_compared_in_a_frame(open_widget, recording, make_recording):
    other = make_recording(("▁The", "▁cat", "</s>"), title="Another title")
    _, frame = open_widget(to_html(recording, compare_with=other))
    expect(frame.locator(".compare-panel.b figcaption")).to_contain_text("Another title")
    expect(frame.locator(".compare-panel.difference canvas[data-cell]")).to_be_visible()


def test_the_frame_is_as_high_as_the_page_up_to_a_bound(open_widget, recording):
    notebook, _ = open_widget(to_html(recording), height=500)
    assert notebook.locator("iframe").bounding_box()["height"] == 500
    notebook.evaluate("model.set('height', 9000)")
    notebook.wait_for_timeout(400)
    high = notebook.locator("iframe").bounding_box()["height"]
    assert 500 < high < 4000
    inner = notebook.frames[1].evaluate("[document.documentElement.scrollHeight, window.innerHeight]")
    assert inner[0] <= inner[1] + 1  # nothing to scroll


def test_the_page_reaches_nothing_of_the_notebook(open_widget, recording):
    """The frame is sandboxed, without the notebook's origin; messages from other frames are ignored."""
    notebook, frame = open_widget(to_html(recording))
    assert notebook.locator("iframe").get_attribute("sandbox") == SANDBOX == "allow-scripts allow-downloads"
    inside = notebook.frames[1]
    assert inside.evaluate("window.origin") == "null"
    reach = "() => { try { return String(window.parent.document); } catch (error) { return error.name; } }"
    assert inside.evaluate(reach) == "SecurityError"
    before = frame.locator(".head-name").inner_text()
    notebook.evaluate("window.postMessage({regard: {state: 'layer=encoder.0&head=1', height: 3}}, '*')")
    inside.evaluate("window.postMessage({regard: {state: 'layer=encoder.0&head=1'}}, '*')")
    notebook.wait_for_timeout(300)
    assert state_of(notebook) == ""
    assert frame.locator(".head-name").inner_text() == before
    assert notebook.locator("iframe").bounding_box()["height"] > 100


def test_a_closed_view_removes_its_listeners(open_widget, recording):
    notebook, frame = open_widget(to_html(recording))
    assert notebook.evaluate("listeners.length") == 3
    notebook.evaluate("end()")
    assert notebook.evaluate("listeners.length") == 0
    frame.locator(".thumbnail").nth(4).click()
    notebook.wait_for_timeout(300)
    assert state_of(notebook) == ""


def test_hostile_tokens_run_nothing_in_a_notebook(open_widget, make_recording):
    tokens = (
        "</script><script>parent.postMessage(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</iframe>",
        "&quot;",
    )
    recording = make_recording(tokens, tokens, title="</title><script>alert(1)</script>")
    _, frame = open_widget(to_html(recording))
    assert "<img src=x" in frame.locator(".token").nth(1).inner_text()


def test_the_html_of_a_recording_is_the_page_in_a_frame(open_file, recording, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><title>A notebook</title>{recording._repr_html_()}', "utf-8")
    notebook = open_file(path)
    frame = notebook.frame_locator("iframe")
    expect(frame.locator("h1")).to_have_text("A title")
    frame.locator(".thumbnail").nth(4).click()
    expect(frame.locator(".head-name")).to_have_text("encoder.1, head 1")
    notebook.wait_for_timeout(400)  # in which an address would have been written
    assert notebook.frames[1].evaluate("window.origin") == "null"
    assert notebook.locator("iframe").bounding_box()["height"] == HtmlFrame("").height


def test_the_widget_is_what_anywidget_takes(recording):
    anywidget = pytest.importorskip("anywidget")
    from regard.explore.widget import ExplorerWidget

    widget = ExplorerWidget(html=to_html(recording))
    assert isinstance(widget, anywidget.AnyWidget)
    sent = widget.get_state()
    assert sent["_esm"] == static("widget.mjs")
    assert {name: sent[name] for name in ("state", "height")} == {"state": "", "height": 800}
    widget.set_state({"state": "layer=encoder.0&head=1"})  # as the front end does
    assert widget.state == "layer=encoder.0&head=1"
