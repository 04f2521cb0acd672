"""A recording as one file: tensors, and how they belong together as JSON; nothing in it is code.

The file is one of safetensors. Its metadata say for each layer what its weights follow from: masks and scores are named
by their classes, of which the ones listed here are known, and hold tensors of the file. A checksum of all of it tells a
damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.errors import InvalidArgument, InvalidFile, RegardError
from regard.files import atomic_write
from regard.ops import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    Causal,
    Documents,
    Mask,
    Neighbours,
    Padding,
    Prefix,
    RelativeKey,
    ScaledDotProduct,
    Sinks,
    SoftCap,
    T5RelativeBias,
    WeightMatrix,
    Window,
)
from regard.ops.masks import And, DenseMask, FlexBlockMask, MaskMod, MaskOfHeads, Not, Or, Spans, to_spans
from regard.ops.measures.entropy import MaxResult
from regard.ops.measures.topk import TopKResult
from regard.ops.request import AttentionRequest, make_request
from regard.ops.scores import ScoreOfHeads, Sum

VERSION = 2
RULES = (And, Or, Not, Causal, Window, Padding, Prefix, Documents, Neighbours, DenseMask, Spans, MaskOfHeads)
SCORES = (
    ScaledDotProduct,
    Bilinear,
    Additive,
    RelativeKey,
    Bias,
    Alibi,
    T5RelativeBias,
    SoftCap,
    Sinks,
    Sum,
    ScoreOfHeads,
)
KNOWN = {kind.__name__: kind for kind in (*RULES, *SCORES, MaxResult, TopKResult)}


def write(path: str | os.PathLike[str], about: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
    """Write what is made of plain values, tensors, views of weights and the known rules.

    Args:
        path: Where the file shall lie.
        about: What to write, by name.
        dtype: What queries, keys and values are written in. Default: as they are.

    Raises:
        InvalidArgument: If something is of a kind that no file can hold.
        InvalidFile: If the file cannot be written.
    """
    if dtype not in (None, torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise InvalidArgument(f"dtype: expected torch.float32, float16, bfloat16 or float64, got {dtype!r}")
    tensors: dict[str, Tensor] = {}
    told = {"version": VERSION, **{name: _packed(part, tensors, dtype) for name, part in about.items()}}
    text = json.dumps(told)  # in ASCII: a token may hold half a surrogate pair, which no UTF-8 has
    data = save(tensors, {"regard": text, "checksum": checksum(text, tensors)})
    with atomic_write(path) as file:
        file.write(data)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write` wrote, by name.

    Raises:
        InvalidFile: If the file is missing, damaged, of another version, or something else.
    """
    place = Path(path)
    if place.is_dir():
        raise InvalidFile(f"{place}: is a folder; a recording is one file, as *.regard")
    if not place.is_file():
        raise InvalidFile(f"{place}: there is no such file")
    with reading(place), safe_open(str(place), "pt") as file:
        metadata = file.metadata() or {}
        told = metadata.get("regard")
        if told is None:
            raise InvalidFile(f"{place}: is no recording: it says nothing of one")
        about = json.loads(told)
        if not isinstance(about, dict) or about.get("version") != VERSION:
            came = about.get("version") if isinstance(about, dict) else None
            raise InvalidFile(f"{place}: expected a recording of version {VERSION}, but it is of {came!r}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        if metadata.get("checksum") != checksum(told, tensors):
            raise InvalidFile(f"{place}: is damaged: its checksum is not that of what it holds")
        return {name: _unpacked(part, tensors) for name, part in about.items() if name != "version"}


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of what goes wrong that a file is no recording, or a damaged one; and why, where this library knows it.

    Raises:
        InvalidFile: Instead of whatever else may come of what a stranger wrote.
    """
    wrong = f"{Path(path)}: is no recording, or a damaged one"
    try:
        yield
    except InvalidFile:
        raise
    except RegardError as error:
        raise InvalidFile(f"{wrong}: {error}") from error
    except OSError as error:
        raise InvalidFile(f"{Path(path)}: could not be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        raise InvalidFile(wrong) from error


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of a text and of tensors."""
    found = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _packed(thing: Any, tensors: dict[str, Tensor], dtype: torch.dtype | None) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, Tensor):
        name = str(len(tensors))
        tensors[name] = thing.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(thing, bytes):
        return {"bytes": _packed(torch.from_numpy(np.frombuffer(thing, np.uint8).copy()), tensors, dtype)}
    if isinstance(thing, WeightMatrix):
        return {"weights": _packed(_of_request(thing.detach().request, dtype), tensors, dtype)}  # refused if stale
    if isinstance(thing, Mapping):
        return {"by name": {str(name): _packed(part, tensors, dtype) for name, part in thing.items()}}
    if type(thing) in (MaxResult, TopKResult):
        return {type(thing).__name__: _packed(thing._asdict(), tensors, dtype)}
    if isinstance(thing, (tuple, list)):
        return [_packed(part, tensors, dtype) for part in thing]
    if is_dataclass(thing) and type(thing) in KNOWN.values():
        taken = inspect.signature(type(thing)).parameters
        parts = {field.name: getattr(thing, field.name) for field in fields(thing) if field.name in taken}
        return {type(thing).__name__: _packed(parts, tensors, dtype)}
    raise InvalidArgument(f"a file holds no {type(thing).__name__}: {thing!r} is code, or unknown")


def _of_request(request: AttentionRequest, dtype: torch.dtype | None) -> dict[str, Any]:
    mask = request.mask
    if mask is not None and _holds_function(mask):
        mask = to_spans(mask, request.shape, request.offset, request.query.device)
        if mask is None:
            raise InvalidArgument("a file holds no mask that is a function, with so many ranges of keys in a row")
    if any(part is not None for part in request.origin):
        raise InvalidArgument("a file holds whole layers, and no part that `at` gave")
    query, key = (part if dtype is None else part.to(dtype) for part in (request.query, request.key))
    rules = {"mask": mask, "score": request.score, "scale": request.scale, "offset": request.offset}
    return {"query": query, "key": key, **rules}


def _holds_function(mask: Mask) -> bool:
    if isinstance(mask, (MaskMod, FlexBlockMask)):
        return True
    return any(_holds_function(part) for part in vars(mask).values() if isinstance(part, Mask))


def _unpacked(told: Any, tensors: Mapping[str, Tensor]) -> Any:
    if told is None or isinstance(told, (bool, int, float, str)):
        return told
    if isinstance(told, list):
        return tuple(_unpacked(part, tensors) for part in told)
    if set(told) == {"tensor"}:
        return tensors[told["tensor"]]
    if set(told) == {"bytes"}:
        return tensors[told["bytes"]["tensor"]].numpy().tobytes()
    if set(told) == {"by name"}:
        return {name: _unpacked(part, tensors) for name, part in told["by name"].items()}
    if set(told) == {"weights"}:
        return WeightMatrix(make_request(**_unpacked(told["weights"], tensors)))
    if len(told) == 1 and next(iter(told)) in KNOWN:
        ((name, parts),) = told.items()
        return KNOWN[name](**_unpacked(parts, tensors))
    raise InvalidArgument(f"{', '.join(map(repr, sorted(told)[:5]))} is no kind of thing that a recording has")
