"""The page within another page, as a notebook's: in a frame from which nothing of it can be reached."""

from __future__ import annotations

import html
from dataclasses import dataclass

from regard.analysis import recording as recording_module
from regard.analysis.recording import Recording
from regard.errors import InvalidArgument
from regard.explore.page import page

HEIGHT = 800
"""CSS pixels of a frame, in which the page scrolls if it is longer."""
SANDBOX = "allow-scripts allow-downloads"
"""What the page may do in a frame: run its own scripts, and save files. Not: be of the notebook's origin."""
LARGEST = 20_000_000
"""Characters of a page that is shown without being asked for, as the value of a cell; notebooks keep what they show."""


@dataclass(frozen=True)
class Frame:
    """A page that notebooks show as HTML, where there is no widget.

    Args:
        page: A whole HTML document.
        height: In CSS pixels.
    """

    page: str
    height: int = HEIGHT

    def __repr__(self) -> str:
        return f"Frame({len(self.page):,} characters)"

    def _repr_html_(self) -> str:
        style = f"display: block; width: 100%; height: {self.height}px; border: 0"
        return (
            f'<iframe title="What attends to what" sandbox="{SANDBOX}" style="{style}" '
            f'srcdoc="{html.escape(self.page)}"></iframe>'
        )


def preview(recording: Recording) -> str:
    """The HTML that a notebook shows for a recording: its page in a frame, or, if that is large, what to call instead.

    A recording that cannot be shown, as one of a batch, is the last value of a cell, too; its HTML says why.
    """
    try:
        text = page(recording)
    except InvalidArgument as error:
        return f"<p>{html.escape(str(error))}</p>"
    if len(text) <= LARGEST:
        return Frame(text)._repr_html_()
    return (
        f"<p>A recording of {len(recording.layers)} layers, whose page takes {len(text) / 1e6:,.0f} MB: "
        "<code>regard.show(recording)</code> shows it, <code>regard.show(recording, path)</code> writes it.</p>"
    )


recording_module.html_preview = preview  # so that analysis does not import what draws it
