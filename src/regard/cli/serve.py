"""``regard serve``: a recording of any length in the browser, from this machine."""

from __future__ import annotations

import html
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>Regard</title>
<a href="{url}">Open the recording</a>
"""


def serve(
    recording: Annotated[Path, typer.Argument(help="A recording, as `regard show -o run.regard` saves it.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Explore a recording of any length in the browser.

    Shows an overview down to single weights, for texts of 16,384 tokens and more; weights are computed from the
    recording when they are shown, exactly. Prints the URL, which contains an access token, and listens on localhost
    until Ctrl-C. The browser opens a temporary file that only you can read and that leads to the URL, because other
    users of this machine can see the arguments of programs.

        regard serve run.regard
        regard serve run.regard --port 8000 --no-open
    """
    import regard

    loaded = regard.load(recording)
    with exit_on_signals(), tempfile.TemporaryDirectory(prefix="regard-", ignore_cleanup_errors=True) as folder:

        def on_ready(url: str) -> None:
            typer.echo(url)
            typer.echo("Press Ctrl-C to stop.", err=True)
            if browser:
                page = write_redirect(Path(folder), url).as_uri()
                # A browser in the terminal blocks until it is closed, and the server runs only after this function.
                threading.Thread(target=webbrowser.open, args=[page], daemon=True).start()

        regard.explore.serve(loaded, port, on_ready)


def write_redirect(folder: Path, url: str) -> Path:
    """Write a page that leads to a URL and that only this user can read."""
    path = folder / "open.html"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(REDIRECT.format(url=html.escape(url)))
    return path


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Leave the block, so that its files are removed, when the process is terminated or its terminal is closed."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
