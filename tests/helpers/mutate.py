"""Damage to files: flipped, lost and repeated bytes, and odd values in JSON, YAML, tables and tensors."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
from collections.abc import Callable
from typing import Any

import torch

HUGE, DEEP = "<5,000 digits>", "<100,000 brackets>"
"""Stand for values that no writer would write: they are put into the text."""
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**63, 10**30, 1e308, 1e-320, 0.5, math.nan, math.inf, -math.inf, "", "x",
    "\ud800", "\0", "../x", "/dev/zero", "x" * 10_000, "é" * 300, [], {}, [[]], [None], {"a": []}, {"": 1}, HUGE, DEEP,
)  # fmt: skip
LITTERS = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 5000,
    b'"\\ud800"',
    b"NaN",
    b"-1",
    b"\n\n",
    b"\xed\xa0\x80",
)


def mutate(data: bytes, kind: str, draw: random.Random) -> bytes:
    """A damaged copy of a file.

    Args:
        data: What the file contains.
        kind: ``json``, ``yaml``, ``table``, ``safetensors``, ``torch``, ``gzip`` or ``bytes``.
        draw: Decides what is damaged.
    """
    structured = STRUCTURED.get(kind)
    if structured is not None and draw.random() < 0.6:
        return structured(data, draw)
    return draw.choice(BYTES)(data, draw)


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 1, 2, 10))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _flip_at_an_end(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    changed[
        draw.choice((0, -1)) if draw.random() < 0.2 else draw.randrange(-min(200, len(changed)), min(200, len(changed)))
    ] = draw.randrange(256)
    return bytes(changed)


def _truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:]


def _remove(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start + draw.choice((1, 2, 8, 100)) :]


def _litter(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + draw.choice(LITTERS) + data[start:]


def _empty(data: bytes, draw: random.Random) -> bytes:
    return draw.choice((b"", b"\n", b"\0" * 512, b"null", b"{}", b"[]"))


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _flip, _flip_at_an_end, _truncate, _repeat, _remove, _litter, _empty
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value, with each of its keys or positions."""
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def change_value(value: Any, draw: random.Random, odd: tuple[Any, ...] = ODD) -> Any:
    """A nested value with one odd part: replaced, removed, renamed or repeated. Changes the value in place."""
    places = _places(value)
    if not places or draw.random() < 0.02:
        return draw.choice(odd)
    container, key = draw.choice(places[:40] if draw.random() < 0.7 else places)  # the first are the short ones
    way = draw.random()
    if way < 0.7:
        container[key] = draw.choice(odd)
    elif way < 0.8:
        del container[key]
    elif isinstance(container, dict):
        container[draw.choice(("", "x", "\ud800", "é" * 300))] = container.pop(key)
    else:
        container.extend(container[key : key + 1] * 3)
    return value


def _as_text(value: Any) -> bytes:
    text = (
        json.dumps(value).replace(json.dumps(HUGE), "9" * 5000).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)
    )
    return text.encode("utf-8", "surrogatepass")


def _json(data: bytes, draw: random.Random) -> bytes:
    return _as_text(change_value(json.loads(data), draw))


def _yaml(data: bytes, draw: random.Random) -> bytes:
    """JSON is YAML, too; or aliases that double what they repeat."""
    if draw.random() < 0.1:
        bomb = ["x0: &x0 [a, a]"] + [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 8)]
        return "\n".join([*bomb, f"{draw.choice(('task', 'model', 'data'))}: *x7"]).encode()
    import yaml

    return _as_text(change_value(yaml.safe_load(data), draw))


def _table(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    row = draw.randrange(len(lines))
    mark = b"\t" if b"\t" in data else b"," if b"," in data else b" "
    cells = lines[row].split(mark)
    cells[draw.randrange(len(cells))] = draw.choice(
        (
            b"",
            b"-1",
            b"9" * 5000,
            b"NaN",
            b"inf",
            b"1e9",
            b"\xff",
            b"\0",
            b"\xed\xa0\x80",
            b'"',
            b"\r",
            mark,
            b"x" * 200_000,
            "٣".encode(),
        )
    )
    lines[row] = mark.join(cells)
    return b"\n".join(lines)


def _safetensors(data: bytes, draw: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _as_text(change_value(json.loads(data[8 : 8 + size]), draw))
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _torch(data: bytes, draw: random.Random) -> bytes:
    """Plain data that torch wrote, written again with an odd part."""
    odd = (
        *(each for each in ODD if each not in (HUGE, DEEP, "\ud800")),
        torch.zeros(0),
        torch.tensor(math.nan),
        torch.ones(3, 3, dtype=torch.int64),
    )
    buffer = io.BytesIO()
    torch.save(change_value(torch.load(io.BytesIO(data), weights_only=True), draw, odd), buffer)
    return buffer.getvalue()


def _gzip(data: bytes, draw: random.Random) -> bytes:
    return gzip.compress(_table(gzip.decompress(data), draw), mtime=0)


STRUCTURED = {
    "json": _json, "yaml": _yaml, "table": _table, "safetensors": _safetensors, "torch": _torch, "gzip": _gzip,
}  # fmt: skip
