"""Show a recording: in a browser, or where the code is written, in a notebook."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from regard.explore.frame import Frame
from regard.explore.page import page, write_page

if TYPE_CHECKING:
    from regard.analysis.recording import Recording
    from regard.explore.widget import PageWidget

NAME = "attention.html"


def show(
    recording: Recording, path: str | os.PathLike[str] | None = None, *, beside: Recording | None = None
) -> Path | PageWidget | Frame:
    """Show what attends to what: in a notebook below the cell, elsewhere as a page in the browser.

    Args:
        recording: What to show.
        path: Where the page shall lie. Default: in a notebook nowhere, elsewhere ``attention.html`` in a new temporary
            folder.
        beside: Another recording, with which the first is compared.

    Returns:
        In a notebook a widget, whose ``state`` is what is chosen, or a frame where anywidget is not installed
        (``pip install 'regard[notebook]'``). Elsewhere the path of the page, so that it can be opened by hand where no
        browser was found.

    Raises:
        InvalidArgument: If a recording cannot be shown, or the two not be compared, with every reason.
        InvalidFile: If the page cannot be written there.
    """
    if in_notebook():
        if path is not None:
            write_page(recording, path, beside=beside)
        return _in_cell(page(recording, beside=beside))
    place = write_page(
        recording, Path(tempfile.mkdtemp(prefix="regard-"), NAME) if path is None else path, beside=beside
    )
    webbrowser.open(place.resolve().as_uri())
    return place


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
