"""Write docs/command_line.md from the help of each command.

Run: ``python tools/write_command_line_page.py``; with ``--print`` it prints the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "command_line.md"
COMMAND = [
    sys.executable,
    "-m",
    "typer",
    "regard.cli.main",
    "utils",
    "docs",
    "--name",
    "regard",
    "--title",
    "Command line",
]


def page() -> str:
    """The help of all commands as Markdown."""
    return subprocess.run(COMMAND, capture_output=True, text=True, check=True).stdout.rstrip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
