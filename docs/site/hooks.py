"""For the site: the page of commands, the playground, and search from disk, where browsers allow no workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from regard.explore.playground import write_playground
from regard.pipelines import Translator

SHIM = Path(__file__).parents[2] / "tests/explore/js/node_modules/iframe-worker/shim/index.js"
"""A worker in an iframe, which the theme would load from a network. npm installs it."""

PLAYGROUND = "playground.html"
HELP = ["-m", "typer", "regard.cli.main", "utils", "docs", "--name", "regard", "--title"]


def on_files(files: Files, *, config: Any) -> Files:
    """Add the help of all commands, the playground, and the shim, for theme/main.html."""
    page = subprocess.run([sys.executable, *HELP, "Command line"], capture_output=True, text=True, check=True).stdout
    files.append(File.generated(config, "command_line.md", content=page))
    with tempfile.TemporaryDirectory() as folder:
        write_playground(Translator.load(), Path(folder) / PLAYGROUND)
        files.append(File.generated(config, PLAYGROUND, content=(Path(folder) / PLAYGROUND).read_bytes()))
    if SHIM.exists():
        config.extra["iframe_worker"] = "assets/iframe_worker.js"
        files.append(File.generated(config, config.extra["iframe_worker"], abs_src_path=str(SHIM)))
    return files
