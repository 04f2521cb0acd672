"""``regard serve``: a recording of any length in the browser, from this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    recording: Annotated[Path, typer.Argument(help="A recording, as `regard show -o run.regard` saves it.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Explore a recording of any length in the browser.

    Shows an overview down to single weights, for texts of 16,384 tokens and more; weights are computed from the
    recording when they are shown, exactly. Prints the URL, which contains an access token, and listens on localhost
    until Ctrl-C.

        regard serve run.regard
        regard serve run.regard --port 8000 --no-open
    """
    import regard

    def on_ready(url: str) -> None:
        typer.echo(url)
        typer.echo("Press Ctrl-C to stop.", err=True)
        if browser:
            typer.launch(url)

    regard.explore.serve(regard.load(recording), port, on_ready)
