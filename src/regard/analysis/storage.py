"""A recording as one file: tensors, and how they belong together as JSON; nothing in it is code.

The file is one of safetensors. Its metadata say for each layer what its weights follow from: masks and scores are named
by their classes and hold tensors of the file. A user-defined class must be defined in the process that reads the file.
A checksum of all of it tells a damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidFile, RegardError, raise_problems
from regard.files import atomic_write
from regard.ops import WeightMatrix
from regard.ops.masks import Mask, as_mask, to_spans
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest, make_request
from regard.ops.rules import Rule, class_by_id, class_id, registered
from regard.ops.scores import Score, as_score
from regard.ops.tree import subtrees

VERSION = 3
AXES = ("batch", "heads", "rows")
"""The axes of which `WeightMatrix.at` selects a part."""


def write(path: str | os.PathLike[str], about: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
    """Write what is made of plain values, tensors, views of weights, and masks, scores and measures.

    Args:
        path: Where the file shall lie.
        about: What to write, by name.
        dtype: What queries and keys are written in. Default: as they are.

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
        InvalidFile: If the file is missing, damaged, of another version, or something else, or if it names a class that
            is not defined in this process.
    """
    place = Path(path)
    if place.is_dir():
        raise InvalidFile(f"{place}: is a folder; a recording is one file, as *.regard")
    if not place.is_file():
        raise InvalidFile(f"{place}: there is no such file")
    with reading(place):
        data = place.read_bytes()  # not mapped: a file that is overwritten meanwhile would end the process
        metadata = _metadata(data)
        told = metadata.get("regard")
        if told is None:
            raise InvalidFile(f"{place}: is no recording: it says nothing of one")
        about = json.loads(told)
        if not isinstance(about, dict) or about.get("version") != VERSION:
            came = about.get("version") if isinstance(about, dict) else None
            raise InvalidFile(f"{place}: expected a recording of version {VERSION}, but it is of {came!r}")
        tensors = load(data)
        if metadata.get("checksum") != checksum(told, tensors):
            raise InvalidFile(f"{place}: is damaged: its checksum is not that of what it holds")
        _check_classes(place, about)
        return {name: _unpacked(part, tensors) for name, part in about.items() if name != "version"}


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: its header is JSON behind eight bytes that hold its length."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError("the header is longer than the file")
    return json.loads(data[8 : 8 + length]).get("__metadata__") or {}


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
        return {"weights": _packed(_of_matrix(thing.detach(), dtype), tensors, dtype)}  # refused if stale
    if isinstance(thing, Mapping):
        return {"by name": {str(name): _packed(part, tensors, dtype) for name, part in thing.items()}}
    if isinstance(thing, (tuple, list)):
        for measure in registered(Measure).values():
            if getattr(measure, "result_type", None) is type(thing):
                parts = dict(zip(thing._fields, thing, strict=True))  # pyright: ignore[reportAttributeAccessIssue]
                return {"result": class_id(measure), "parts": _packed(parts, tensors, dtype)}
        return [_packed(part, tensors, dtype) for part in thing]
    if isinstance(thing, Rule):
        taken = inspect.signature(type(thing)).parameters
        missing = [name for name in taken if name not in vars(thing)]
        if missing:
            raise InvalidArgument(
                f"a file cannot hold a {type(thing).__name__}: expected attributes named like the arguments of its "
                f"constructor, got no {', '.join(missing)}"
            )
        parts = {name: getattr(thing, name) for name in taken}
        return {"rule": class_id(type(thing)), "arguments": _packed(parts, tensors, dtype)}
    raise InvalidArgument(f"a file holds no {type(thing).__name__}: {thing!r} is code, or unknown")


def _of_matrix(weights: WeightMatrix, dtype: torch.dtype | None) -> dict[str, Any]:
    request = weights.request
    mask = request.mask
    if mask is not None and any(isinstance(part, Rule) and part.holds_code for part in subtrees(mask)):
        shape = request.full_shape or request.shape
        mask = to_spans(mask, shape, request.offset, request.query.device)
        if mask is None:
            raise InvalidArgument("a file holds no mask that is a function, with so many ranges of keys in a row")
    query, key = (part if dtype is None else part.to(dtype) for part in (request.query, request.key))
    rules = {"mask": mask, "score": request.score, "scale": request.scale, "offset": request.offset}
    part = {} if weights.valid_queries is None else {"valid_queries": weights.valid_queries}
    if request.full_shape is not None:
        part |= {"full_shape": request.full_shape, **{axis: getattr(request, axis) for axis in AXES}}
    return {"query": query, "key": key, **rules, **part}


def _matrix(valid_queries: Tensor | None = None, **rest: Any) -> WeightMatrix:
    """The matrix that was written."""
    request = _request(**rest)
    if valid_queries is not None:
        batch, _, queries, _ = request.shape
        with Checks() as checks:
            checks.tensor("valid_queries", valid_queries, "bool", shapes={"(batch, queries)": (batch, queries)})
    return WeightMatrix(request, valid_queries)


def _request(
    query: Tensor,
    key: Tensor,
    mask: Mask | None,
    score: Score,
    scale: float,
    offset: int,
    full_shape: tuple[int, int, int, int] | None = None,
    **indices: Tensor | None,
) -> AttentionRequest:
    """The request that was written, with everything checked that a user's call checks."""
    if full_shape is None:
        return make_request(query, key, mask=mask, score=score, scale=scale, offset=offset, **indices)
    request = make_request(query, key, scale=scale, offset=offset)
    mask, score = None if mask is None else as_mask(mask), as_score(score)
    keys = request.shape[3]
    if len(full_shape) != 4 or full_shape[3] != keys:
        raise InvalidArgument(f"full_shape: expected (batch, heads, queries, {keys}), got {full_shape!r:.80}")
    with Checks() as checks:
        for axis, size, full in zip(AXES, request.shape, full_shape, strict=False):
            _check_index(checks, axis, indices[axis], size, full)
    with Checks() as checks:
        if mask is not None:
            mask.check(checks, full_shape, query.device)
        score.check(checks, full_shape, query.shape[3], query.device)
    selected = {axis: None if index is None else index.to(torch.int64) for axis, index in indices.items()}
    return replace(request, mask=mask, score=score, full_shape=full_shape, **selected)


