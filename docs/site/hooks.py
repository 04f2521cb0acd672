"""For the site: the page of commands, and search that works from disk, where browsers allow no workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SHIM = Path(__file__).parents[2] / "tests/explore/js/node_modules/iframe-worker/shim/index.js"
"""A worker in an iframe, which the theme would load from a network. npm installs it."""

HELP = ["-m", "typer", "regard.cli.main", "utils", "docs", "--name", "regard", "--title"]


def on_files(files: Files, *, config: Any) -> Files:
    """Add the help of all commands, and the shim, for theme/main.html."""
    page = subprocess.run([sys.executable, *HELP, "Command line"], capture_output=True, text=True, check=True).stdout
    files.append(File.generated(config, "command_line.md", content=page))
    if SHIM.exists():
        config.extra["iframe_worker"] = "assets/iframe_worker.js"
        files.append(File.generated(config, config.extra["iframe_worker"], abs_src_path=str(SHIM)))
    return files
