"""The texts that a command reads: its argument, a file, or the lines of a file; or a recording of a text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer

from regard.cli.options import RECORDING_SUFFIX, reject_options
from regard.cli.output import note
from regard.errors import InvalidArgument, InvalidFile, short_repr
from regard.text.display import is_blank
from regard.text.lines import display_name, read_lines


def check_texts(texts: Mapping[str, str | None]) -> None:
    """Check arguments of the command line that are texts, by their names; None is skipped.

    Raises:
        InvalidArgument: If one is empty or not UTF-8.
    """
    from regard.checks import Checks

    with Checks() as checks:
        for name, text in texts.items():
            if text is None or not checks.that(not is_blank(text), f"{name}: expected a text, got {short_repr(text)}"):
                continue
            try:
                text.encode()
            except UnicodeEncodeError as error:  # Python decodes bytes that are not UTF-8 as surrogates
                byte = ord(text[error.start]) & 0xFF
                checks.fail(f"{name}: expected UTF-8, got the byte 0x{byte:02x} as character {error.start + 1}")


class InputText(NamedTuple):
    """A text, and where it is from: None for the argument; else the file, with the line if it is one of several."""

    text: str
    origin: str | None = None
    line: int | None = None

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Put the file and line before the message of an `InvalidArgument`."""
        try:
            yield
        except InvalidArgument as error:
            message = str(error)
            raise InvalidArgument(
                f"{self.origin}: {message.removeprefix('text: ')}" if self.origin else message
            ) from None


def read_texts(text: str | None, file: Path | None, lines: bool | None = None) -> list[InputText]:
    """The texts of a command: its argument, a file as one text, or the lines of a file that are not empty.

    Args:
        text: The argument.
        file: The value of ``--file``.
        lines: The value of ``--lines``; None if the command does not have this option.

    Raises:
        InvalidArgument: If there is not exactly one of argument and file, or the argument is not a text.
        InvalidFile: If the file cannot be read or is empty.
    """
    if (text is None) == (file is None):
        raise InvalidArgument(f"text: expected a text or --file, got {'neither' if text is None else 'both'}")
    if file is None:
        if lines:
            raise InvalidArgument("--lines: expected --file with one text per line, got a text; leave --lines out")
        assert text is not None
        check_texts({"text": text})
        return [InputText(text)]
    name, texts = display_name(file), list(read_lines(file))
    numbered = [
        InputText(line, f"{name}, line {number}", number) for number, line in enumerate(texts, 1) if not is_blank(line)
    ]
    if not numbered:
        raise InvalidFile(f"{name}: expected a text, got an empty file")
    if lines:
        return numbered
    if len(numbered) > 1 and lines is not None:
        note(f"{name}: {len(numbered):,} lines are read as one text; --lines reads one text per line")
    return [InputText("\n".join(texts), name)]


def find_recording(context: typer.Context, text: str | None, file: Path | None, unused: Iterable[str]) -> Path | None:
    """The recording that the argument or ``--file`` names, by its suffix; None if they are a text.

    Args:
        context: The context of the command.
        text: The argument.
        file: The value of ``--file``.
        unused: Parameters of the command that are for texts only.

    Raises:
        InvalidFile: If there is no such file.
        InvalidArgument: If one of the unused parameters is set.
    """
    path = _recording_path(text) if file is None else file if file.suffix == RECORDING_SUFFIX else None
    if path is None or (text is not None and file is not None):
        return None
    if not path.exists():
        raise InvalidFile(f"{path}: no such file; a text that ends in {RECORDING_SUFFIX} is the name of a recording")
    reject_options(context, unused, "not used with a recording")
    return path


def reject_recording(name: str, text: str | None, why: str) -> None:
    """Refuse the name of a recording where a command needs a text.

    Args:
        name: Name of the argument.
        text: Its value.
        why: Why the command needs a text.

    Raises:
        InvalidArgument: If the text is the name of a recording.
    """
    if _recording_path(text) is not None:
        raise InvalidArgument(
            f"{name}: expected a text, because {why}, got {short_repr(text)}; `regard show`, `heads` and `segments` "
            "open a recording"
        )


def _recording_path(text: str | None) -> Path | None:
    """The path that a text is; None if it does not end as a recording does, or has several lines."""
    return Path(text) if text is not None and text.endswith(RECORDING_SUFFIX) and "\n" not in text else None


def note_file_name(text: str | None) -> None:
    """Print a note if a text is the name of a file, which a user may have meant to read."""
    if text is not None and os.path.isfile(text):
        note(f"{short_repr(text)} is read as a text, not as the file of that name; --file reads a file")
