"""Display a recording: `show` opens its page in the browser or in a notebook, which also displays bare recordings."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InvalidArgument
from regard.explore.html_page import to_html, write_html
from regard.explore.pack import check, plan_layers
from regard.explore.sketch import count_cells, count_top_keys
from regard.recordings.recording import Recording

if TYPE_CHECKING:
    from regard.explore.widget import ExplorerWidget
    from regard.watching.result import WatchResult

FILE_NAME = "attention.html"
HEIGHT = 800
"""Height of a frame in CSS pixels; a longer page scrolls in it."""
SANDBOX = "allow-scripts allow-downloads"
"""What the page may do in a frame: run its own scripts and save files. It does not share the notebook's origin."""
MAX_PREVIEW_BYTES = 20_000_000
"""Largest page that a notebook displays for a bare recording; notebooks save what they display."""
BYTES_PER_BLOCK, BYTES_PER_TOP_KEY = 1.0, 2.5
"""Typical bytes in a page, deflated and in base64, of a block of its maps, and of a named key with its weight."""


def show(
    recording: Recording | WatchResult,
    path: str | os.PathLike[str] | None = None,
    *,
    tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
    compare_with: Recording | None = None,
) -> Path | ExplorerWidget | HtmlFrame:
    """Show what attends to what: in a notebook below the cell, elsewhere as a page in the browser.

    Args:
        recording: A recording of one sequence, or the result of `regard.watch`, whose last recording is shown. Of a
            batch, select a sequence first: ``regard.show(result.recording.select(1, tokens=tokens))``.
        path: Where to write the page. Default: nowhere in a notebook, elsewhere ``attention.html`` in a new temporary
            folder.
        tokens: The tokens of the sequence. Default: those of the recording; if it has none, numbers.
        target_tokens: Those of the decoder, in a model with encoder and decoder.
        compare_with: Another recording, with which the first is compared.

    Returns:
        In a notebook a widget, whose ``state`` is what the page shows, or an `HtmlFrame` if anywidget is not installed
        (``pip install 'regard[notebook]'``). Elsewhere the path of the page, so that you can open it yourself if no
        browser was found.

    Raises:
        InvalidType: If something is not a recording, or tokens are not a list of tokens.
        InvalidArgument: If a recording cannot be shown, two cannot be compared, or a layer has another number of
            tokens; the message has every reason.
        InvalidFile: If the page cannot be written there.
    """
    selected = _one_sequence(recording, tokens, target_tokens)
    is_notebook = in_notebook()
    if is_notebook and path is None:
        return _in_cell(to_html(selected, compare_with=compare_with))
    file = write_html(
        selected,
        Path(tempfile.mkdtemp(prefix="regard-"), FILE_NAME) if path is None else path,
        compare_with=compare_with,
    )
    if is_notebook:
        return _in_cell(file.read_bytes().decode("utf-8"))
    webbrowser.open(file.resolve().as_uri())
    return file


def _one_sequence(
    result: Recording | WatchResult, tokens: Sequence[str] | None, target_tokens: Sequence[str] | None
) -> Recording:
    """The recording, or the last one of a watch, with the names of its tokens."""
    recording: Any = getattr(result, "recording", result)
    check(recording)
    if recording is result and tokens is None and target_tokens is None:
        return recording
    return recording.select(tokens=tokens, target_tokens=target_tokens)


def in_notebook() -> bool:
    """Whether this runs in a notebook: in a shell of IPython that has a kernel, or in marimo."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _in_cell(text: str) -> ExplorerWidget | HtmlFrame:
    if find_spec("anywidget") is None:
        return HtmlFrame(text)
    from regard.explore.widget import ExplorerWidget

    return ExplorerWidget(html=text)


@dataclass(frozen=True)
class HtmlFrame:
    """A page that notebooks display in a sandboxed frame, where there is no widget.

    Args:
        html: A whole HTML document.
        height: Height of the frame in CSS pixels.
    """

    html: str
    height: int = HEIGHT

    def __repr__(self) -> str:
        return f"HtmlFrame({len(self.html):,} characters)"

    def _repr_html_(self) -> str:
        style = f"display: block; width: 100%; height: {self.height}px; border: 0"
        return (
            f'<iframe title="What attends to what" sandbox="{SANDBOX}" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


def notebook_html(recording: Recording) -> str:
    """The HTML that a notebook displays for a bare recording: its page in a frame.

    If the page would be large, or the recording cannot be shown, as one of a batch, the HTML says what to do.
    """
    try:
        check(recording)
        size = estimate_page_bytes(recording)
        if size <= MAX_PREVIEW_BYTES:
            return HtmlFrame(to_html(recording))._repr_html_()
    except InvalidArgument as error:
        return f"<p>{escape(str(error))}</p>"
    return (
        f"<p>A recording of {len(recording.layers)} layers, whose page takes about {size / 1e6:,.0f} MB: "
        "<code>regard.show(recording)</code> shows it, <code>regard.show(recording, path)</code> writes it.</p>"
    )


def estimate_page_bytes(recording: Recording) -> float:
    """The size of a page, to within a factor of about 2, without computing any weights.

    How well weights compress depends on the model: it is least where they are spread evenly.
    """
    shapes = [layer.weights.shape for layer in recording.layers]
    plans, qkv_bytes = plan_layers(recording)
    blocks, top_keys = count_cells(plans, shapes), count_top_keys(plans, shapes)
    return BYTES_PER_BLOCK * blocks + BYTES_PER_TOP_KEY * top_keys + qkv_bytes * 4 / 3  # in base64
