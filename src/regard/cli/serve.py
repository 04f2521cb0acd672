"""``regard serve``: a recording of any length in the browser, from this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    recording: Annotated[
        Path, typer.Argument(help="A recording, as recording.save(path) writes it.", metavar="RUN.regard")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen.", show_default="one that is free")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show a recording in the browser, from its overview down to single cells, also of texts of 16,384 tokens.

    What is looked at is computed from the recording, exactly. Only this machine is answered, and only who knows the
    address, which holds a secret. Ctrl-C ends it.

        regard serve run.regard
        regard serve run.regard --port 8000 --no-open
    """
    import regard
    from regard.explore import server

    def ready(address: str) -> None:
        typer.echo(address)
        typer.echo("Ctrl-C ends it.", err=True)
        if browser:
            typer.launch(address)

    server.serve(regard.load(recording), port, ready)
