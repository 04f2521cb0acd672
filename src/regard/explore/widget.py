"""The page as a widget of notebooks: JupyterLab, Notebook, VS Code, Colab and marimo, by anywidget."""

from __future__ import annotations

import anywidget
import traitlets

from regard.explore.frame import HEIGHT
from regard.explore.page import static


class PageWidget(anywidget.AnyWidget):
    """The page in a frame of its own; what is chosen there is `state` here, and the other way round.

    Args:
        page: A whole HTML document, as `regard.explore.page.page` makes it.
        state: What is chosen, as the address of the page tells it behind ``#``: ``layer=encoder.0&head=3``.
        height: So many CSS pixels the frame has at most; a longer page scrolls in it.

    Example:
        >>> widget = PageWidget(page="<!doctype html>…", state="layer=encoder.0&head=3")
        >>> widget.state
        'layer=encoder.0&head=3'
    """

    _esm = static("widget.mjs")
    page = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(HEIGHT).tag(sync=True)
