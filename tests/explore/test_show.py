"""Where a recording is shown: in the browser, or in the notebook that asks."""

from __future__ import annotations

import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.explore import frame as frames
from regard.explore.frame import SANDBOX, Frame
from regard.explore.page import page
from regard.explore.show import in_notebook


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """What browsers were asked to open; temporary folders lie in the test's own."""
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda url: asked.append(url) or True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return asked


@pytest.fixture
def notebook(monkeypatch):
    """A notebook, as far as it can be told from here."""
    ipython = pytest.importorskip("IPython")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell)
    return shell


def test_a_page_is_written_and_opened(recording, opened, tmp_path):
    path = recording.show(tmp_path / "a page.html")
    assert path == tmp_path / "a page.html"
    assert path.read_text("utf-8") == page(recording)
    assert opened == [path.as_uri()]
    assert "a%20page.html" in opened[0]


def test_without_a_path_it_lies_in_a_temporary_folder(recording, opened, tmp_path):
    one, other = recording.show(), recording.show()
    assert one.name == "attention.html"
    assert tmp_path in one.parents
    assert one.parent != other.parent  # which would replace a page that is being looked at
    assert opened == [one.as_uri(), other.as_uri()]


def test_two_are_compared(recording, make_recording, opened, tmp_path):
    other = make_recording(("a", "b"), ("c",), title="Another title")
    path = recording.show(str(tmp_path / "both.html"), beside=other)
    assert path.read_text("utf-8") == page(recording, beside=other)
    with pytest.raises(InvalidType, match="beside: expected a Recording"):
        recording.show(beside=tmp_path)


def test_what_cannot_be_written_opens_nothing(recording, opened, tmp_path):
    with pytest.raises(InvalidFile, match="nowhere"):
        recording.show(tmp_path / "nowhere" / "a.html")
    assert opened == []


def test_a_watch_is_shown(opened, tmp_path):
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with regard.watch(model) as seen:
        model(torch.randn(2, 3, 8))
    path = seen.show(tmp_path / "a.html", 1, tokens=["x", "y", "z"], title="Of a watch")
    about = {"tokens": ["x", "y", "z"], "title": "Of a watch"}
    assert path.read_text("utf-8") == page(seen.recording(1, **about))
    both = seen.show(tmp_path / "b.html", 1, beside=seen.recording(0, **about), **about)
    assert both.read_text("utf-8") == page(seen.recording(1, **about), beside=seen.recording(0, **about))
    assert opened == [path.as_uri(), both.as_uri()]
    with pytest.raises(InvalidArgument, match="sequence: there are 2; choose one"):
        seen.show(tmp_path / "c.html")


def test_in_a_notebook_it_is_a_widget(recording, make_recording, notebook, opened, tmp_path):
    pytest.importorskip("anywidget")
    other = make_recording(title="Another title")
    widget = recording.show(beside=other)
    assert widget.page == page(recording, beside=other)
    assert widget.state == ""
    assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()[0]
    recording.show(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8") == page(recording)
    assert opened == []


def test_a_shell_without_a_kernel_is_no_notebook(recording, notebook, opened):
    notebook.kernel = None
    assert not in_notebook()
    assert isinstance(recording.show(), Path)


def test_marimo_is_a_notebook(monkeypatch):
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    assert in_notebook()


def test_without_anywidget_it_is_a_frame(recording, notebook, opened, monkeypatch):
    monkeypatch.setattr("regard.explore.show.find_spec", lambda name: None)
    shown = recording.show()
    assert shown == Frame(page(recording))
    assert len(repr(shown)) < 100


class Frames(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_a_recording_is_a_sandboxed_frame_and_nothing_else(make_recording):
    recording = make_recording(title="\"></iframe><script>alert('x')</script>&quot;")
    ((tag, attributes),) = Frames(recording._repr_html_()).found
    assert tag == "iframe"
    assert attributes["srcdoc"] == page(recording)
    assert attributes["sandbox"] == SANDBOX
    assert "same-origin" not in SANDBOX


def test_a_large_recording_says_how_it_is_shown(recording, monkeypatch):
    monkeypatch.setattr(frames, "LARGEST", 1000)
    text = recording._repr_html_()
    assert len(text) < 400
    assert "recording.show()" in text
