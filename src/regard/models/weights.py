"""Weights from a file: a model is built without any, and given those of the file if they fit one to one."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import InvalidCheckpoint, raise_problems
from regard.models.positions import computed_tables

NAMES = ("model.safetensors", "pytorch_model.bin")
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
NO_TENSORS = "it holds more than tensors, and to read it could run code; save the model as safetensors"

Model = TypeVar("Model", bound=nn.Module)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder that hold weights: one, or those that an index names; safetensors before torch's own.

    Raises:
        InvalidCheckpoint: If an index is damaged or names files elsewhere or missing ones.
    """
    for name in NAMES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _parts_of(index)
    return []


def _parts_of(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidCheckpoint(f"{index}: expected a weight_map of tensors to files: {error!r}") from error
    elsewhere = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    raise_problems(
        [f"{index}: names the file {name!r}, which is none of its folder" for name in elsewhere], InvalidCheckpoint
    )
    paths = [index.parent / name for name in sorted(names)]
    raise_problems(
        [f"{path} is missing, which {index.name} names" for path in paths if not path.is_file()], InvalidCheckpoint
    )
    return paths


def read_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """All tensors of files by name; they are views of the files until they are copied.

    Raises:
        InvalidCheckpoint: If a file is damaged, or holds more than tensors.
    """
    found: dict[str, Tensor] = {}
    for path in paths:
        found |= _from_safetensors(path) if path.suffix == ".safetensors" else _from_torch(path)
    return found


def _from_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read, it is damaged or truncated: {error}") from error


def _from_torch(path: Path) -> dict[str, Tensor]:
    if not path.stat().st_size:
        raise InvalidCheckpoint(f"{path} cannot be read: it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that no torch.save wrote: the error says more
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise InvalidCheckpoint(f"{path} is refused: {NO_TENSORS}") from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read, it is damaged or truncated: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise InvalidCheckpoint(f"{path} must hold tensors by their names, but holds something else")
    return found


def build_without_weights(build: Callable[[], Model]) -> Model:
    """Build a model whose tensors have shapes but no memory, and draw no random numbers."""
    with torch.device("meta"), _NothingDrawn():
        return build()


def give_weights(
    model: nn.Module,
    weights: dict[str, Tensor],
    path: Path,
    pieces: Callable[[str, Tensor], Mapping[str, Tensor]] = lambda name, weight: {name: weight},
) -> None:
    """Give a model that was built without weights those of a file, in float32 and on the CPU.

    Modules that shared a parameter share the new one.

    Args:
        model: As from :func:`build_without_weights`.
        weights: As from :func:`read_weights`; they are copied.
        path: The file, for messages.
        pieces: The tensors that a weight has in the file, by their names there, for messages.

    Raises:
        InvalidCheckpoint: With the name of every tensor that is missing, not part of the model, of another shape, not
            of floating-point numbers, or not finite.
    """
    parameters = dict(model.named_parameters())
    objections = [
        f"{path}: {name} {tuple(weight.shape)} is not part of the model"
        for name, weight in weights.items()
        if name not in parameters
    ]
    given: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in parameters.items():
        objection = _objection(weights.get(name), parameter)
        if objection is None:
            weight = weights[name].to(torch.float32, copy=True)  # a change of the file must not reach the model
            given[parameter] = nn.Parameter(weight)
            if not bool(weight.isfinite().all()):
                objections += [
                    f"{path}: {stored} holds NaN or numbers that are infinite in float32"
                    for stored, piece in pieces(name, weight).items()
                    if not bool(piece.isfinite().all())
                ]
        else:
            objections.append(f"{path}: {name} {objection}")
    raise_problems(objections, InvalidCheckpoint, limit=None)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, given[parameter])
    computed_tables(model)


def _objection(weight: Tensor | None, parameter: nn.Parameter) -> str | None:
    shape = tuple(parameter.shape)
    if weight is None:
        return f"is missing, expected with the shape {shape}"
    if tuple(weight.shape) != shape:
        return f"has the shape {tuple(weight.shape)}, but the configuration gives {shape}"
    return dtype_objection(weight)


def dtype_objection(weight: Tensor) -> str | None:
    """Say that a stored tensor holds no numbers that weights can be."""
    if weight.dtype in FLOATING:
        return None
    return f"has the dtype {weight.dtype}, but weights are floating-point numbers"


class _NothingDrawn(TorchFunctionMode):
    """Passes over drawing from a normal distribution, for which the meta device imports a compiler (a second)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
