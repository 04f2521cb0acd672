"""A figure of matplotlib that notebooks display. Importing this module imports matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that a notebook displays where pyplot was not imported.

    IPython learns how to display figures when pyplot is imported or a backend is chosen, and then displays this one in
    that way, too. pyplot does not know the figure, so it is displayed only once.
    """

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
