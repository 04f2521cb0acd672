"""The page: a recording as one self-contained HTML file that opens from disk and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InvalidType
from regard.explore.packing import pack
from regard.files import atomic_write

if TYPE_CHECKING:
    from regard.analysis.recording import Recording

MODULES = (
    "main.js",
    "data.js",
    "bytes.js",
    "heads.js",
    "together.js",
    "links.js",
    "views.js",
    "layer.js",
    "remote.js",
    "tokens.js",
    "state.js",
    "colour.js",
    "elements.js",
    "theme.js",
    "legend.js",
    "overview.js",
    "matrix.js",
    "matrix_drawing.js",
    "layout.js",
    "text.js",
    "arcs.js",
    "readout.js",
    "words.js",
    "alignment.js",
    "translation.js",
    "generation.js",
    "image.js",
    "rollout.js",
    "graph.js",
    "graph_plan.js",
    "calculation.js",
    "calculating.js",
    "compare.js",
    "compare_legend.js",
    "compare_panel.js",
    "compare_ranking.js",
    "pairing.js",
    "differences.js",
    "host.js",
    "csv.js",
    "exports.js",
    "svg.js",
    "svg_context.js",
    "shown.js",
    "merging.js",
    "hidden.js",
)
"""The JavaScript modules of the page; each imports another as ``#name.js``."""

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(recording: Recording, path: str | os.PathLike[str], *, compare_with: Recording | None = None) -> Path:
    """Write a recording as one HTML file that shows what attends to what.

    The file is written whole or not at all (see :func:`regard.files.atomic_write`).

    Args:
        recording: What to show.
        path: Where the file shall lie; a file that is there is replaced.
        compare_with: Another recording, with which the first is compared.

    Returns:
        The path of the file.

    Raises:
        InvalidType: If a recording or the path has a wrong type.
        InvalidArgument: If the recording cannot be shown, with every reason.
        InvalidFile: If the file cannot be written there.

    Memory:
        O(queries + keys) for each head.

    Example:
        >>> import regard, tempfile, torch
        >>> from regard.analysis.layer import Layer
        >>> from regard.analysis.recording import Recording
        >>> weights = regard.weights(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 2, 64))
        >>> recording = Recording("a title", "a model", (Layer("encoder.0", "encoder", weights, ("a",), ("b", "c")),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_page(recording, Path(folder) / "attention.html").name
        'attention.html'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"path: expected where the page shall lie, got {path!r:.80}")
    content = page(recording, compare_with=compare_with).encode("utf-8", "xmlcharrefreplace")
    with atomic_write(path) as file:
        file.write(content)
    return Path(path)


def page(recording: Recording, *, compare_with: Recording | None = None) -> str:
    """Make the text of the page: a template with its style, its modules and the recording's data.

    Nothing is written into JavaScript or CSS: the modules are put in as they lie in ``static/``, as ``data:`` addresses
    of an import map, and the data is two blocks that no browser runs. The Content-Security-Policy allows the scripts
    and the style of this very file by their hashes, and no connection.

    Args:
        recording: What to show.
        compare_with: Another recording, with which the first is compared.

    Returns:
        A whole HTML document.

    Raises:
        InvalidArgument: If the recording cannot be shown, with every reason.
    """
    header, blocks = pack(recording, compare_with)
    return document(header, blocks)


def document(header: dict[str, Any], blocks: Sequence[bytes], connect: str = "'none'") -> str:
    """The page of metadata and blocks, which may ask for more from `connect`, a source of the policy."""
    style, boot = static("page.css"), static("boot.js")
    modules = json.dumps({"imports": {f"#{name}": _data_url(static(name)) for name in MODULES}}, indent=1)
    policy = "; ".join(
        [
            "default-src 'none'",
            # boot.js inserts the first module's script element; what a trusted script inserts is trusted in turn.
            f"script-src 'strict-dynamic' {hash_of(modules)} {hash_of(boot)}",
            f"style-src {hash_of(style)}",
            "img-src data:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": policy,
        "title": html.escape(header["title"] or header["model"]),
        "style": style,
        "modules": modules,
        "recording": _inert(header),
        "blocks": "\n".join(map(_block, range(len(blocks)), blocks)),
        "boot": boot,
    }
    # One pass over the template: what is put in is never looked through for places again.
    return _PLACE.sub(lambda place: parts[place[1]], static("page.html"))


def static(name: str) -> str:
    """The text of a file that lies beside this module, in ``static/``."""
    return (files("regard.explore") / "static" / name).read_text(encoding="utf-8")


def _block(number: int, data: bytes) -> str:
    """A block of bytes that no browser runs."""
    text = base64.b64encode(data).decode("ascii")
    return f'<script type="application/octet-stream" id="block-{number}">{text}</script>'


def _data_url(source: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(source.encode("utf-8")).decode("ascii")


def hash_of(source: str) -> str:
    """Name an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode('ascii')}'"


def _inert(value: dict[str, Any]) -> str:
    """Write JSON in which no character can end the script element that holds it; lone surrogates stay escaped."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
