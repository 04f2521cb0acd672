"""Weights from files: read them, check that they fit a model, and assign them to a model that was built without any."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import InvalidCheckpoint, raise_problems
from regard.models.layers import reset_buffers

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


@dataclass(frozen=True)
class WeightSource:
    """The stored tensors that a parameter is made of.

    Args:
        names: The stored tensors, concatenated along the rows.
        rows: The number of rows of each of them; not needed for one tensor.
        transposed: Whether each is stored as (inputs, outputs).
        leading_axis: Whether it is stored with a first axis of 1.
        skip: Number of rows at the front that are stored, but not part of the parameter.
        aliases: Other names of the parameter, in older files or for tied copies, which must be equal.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    transposed: bool = False
    leading_axis: bool = False
    skip: int = 0
    aliases: tuple[str, ...] = ()

    def split(self, parameter: Tensor) -> dict[str, Tensor]:
        """The stored tensors of a parameter, by name."""
        if self.skip:
            parameter = torch.cat([parameter.new_zeros(self.skip, parameter.shape[1]), parameter])
        parts = parameter.split(self.rows) if self.rows else (parameter,)
        if self.transposed:
            parts = tuple(part.mT for part in parts)
        return {name: part[None] if self.leading_axis else part for name, part in zip(self.names, parts, strict=True)}

    def merge(self, stored: Sequence[Tensor]) -> Tensor:
        """The parameter that stored tensors make."""
        parts = [part[0] if self.leading_axis else part for part in stored]
        parts = [part.mT if self.transposed else part for part in parts]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[self.skip :]


def import_weights(
    sources: Mapping[str, WeightSource],
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    path: Path,
    *,
    prefix: str = "",
    ignored: re.Pattern[str] | None = None,
) -> dict[str, Tensor]:
    """The parameters of a model from the tensors of a file, in float32 and copied.

    Args:
        sources: The stored tensors of each parameter, by the name of the parameter.
        tensors: The tensors of the file, by name.
        model: The model, for the shapes.
        path: The file, for messages.
        prefix: What names may lack, as in files of a model without a head.
        ignored: Names of tensors that are not parameters.

    Raises:
        InvalidCheckpoint: With the name of every tensor that is missing, superfluous, of another shape, not
            floating-point, not finite, or different from a tied copy.
    """
    parameters = dict(model.named_parameters())
    modern = {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): name for name in tensors}
    problems, weights, used = [], {}, set()
    for parameter, source in sources.items():
        stored = []
        for name, part in source.split(parameters[parameter]).items():
            shape = tuple(part.shape)
            known = [each for full in (name, *source.aliases) for each in (full, full.removeprefix(prefix))]
            found = [modern[each] for each in dict.fromkeys(known) if each in modern]
            used.update(found)
            if not found:
                problems.append(f"{path}: {name} is missing, expected with the shape {shape}")
                continue
            first, *copies = found
            tensor = tensors[first]
            problems += [
                f"{path}: {copy} differs from {first}, but in this model they are one"
                for copy in copies
                if not torch.equal(tensors[copy], tensor)
            ]
            if tensor.dtype not in FLOATING:
                problems.append(f"{path}: {first} has the dtype {tensor.dtype}, but weights are floating-point numbers")
            elif tuple(tensor.shape) != shape:
                actual = tuple(tensor.shape)
                problems.append(f"{path}: {first} has the shape {actual}, but the configuration gives {shape}")
            else:
                stored.append(tensor.to(torch.float32, copy=True))  # later changes of the file do not reach the model
                if not bool(stored[-1].isfinite().all()):
                    problems.append(f"{path}: {first} holds NaN or numbers that are infinite in float32")
        if len(stored) == len(source.names):
            weights[parameter] = source.merge(stored)
    problems += [
        f"{path}: {name} {tuple(tensor.shape)} is not part of the model"
        for name, tensor in tensors.items()
        if name not in used and not (ignored and ignored.search(name))
    ]
    raise_problems(problems, InvalidCheckpoint, limit=None)
    return weights


def assign_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Assign weights to a model from `build_without_weights`; modules that shared a parameter share the new one."""
    new = {parameter: nn.Parameter(weights[name]) for name, parameter in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, new[parameter])
    reset_buffers(model)


class _NothingDrawn(TorchFunctionMode):
    """Passes over drawing from a normal distribution, for which the meta device imports a compiler (a second)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
