"""The picture that a model of images saw, small enough to lie in a recording and in a page."""

from __future__ import annotations

from typing import Any

SIDE = 512
"""So many pixels a picture has at most in each direction."""
BYTES = 4 * 2**20
"""So many bytes a picture takes at most."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZES = slice(16, 20), slice(20, 24)  # width and height in IHDR, the first chunk; each 4 bytes, the highest first


def picture_objections(picture: Any) -> list[str]:
    """Say what is wrong with a picture, if anything: it is a PNG of at most `SIDE` pixels a side and `BYTES` bytes.

    Only its beginning is read; what follows is for whoever draws it.
    """
    if picture is None:
        return []
    if not isinstance(picture, bytes):
        return [f"picture: expected the bytes of a PNG, or None, got {type(picture).__name__}"]
    if len(picture) > BYTES:
        return [f"picture: expected at most {BYTES:,} bytes, got {len(picture):,}"]
    if not picture.startswith(_SIGNATURE) or picture[12:16] != b"IHDR":
        return [f"picture: expected the bytes of a PNG, got {len(picture):,} bytes that begin with {picture[:8]!r}"]
    width, height = (int.from_bytes(picture[place], "big") for place in _SIZES)
    if not (0 < width <= SIDE and 0 < height <= SIDE):
        return [f"picture: expected 1 to {SIDE} pixels a side, got {width} × {height}"]
    return []
