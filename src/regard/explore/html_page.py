"""The page: a recording as one self-contained HTML file that opens from disk and makes no network requests."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.errors import InvalidType, short_repr
from regard.explore.pack import pack
from regard.explore.static_files import hash_of, inert_json, module_scripts, static, style_sheet
from regard.files import atomic_write
from regard.tracing.steps import SENTENCES

if TYPE_CHECKING:
    from regard.recordings.recording import Recording

_KINDS = {
    "recording": ("index.html", "page", "main.js"),
    "playground": ("index.html", "page", "live/main.js"),
    "steps": ("steps.html", "steps_page", "calculation/main.js"),
}
"""The template, the style sheet and the main module of each kind of page."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_html(recording: Recording, path: str | os.PathLike[str], *, compare_with: Recording | None = None) -> Path:
    """Write a recording as one HTML file that shows what attends to what.

    The file is written whole or not at all (see :func:`regard.files.atomic_write`).

    Args:
        recording: What to show.
        path: The file to write; an existing file is replaced.
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
        >>> from regard.recordings.layer import Layer
        >>> from regard.recordings.recording import Recording
        >>> weights = regard.weights(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 2, 64))
        >>> recording = Recording("a title", "a model", (Layer("encoder.0", "encoder", weights, ("a",), ("b", "c")),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_html(recording, Path(folder) / "attention.html").name
        'attention.html'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"path: expected str or os.PathLike, the file to write, got {short_repr(path)}")
    content = to_html(recording, compare_with=compare_with).encode("utf-8", "xmlcharrefreplace")
    with atomic_write(path) as file:
        file.write(content)
    return Path(path)


def to_html(recording: Recording, *, compare_with: Recording | None = None) -> str:
    """Make the text of the page: a template with its style, its modules and the recording's data.

    The modules of ``static/`` go into one deflated block, the recording into others; browsers run none of these. One
    script, ``boot.js``, inflates the modules and inserts them as scripts. The Content-Security-Policy allows all
    scripts and the style by their hashes, and no connection.

    Args:
        recording: What to show.
        compare_with: Another recording, with which the first is compared.

    Returns:
        A whole HTML document.

    Raises:
        InvalidArgument: If the recording cannot be shown, with every reason.
    """
    header, blocks = pack(recording, compare_with)
    return render_html(header, blocks)


def render_html(
    header: Mapping[str, Any],
    blocks: Sequence[bytes],
    connect: str = "'none'",
    *,
    kind: Literal["recording", "steps"] = "recording",
    worker: str | None = None,
) -> str:
    """The page of metadata and blocks.

    Args:
        header: What the page's main module reads.
        blocks: Bytes that it reads.
        connect: From where it may load more, a source of its Content-Security-Policy.
        kind: What it shows: a recording, or the steps of a calculation.
        worker: The script of the worker of a playground. Only then the policy allows a worker, from the page itself,
            and that WebAssembly is compiled. Default: a page of a recording.
    """
    template, sheet, entry = _KINDS[kind if worker is None else "playground"]
    style, boot, scripts = style_sheet(sheet), static("boot.js"), module_scripts(entry)
    policy = "; ".join(
        [
            "default-src 'none'",
            " ".join(
                ["script-src", *map(hash_of, (boot, *scripts.values())), *(["'wasm-unsafe-eval'"] if worker else [])]
            ),
            *(["worker-src blob:"] if worker else []),
            f"style-src {hash_of(style)}",
            "img-src data:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    inert = {f"block-{number}": _base64(block) for number, block in enumerate(blocks)}
    if worker is not None:
        inert["worker"] = _deflated(worker)
    parts = {
        "policy": policy,
        "title": html.escape(header["title"] or header["model"]),
        "style": style,
        "modules": _deflated(json.dumps(scripts)),
        "recording": inert_json(header),
        "sentences": inert_json(SENTENCES),
        "blocks": "\n".join(starmap(_block, inert.items())),
        "boot": boot,
    }
    # One pass over the template: what is put in is never looked through for places again.
    return _PLACE.sub(lambda place: parts[place[1]], static(template))


@lru_cache(maxsize=2)  # a server builds its page for each request
def _deflated(text: str) -> str:
    return _base64(zlib.compress(text.encode("utf-8")))


def _block(name: str, data: str) -> str:
    """A block of bytes in base64 that no browser runs."""
    return f'<script type="application/octet-stream" id="{name}">{data}</script>'


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
