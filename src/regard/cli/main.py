"""The command ``regard``: its verbs, and what every failure looks like to the person who typed it."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from regard import __version__
from regard.cli.classify import classify
from regard.cli.compare import compare
from regard.cli.evaluate import evaluate
from regard.cli.fill_mask import fill_mask
from regard.cli.generate import generate
from regard.cli.heads import heads
from regard.cli.info import info
from regard.cli.serve import serve
from regard.cli.show import show
from regard.cli.steps import steps
from regard.cli.train import train
from regard.cli.translate import translate
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(show)
app.command()(compare)
app.command()(heads)
app.command()(serve)
app.command()(translate)
app.command()(generate)
app.command()(classify)
app.command()(fill_mask)
app.command()(steps)
app.command()(evaluate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)  # any key of a recipe
app.command()(info)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Inspect attention weights; train, evaluate and run Transformers.

    Begin with `regard show "The cat sat on the mat."` and open the page it writes.
    """


def main() -> None:
    """Run a command; a refusal is one message on stderr and exit code 2, Ctrl-C is 130, a closed pipe is silent."""
    _open_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no "▒" shows "?"
    try:
        try:
            app()
        finally:
            print(end="", flush=True)
    except RegardError as error:
        fail(str(error))
    except BrokenPipeError:
        _forget_output()
        sys.exit(1)
    except OSError as error:
        _forget_output()
        fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _open_output() -> None:
    """Where the shell closed a stream, as `>&-` does, Python has None: what is written there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def _forget_output() -> None:
    """Let go of what could not be written, so that Python does not try once more at its end, and complain."""
    sys.stdout = io.StringIO()


def fail(message: str) -> None:
    """Print one message to stderr and leave with code 2."""
    print(f"regard: {message}", file=sys.stderr)
    sys.exit(2)
