"""`regard.show`: in the browser or in a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from helpers.explore.page_cases import NOT_COMPUTED
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.explore.display import SANDBOX, HtmlFrame, estimate_page_bytes, in_notebook
from regard.explore.html_page import to_html
from regard.explore.pack import pack
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """The URLs that a browser opened; temporary folders are in the test's folder."""
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return opened


@pytest.fixture
def notebook(monkeypatch):
    """A notebook, as far as `in_notebook` can know."""
    ipython = pytest.importorskip("IPython")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell)
    return shell


def test_a_page_is_written_and_opened(recording, opened, tmp_path):
    path = regard.show(recording, tmp_path / "a page.html")
    assert path == tmp_path / "a page.html"
    assert path.read_text("utf-8") == to_html(recording)
    assert opened == [path.as_uri()]
    assert "a%20page.html" in opened[0]


def test_without_a_path_the_page_is_in_a_temporary_folder(recording, opened, tmp_path):
    one, other = regard.show(recording), regard.show(recording)
    assert one.name == "attention.html"
    assert tmp_path in one.parents
    assert one.parent != other.parent  # which would replace an open page
    assert opened == [one.as_uri(), other.as_uri()]


def test_two_are_compared(recording, make_recording, opened, tmp_path):
    other = make_recording(("a", "b"), ("c",), title="Another title")
    path = regard.show(recording, str(tmp_path / "both.html"), compare_with=other)
    assert path.read_text("utf-8") == to_html(recording, compare_with=other)
    with pytest.raises(InvalidType, match="compare_with: expected a Recording"):
        regard.show(recording, compare_with=tmp_path)


def test_what_cannot_be_written_opens_nothing(recording, opened, tmp_path):
    with pytest.raises(InvalidFile, match="nowhere"):
        regard.show(recording, tmp_path / "nowhere" / "a.html")
    assert opened == []


def test_the_last_recording_of_a_watch_is_shown(opened, tmp_path):
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with regard.watch(model) as result:
        model(torch.randn(1, 5, 8))
        model(torch.randn(1, 3, 8))
    tokens = ["x", "y", "z"]
    path = regard.show(result, tmp_path / "a.html", tokens=tokens)
    assert path.read_text("utf-8") == to_html(result.recording.select(tokens=tokens))
    assert opened == [path.as_uri()]
    first = result.recordings[0].select()
    both = regard.show(result, tmp_path / "b.html", tokens=tokens, compare_with=first)
    assert both.read_text("utf-8") == to_html(result.recording.select(tokens=tokens), compare_with=first)
    assert regard.show(result, tmp_path / "c.html").read_text("utf-8") == to_html(result.recording)
    with pytest.raises(InvalidArgument, match="tokens: expected 3 tokens for self_attn, got 2"):
        regard.show(result, tmp_path / "d.html", tokens=["x", "y"])


def test_of_a_batch_one_sequence_is_selected_first(opened, tmp_path):
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with regard.watch(model) as result:
        with pytest.raises(InvalidArgument, match="nothing was recorded yet"):
            regard.show(result, tmp_path / "a.html")
        model(torch.randn(2, 3, 8))
    tokens = ["x", "y", "z"]
    with pytest.raises(InvalidArgument, match=r"^recording: expected one sequence, got a batch of 2; select one"):
        regard.show(result, tmp_path / "a.html", tokens=tokens)
    assert opened == []
    one = result.recording.select(1)
    path = regard.show(one, tmp_path / "a.html", tokens=tokens)
    assert path.read_text("utf-8") == to_html(result.recording.select(1, tokens=tokens))


def test_a_target_has_tokens_of_its_own(opened, make_recording, tmp_path):
    recording = make_recording(("a", "b"), ("c", "d", "e"))
    path = regard.show(recording, tmp_path / "a.html", tokens=["v", "w"], target_tokens=["x", "y", "z"])
    assert path.read_text("utf-8") == to_html(recording.select(tokens=["v", "w"], target_tokens=["x", "y", "z"]))


@pytest.mark.parametrize("wrong", [3, None, "run.regard"])
def test_what_is_not_a_recording_is_refused(wrong, opened):
    with pytest.raises(
        InvalidType,
        match=f"^recording: expected a Recording or the result of regard.watch, got {type(wrong).__name__}$",
    ):
        regard.show(wrong, tokens=["a"])
    assert opened == []


