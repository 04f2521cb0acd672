"""The ``.regard`` file: a recording as tensors and JSON (see docs/recording_file.md). Reading one runs no code.

It is a safetensors file whose metadata describe each layer: masks and scores by class name, with their tensors in the
file. A user-defined class must be defined in the process that reads the file. A checksum detects damage.
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
from safetensors import torch as safetensors
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidFile, RegardError, raise_problems, short_repr
from regard.files import as_path, atomic_write
from regard.input_files import read_file
from regard.ops import GradientMatrix, WeightMatrix
from regard.ops.masks import Mask, as_mask, to_spans
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest, make_request
from regard.ops.rules import Rule, class_by_id, class_id, registered
from regard.ops.scores import Score, as_score
from regard.ops.tree import subtrees
from regard.recordings.batch_axis_fields import axis_fields, axis_from
from regard.recordings.layer import Layer, LayerList, Numbers, require_one_sequence
from regard.recordings.recording import Recording

VERSION, VERSION_WITH_GRADIENTS, VERSION_WITH_ENTRIES = VERSIONS = (4, 5, 6)
"""Of the format: of plain recordings, of those with gradients of weights, and of those with layers of several windows,
images or tiles. Later releases read all of them, too."""

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
AXES = ("batch", "heads", "rows")
"""The axes of which `WeightMatrix.at` selects a part."""


def save_recording(recording: Recording, path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
    """Write a recording; see `Recording.save`."""
    path = as_path(path)
    if dtype is not None and dtype not in FLOATS:
        raise InvalidArgument(f"dtype: expected torch.float32, float16, bfloat16 or float64, got {short_repr(dtype)}")
    require_one_sequence(layer for layer in recording.layers if not _has_entries(layer))
    layers = [_layer_fields(layer, dtype) for layer in recording.layers]
    fields = {"title": recording.title, "model_name": recording.model_name, "texts": recording.texts, "layers": layers}
    if recording.image is not None:
        fields["image"] = recording.image
    tensors: dict[str, Tensor] = {}
    newer = (VERSION_WITH_ENTRIES, "batch_axis"), (VERSION_WITH_GRADIENTS, "output_gradient")
    version = next((number for number, name in newer if any(name in layer for layer in layers)), VERSION)
    header = {"version": version, **{name: _encode(part, tensors, dtype) for name, part in fields.items()}}
    text = json.dumps(header)  # in ASCII: a token may hold half a surrogate pair, which UTF-8 cannot encode
    data = safetensors.save(tensors, {"regard": text, "checksum": checksum(text, tensors)})
    end = 8 + int.from_bytes(data[:8], "little")
    with atomic_write(path) as file:
        file.write(_reproducible_head(data[8:end]))
        file.write(memoryview(data)[end:])


def _reproducible_head(head: bytes) -> bytes:
    """The length and the header of a safetensors file with sorted metadata, which safetensors writes in any order."""
    entries = json.loads(head)
    entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # tensors stay aligned
    return len(head).to_bytes(8, "little") + head


def _has_entries(layer: Layer) -> bool:
    """Whether the batch of a layer is several windows, images or tiles of one sequence, or all windows of an image."""
    axis = layer.batch_axis
    if axis is None or not axis.is_known or axis.num_sequences != 1:
        return False
    return layer.weights.shape[0] > 1 or axis.windows is not None


def _layer_fields(layer: Layer, dtype: torch.dtype | None) -> dict[str, Any]:
    weights, value, more = layer.weights.detach(), layer.value, {}
    if weights.grad is not None:
        factors = weights.grad.request
        value, more = factors.key, {"output_gradient": factors.query if dtype is None else factors.query.to(dtype)}
    return {
        "name": layer.name,
        "kind": layer.kind,
        "weights": weights,
        "query_tokens": None if isinstance(layer.query_tokens, Numbers) else layer.query_tokens,
        "key_tokens": None if isinstance(layer.key_tokens, Numbers) else layer.key_tokens,
        "measured": layer.measured,
        "value": value if value is None or dtype is None else value.to(dtype),
        "head_indices": None if layer.head_indices == tuple(range(layer.weights.shape[1])) else layer.head_indices,
        **more,
        **({"is_dense": True} if layer.is_dense else {}),
        **({"batch_axis": axis_fields(layer.batch_axis)} if layer.batch_axis and _has_entries(layer) else {}),
    }


def _layer(version: int, fields: dict[str, Any]) -> Layer:
    """The layer that was written."""
    if version >= VERSION_WITH_ENTRIES and "batch_axis" in fields:
        fields["batch_axis"] = axis_from(fields["batch_axis"], fields["weights"].shape, fields["name"])
    elif fields["weights"].shape[0] != 1:
        batch, name = fields["weights"].shape[0], short_repr(fields["name"])
        raise InvalidArgument(f"layer {name}: expected a batch of 1, or a batch_axis, got a batch of {batch}")
    if version < VERSION_WITH_GRADIENTS or "output_gradient" not in fields:
        return Layer(**fields)
    gradient = fields.pop("output_gradient")
    layer, where = Layer(**fields), f"layer {short_repr(fields['name'])}: output_gradient"
    if layer.value is None:
        raise InvalidArgument(f"{where}: expected the values that it belongs to, got none")
    shape = (*layer.weights.shape[:3], layer.value.shape[3])
    with Checks() as checks:
        checks.tensor(where, gradient, "floating-point", shapes={"(batch, heads, queries, value_dim)": shape})
    layer.weights.with_gradient(GradientMatrix.of(gradient, layer.value, layer.weights.valid_queries))
    return layer


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording that `Recording.save` wrote.

    Args:
        path: Path of the file. It is data, and reading it runs no code: user-defined masks, scores and measures must be
            defined in this process. It is read at once, so later changes of the file do no harm.

    Raises:
        InvalidFile: If it is missing, damaged, of a newer version, or not a recording, or if it names a class that is
            not defined in this process.

    Examples:
        >>> import regard, tempfile
        >>> recording = regard.pipelines.Translator.load().record("Thank you.")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(f"{folder}/thanks.regard")
        ...     again = regard.load(f"{folder}/thanks.regard")
        >>> again.layers.cross[0].query_tokens == recording.layers.cross[0].query_tokens
        True
    """
    file = as_path(path)
    if os.path.isdir(file):
        raise InvalidFile(f"{file}: expected a recording, a file such as run.regard, got a folder")
    data = read_file(file)  # not mapped: reading a mapped file that was truncated ends the process
    with as_invalid_file(file):
        metadata = _metadata(data)
        text = metadata.get("regard")
        if text is None:
            raise InvalidFile(f"{file}: expected a recording, got a safetensors file without the metadata of one")
        header = json.loads(text)
        version = header.get("version") if isinstance(header, dict) else None
        if isinstance(version, bool) or version not in VERSIONS:
            known = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"
            raise InvalidFile(f"{file}: expected a recording of version {known}, got version {short_repr(version)}")
        tensors = safetensors.load(data)
        if metadata.get("checksum") != checksum(text, tensors):
            raise InvalidFile(
                f"{file}: expected a recording, got a damaged file: its checksum does not match its content"
            )
        _check_classes(file, header)
        fields = {name: _decode(part, tensors) for name, part in header.items() if name != "version"}
        return Recording(layers=LayerList(_layer(version, layer) for layer in fields.pop("layers")), **fields)


