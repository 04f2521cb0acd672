"""The command ``regard``: its commands, and how each of them reports failures."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from regard import __version__
from regard.cli.check import check
from regard.cli.classify import classify
from regard.cli.compare import compare
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.fill_mask import fill_mask
from regard.cli.generate import generate
from regard.cli.heads import heads
from regard.cli.info import info
from regard.cli.playground import playground
from regard.cli.score import score
from regard.cli.segments import segments
from regard.cli.serve import serve
from regard.cli.show import show
from regard.cli.steps import steps
from regard.cli.tag import tag
from regard.cli.train import train
from regard.cli.translate import translate
from regard.errors import RegardError


class Command(TyperCommand):
    """A command whose errors name an option as it is typed, ``--top-k`` instead of ``top_k``, and its value."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the options."""
        try:
            return super().make_context(*args, **kwargs)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            if errors := getattr(error.__cause__, "errors", None):  # of pydantic, which newer versions of typer use
                value = repr(errors()[0]["input"])
                error.message += "" if value in error.message else f", got {value}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RegardError as error:
            options = {str(parameter.name): parameter.opts[0] for parameter in self.params}
            raise type(error)(name_options(str(error), options)) from error


def name_options(message: str, options: Mapping[str, str]) -> str:
    """Replace names of arguments in an error message by the options of the command.

    Examples:
        >>> name_options("top_k: expected an int of at least 1, got 0", {"top_k": "--top-k"})
        '--top-k: expected an int of at least 1, got 0'
    """
    pattern = rf"(?<![\w.-])({'|'.join(options)})(?=: expected )"
    return re.sub(pattern, lambda match: options[match[1]], message).replace(", or None, got", ", got")


app = typer.Typer(
    name="regard",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Command)(show)
app.command(cls=Command)(compare)
app.command(cls=Command)(heads)
app.command(cls=Command)(segments)
app.command(cls=Command)(serve)
app.command(cls=Command)(playground)
app.command(cls=Command)(translate)
app.command(cls=Command)(generate)
app.command(cls=Command)(classify)
app.command(cls=Command)(tag)
app.command(cls=Command)(fill_mask)
app.command(cls=Command)(steps)
app.command(cls=Command)(evaluate)
app.command(cls=Command)(score)
app.command(cls=Command, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    train
)  # keys of the recipe
app.command(cls=Command)(export)
app.command(cls=Command)(check)
app.command(cls=Command)(info)


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Inspect attention weights; train, evaluate and run Transformers.

    Start with `regard show "The cat sat on the mat."` and open the page it writes. `regard COMMAND --help` has
    examples.
    """


def main() -> None:
    """Run a command; an error is one message on stderr and exit code 2, Ctrl-C is 130, a closed pipe is silent."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "▒" shows "?"
    try:
        try:
            app()
        finally:
            print(end="", flush=True)
    except RegardError as error:
        fail(str(error))
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _open_closed_streams() -> None:
    """Discard what is written to streams that the shell closed, as `>&-` does, for which Python has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def _discard_output() -> None:
    """Drop buffered output, which Python would try to write again at exit."""
    sys.stdout = io.StringIO()


def fail(message: str) -> None:
    """Print a message to stderr and exit with code 2."""
    print(f"regard: {message}", file=sys.stderr)
    sys.exit(2)
