"""For the site: search also works when it is opened from disk, where browsers allow no workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SHIM = Path(__file__).parents[1] / "tests/explore/js/node_modules/iframe-worker/shim/index.js"
"""A worker in an iframe, which the theme would load from a network. npm installs it."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the shim to the site, for docs/theme/main.html."""
    if SHIM.exists():
        config.extra["iframe_worker"] = "assets/iframe_worker.js"
        files.append(File.generated(config, config.extra["iframe_worker"], abs_src_path=str(SHIM)))
    return files