def _metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, whose JSON header follows eight bytes with its length."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError("the header is longer than the file")
    return json.loads(data[8 : 8 + length]).get("__metadata__") or {}


@contextmanager
def as_invalid_file(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with the content of a file into an `InvalidFile` that names the file.

    Raises:
        InvalidFile: With the reason, where this library knows it.
    """
    problem = f"{path}: expected a recording, got a damaged file or one of another kind"
    try:
        yield
    except InvalidFile:
        raise
    except RegardError as error:
        raise InvalidFile(f"{problem}: {error}") from error
    except OSError as error:
        raise InvalidFile(f"{path}: could not be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError) as error:
        raise InvalidFile(problem) from error


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of a text and of tensors."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], dtype: torch.dtype | None) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, bytes):
        return {"bytes": _encode(torch.from_numpy(np.frombuffer(value, np.uint8).copy()), tensors, dtype)}
    if isinstance(value, WeightMatrix):
        weights = value.detach()  # refused if stale
        return {"attention_request": _encode(_request_fields(weights, dtype), tensors, dtype)}
    if isinstance(value, Mapping):
        return {"dict": {str(name): _encode(part, tensors, dtype) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        for measure in registered(Measure).values():
            if getattr(measure, "result_type", None) is type(value):
                parts = dict(zip(value._fields, value, strict=True))  # pyright: ignore[reportAttributeAccessIssue]
                return {"result": class_id(measure), "parts": _encode(parts, tensors, dtype)}
        return [_encode(part, tensors, dtype) for part in value]
    if isinstance(value, Rule):
        taken = inspect.signature(type(value)).parameters
        missing = [name for name in taken if name not in vars(value)]
        if missing:
            raise InvalidArgument(
                f"cannot save {type(value).__name__}: expected attributes named like the arguments of its "
                f"constructor, got no {', '.join(missing)}"
            )
        parts = {name: getattr(value, name) for name in taken}
        return {"rule": class_id(type(value)), "arguments": _encode(parts, tensors, dtype)}
    raise InvalidArgument(
        f"cannot save {type(value).__name__} {short_repr(value)}: a file holds data, not code or other objects"
    )


def _request_fields(weights: WeightMatrix, dtype: torch.dtype | None) -> dict[str, Any]:
    request = weights.request
    mask = request.mask
    if mask is not None and any(isinstance(part, Rule) and part.has_python_callable for part in subtrees(mask)):
        shape = request.full_shape or request.shape
        mask = to_spans(mask, shape, request.offset, request.query.device)
        if mask is None:
            raise InvalidArgument("cannot save a mask that is a function and has more than 64 ranges of keys in a row")
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
        raise InvalidArgument(f"full_shape: expected (batch, heads, queries, {keys}), got {short_repr(full_shape)}")
    with Checks() as checks:
        for axis, size, full in zip(AXES, request.shape, full_shape, strict=False):
            _check_index(checks, axis, indices[axis], size, full)
    with Checks() as checks:
        for rule in (mask, score):
            if rule is not None:
                rule.check(checks, full_shape, query.shape[3], query.device)
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


def _classes_in(node: Any) -> Iterator[str]:
    """The classes that a file names."""
    if not isinstance(node, (dict, list)):
        return
    if isinstance(node, dict):
        if set(node) in ({"rule", "arguments"}, {"result", "parts"}):
            yield node["rule"] if "rule" in node else node["result"]
        node = node["dict"].values() if set(node) == {"dict"} else node.values()
    for part in node:
        yield from _classes_in(part)


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, list):
        return tuple(_decode(part, tensors) for part in node)
    if set(node) == {"tensor"}:
        return tensors[node["tensor"]]
    if set(node) == {"bytes"}:
        return tensors[node["bytes"]["tensor"]].numpy().tobytes()
    if set(node) == {"dict"}:
        return {name: _decode(part, tensors) for name, part in node["dict"].items()}
    if set(node) == {"attention_request"}:
        return _matrix(**_decode(node["attention_request"], tensors))
    if set(node) == {"rule", "arguments"}:
        return class_by_id(node["rule"])(**_decode(node["arguments"], tensors))
    if set(node) == {"result", "parts"}:
        measure: Any = class_by_id(node["result"])
        return measure.result_type(**_decode(node["parts"], tensors))
    raise InvalidArgument(f"{', '.join(map(repr, sorted(node)[:5]))}: unknown kind of entry")