def _check_index(checks: Checks, axis: str, index: Tensor | None, size: int, full: int) -> None:
    """Check the indices of the entries that were selected along an axis; None for all of them."""
    if index is None:
        checks.that(size == full, f"{axis}: expected all {full} entries or their indices, got {size} without indices")
    elif checks.tensor(axis, index, "integer", shapes={f"({axis},)": (size,)}):
        low, high = int(index.min()), int(index.max())
        checks.that(
            low >= 0 and high < full, f"{axis}: expected indices from 0 to {full - 1}, got {low if low < 0 else high}"
        )


def _check_classes(path: Path, about: Mapping[str, Any]) -> None:
    """Refuse a file whose classes are not all defined in this process.

    Raises:
        InvalidFile: Naming each of them.
    """
    problems = []
    for name in _classes_in(about):
        try:
            class_by_id(name)
        except InvalidArgument as error:
            problems.append(f"{path}: {error}")
    raise_problems(problems, InvalidFile)


def _classes_in(told: Any) -> Iterator[str]:
    """The classes that a file names."""
    if not isinstance(told, (dict, list)):
        return
    if isinstance(told, dict):
        if set(told) in ({"rule", "arguments"}, {"result", "parts"}):
            yield told["rule"] if "rule" in told else told["result"]
        told = told["by name"].values() if set(told) == {"by name"} else told.values()
    for part in told:
        yield from _classes_in(part)


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
        return _matrix(**_unpacked(told["weights"], tensors))
    if set(told) == {"rule", "arguments"}:
        return class_by_id(told["rule"])(**_unpacked(told["arguments"], tensors))
    if set(told) == {"result", "parts"}:
        measure: Any = class_by_id(told["result"])
        return measure.result_type(**_unpacked(told["parts"], tensors))
    raise InvalidArgument(f"{', '.join(map(repr, sorted(told)[:5]))} is no kind of thing that a recording has")
