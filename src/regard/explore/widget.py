"""The page as a widget of notebooks: JupyterLab, Notebook, VS Code, Colab and marimo, by anywidget."""

from __future__ import annotations

import anywidget
import traitlets

from regard.explore.display import HEIGHT
from regard.explore.static_files import static


class ExplorerWidget(anywidget.AnyWidget):
    """The page in a sandboxed frame; its `state` and what the page shows follow each other.

    Args:
        html: A whole HTML document, as `regard.explore.html_page.to_html` returns it.
        state: What the page shows, as its address has it after ``#``: ``layer=encoder.0&head=3``.
        height: Maximum height of the frame in CSS pixels; a longer page scrolls in it.

    Example:
        >>> widget = ExplorerWidget(html="<!doctype html>…", state="layer=encoder.0&head=3")
        >>> widget.state
        'layer=encoder.0&head=3'
    """

    _esm = static("widget.mjs")
    html = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(HEIGHT).tag(sync=True)