def test_in_a_notebook_it_is_a_widget(recording, make_recording, notebook, opened, tmp_path):
    pytest.importorskip("anywidget")
    other = make_recording(title="Another title")
    widget = regard.show(recording, compare_with=other)
    assert widget.html == to_html(recording, compare_with=other)
    assert widget.state == ""
    assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()[0]
    widget = regard.show(recording, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8") == widget.html == to_html(recording)
    assert opened == []


def test_a_shell_without_a_kernel_is_not_a_notebook(recording, notebook, opened):
    notebook.kernel = None
    assert not in_notebook()
    assert isinstance(regard.show(recording), Path)


def test_marimo_is_a_notebook(monkeypatch):
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    assert in_notebook()


def test_without_anywidget_it_is_a_frame(recording, notebook, opened, monkeypatch):
    monkeypatch.setattr("regard.explore.display.find_spec", lambda name: None)
    shown = regard.show(recording)
    assert shown == HtmlFrame(to_html(recording))
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
    assert attributes["srcdoc"] == to_html(recording)
    assert attributes["sandbox"] == SANDBOX
    assert "same-origin" not in SANDBOX


@pytest.fixture
def packed(monkeypatch):
    """The recordings that were packed into a page."""
    calls = []

    def count(recording, *others):
        calls.append(recording)
        return pack(recording, *others)

    monkeypatch.setattr("regard.explore.html_page.pack", count)
    return calls


@pytest.mark.parametrize("has_widget", [True, False])
@pytest.mark.parametrize("has_path", [True, False])
def test_a_notebook_packs_a_recording_once(
    recording, notebook, opened, packed, tmp_path, monkeypatch, has_widget, has_path
):
    if has_widget:
        pytest.importorskip("anywidget")
    else:
        monkeypatch.setattr("regard.explore.display.find_spec", lambda name: None)
    regard.show(recording, tmp_path / "a.html" if has_path else None)
    assert packed == [recording]
    assert (tmp_path / "a.html").exists() == has_path


def test_a_bare_recording_is_displayed_without_importing_the_explorer(tmp_path, recording):
    recording.save(tmp_path / "a.regard")
    program = f"""
import sys
from regard.recordings import load
recording = load({str(tmp_path / "a.regard")!r})
assert "regard.explore.display" not in sys.modules
assert recording._repr_html_().startswith("<iframe")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_bare_recording_is_packed_once(recording, packed):
    assert recording._repr_html_().startswith("<iframe")
    assert packed == [recording]


def test_a_large_recording_is_not_packed_and_explains_how_to_show_it(packed):
    weights = regard.weights(torch.zeros(1, 32, 1000, 1), torch.zeros(1, 1, 1000, 1), score=NOT_COMPUTED)
    layers = [Layer(f"encoder.{index}", "encoder", weights) for index in range(32)]
    text = Recording("", "", layers)._repr_html_()
    assert packed == []
    assert re.fullmatch(
        "<p>A recording of 32 layers, whose page takes about [23][0-9] MB: <code>regard.show\\(recording\\)</code> "
        "shows it, <code>regard.show\\(recording, path\\)</code> writes it.</p>",
        text,
    )
    assert packed == []


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
@pytest.mark.parametrize(("heads", "tokens", "layers"), [(8, 128, 4), (8, 512, 2), (4, 2000, 1), (2, 100, 1)])
def test_the_size_of_a_page_is_estimated_to_a_factor_of_2(heads, tokens, layers, sharpness):
    torch.manual_seed(0)
    recording = Recording(
        "",
        "",
        [
            Layer(
                str(index),
                "encoder",
                regard.weights(sharpness * torch.randn(1, heads, tokens, 64), torch.randn(1, heads, tokens, 64)),
            )
            for index in range(layers)
        ],
    )
    without_data = len(to_html(Recording("", "", [Layer("a", "encoder", regard.weights(*torch.zeros(2, 1, 1, 1, 1)))])))
    assert 0.5 < estimate_page_bytes(recording) / (len(to_html(recording)) - without_data) < 2


def test_the_html_of_a_batch_explains_why_it_is_not_shown(make_recording):
    weights = regard.weights(torch.zeros(2, 1, 3, 8), torch.zeros(2, 1, 3, 8))
    recording = make_recording().replace(layers=[Layer("<b>", "encoder", weights)])
    assert recording._repr_html_() == (
        "<p>recording: expected one sequence, got a batch of 2; select one with recording.select(0), "
        "of a watch with result.recording.select(0)</p>"
    )
