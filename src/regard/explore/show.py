"""`show`: a recording in the browser or in a notebook."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.explore.frame import Frame
from regard.explore.packing import check
from regard.explore.page import page, write_page

if TYPE_CHECKING:
    from regard.analysis.recording import Recording
    from regard.explore.widget import PageWidget
    from regard.watching.result import WatchResult

NAME = "attention.html"


def show(
    recording: Recording | WatchResult,
    path: str | os.PathLike[str] | None = None,
    *,
    tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
    compare_with: Recording | None = None,
) -> Path | PageWidget | Frame:
    """Show what attends to what: in a notebook below the cell, elsewhere as a page in the browser.

    Args:
        recording: A recording of one sequence, or what `regard.watch` yields, of which the last recording is shown.
            Of a batch, select a sequence first: ``regard.show(result.recording.select(1, tokens=tokens))``.
        path: Where to write the page. Default: in a notebook nowhere, elsewhere ``attention.html`` in a new temporary
            folder.
        tokens: The tokens of the sequence. Default: those of the recording; if it has none, numbers.
        target_tokens: Those of the decoder, in a model with encoder and decoder.
        compare_with: Another recording, with which the first is compared.

    Returns:
        In a notebook a widget, whose ``state`` is what is chosen, or a frame if anywidget is not installed
        (``pip install 'regard[notebook]'``). Elsewhere the path of the page, so that you can open it yourself if no
        browser was found.

    Raises:
        InvalidType: If something is not a recording, or tokens are not a list of tokens.
        InvalidArgument: If a recording cannot be shown, two cannot be compared, or a layer has another number of
            tokens; the message has every reason.
        InvalidFile: If the page cannot be written there.
    """
    shown = _one_sequence(recording, tokens, target_tokens)
    if in_notebook():
        if path is not None:
            write_page(shown, path, compare_with=compare_with)
        return _in_cell(page(shown, compare_with=compare_with))
    place = write_page(
        shown, Path(tempfile.mkdtemp(prefix="regard-"), NAME) if path is None else path, compare_with=compare_with
    )
    webbrowser.open(place.resolve().as_uri())
    return place


def _one_sequence(
    shown: Recording | WatchResult, tokens: Sequence[str] | None, target_tokens: Sequence[str] | None
) -> Recording:
    """The recording, or the last one of a watch, with the names of its tokens."""
    recording: Any = getattr(shown, "recording", shown)
    check(recording)
    if recording is shown and tokens is None and target_tokens is None:
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


def _in_cell(text: str) -> PageWidget | Frame:
    if find_spec("anywidget") is None:
        return Frame(text)
    from regard.explore.widget import PageWidget

    return PageWidget(page=text)
