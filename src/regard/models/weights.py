"""Read weights from files, check that they fit a model, and assign them to a model built without memory."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import InvalidCheckpoint, raise_problems, short_repr
from regard.input_files import check_file, exists, read_json
from regard.models.layers import reset_buffers

MAX_NAME = 255  # bytes, of a file in the file systems of today
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
UNSAFE_PICKLE = "expected a dict of tensors, got other objects, which could run code; save the model as safetensors"


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a folder: one, or the shards that an index lists; safetensors before torch's own files.

    Raises:
        InvalidCheckpoint: If an index is damaged, or lists files that are missing or in another folder.
    """
    for name in WEIGHT_FILES:
        if exists(folder / name):
            return [folder / name]
        index = folder / f"{name}.index.json"
        if exists(index):
            return _shard_files(index)
    return []


def _shard_files(index: Path) -> list[Path]:
    values = read_json(index, InvalidCheckpoint)
    names = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(names, dict):
        raise InvalidCheckpoint(f"{index}: weight_map: expected a file name for each tensor, got {short_repr(names)}")
    names = [*names.values()]
    elsewhere = [name for name in names if not isinstance(name, str) or Path(name).name != name or len(name) > MAX_NAME]
    problems = [
        f"{index}: weight_map: expected names of files in its folder, got {short_repr(name)}" for name in elsewhere
    ]
    raise_problems(problems, InvalidCheckpoint)
    paths = [index.parent / name for name in sorted(set(names))]
    problems = [f"{path}: no such file, but {index.name} lists it" for path in paths if not exists(path)]
    raise_problems(problems, InvalidCheckpoint)
    return paths


def read_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """All tensors in files, by name; they can be views of the files.

    Raises:
        InvalidCheckpoint: If a file is unreadable, damaged or contains anything other than tensors.
    """
    weights: dict[str, Tensor] = {}
    for path in paths:
        check_file(path, InvalidCheckpoint)
        weights |= _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    return weights


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is not a dict
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path}: could not be read, it is damaged or truncated: {error}") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    if not path.stat().st_size:
        raise InvalidCheckpoint(f"{path}: expected a dict of tensors, got an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of pickles that it did not write; the error below says more
            weights = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise InvalidCheckpoint(f"{path}: {UNSAFE_PICKLE}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise InvalidCheckpoint(f"{path}: could not be read, it is damaged or truncated: {error}") from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise InvalidCheckpoint(f"{path}: expected a dict of tensors, got something else")
    return weights


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Build models whose tensors have shapes but no memory, without drawing random numbers.

    Examples:
        >>> with init_empty_weights():
        ...     nn.Linear(2, 3).weight.device
        device(type='meta')
    """
    with torch.device("meta"), _SkipRandomInit():
        yield


@dataclass(frozen=True)
class WeightSource:
    """The stored tensors that make up a parameter.

    Args:
        names: Names of the stored tensors, which are concatenated along the first axis.
        split_sizes: Number of rows of each; not needed for one tensor.
        transposed: Whether each is stored as (inputs, outputs).
        leading_axis: Whether it is stored with a first axis of size 1.
        skip: Number of stored rows at the front that are not part of the parameter.
        offset: Number that is added to the stored values.
        aliases: Other names, in older files or of tied copies, which must be equal.
    """

    names: tuple[str, ...]
    split_sizes: tuple[int, ...] = ()
    transposed: bool = False
    leading_axis: bool = False
    skip: int = 0
    offset: float = 0.0
    aliases: tuple[str, ...] = ()

    def split(self, parameter: Tensor) -> dict[str, Tensor]:
        """Split a parameter into its stored tensors, by name."""
        parameter = parameter - self.offset if self.offset else parameter
        if self.skip:
            parameter = torch.cat([parameter.new_zeros(self.skip, parameter.shape[1]), parameter])
        parts = parameter.split(self.split_sizes) if self.split_sizes else (parameter,)
        if self.transposed:
            parts = tuple(part.mT for part in parts)
        return {name: part[None] if self.leading_axis else part for name, part in zip(self.names, parts, strict=True)}

    def merge(self, stored: Sequence[Tensor]) -> Tensor:
        """Merge stored tensors into the parameter."""
        parts = [part[0] if self.leading_axis else part for part in stored]
        parts = [part.mT if self.transposed else part for part in parts]
        merged = (parts[0] if len(parts) == 1 else torch.cat(parts))[self.skip :]
        return merged + self.offset if self.offset else merged


def import_weights(
    sources: Mapping[str, WeightSource],
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    path: Path,
    *,
    prefix: str = "",
    ignored: re.Pattern[str] | None = None,
) -> dict[str, Tensor]:
    """Convert stored tensors to the parameters of a model, as copies in float32.

    Args:
        sources: The names of the stored tensors of each parameter.
        tensors: The stored tensors, by name.
        model: The model, for the shapes.
        path: The file, for messages.
        prefix: Prefix that names may lack, as in checkpoints of a model without a head.
        ignored: Names of tensors that are not parameters.

    Raises:
        InvalidCheckpoint: With the name of every tensor that is missing, unexpected, of another shape, not
            floating-point, not finite, or different from a tied copy.
    """
    parameters = dict(model.named_parameters())
    modern = {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): name for name in tensors}
    problems, weights, used = [], {}, set()
    for parameter, source in sources.items():
        stored = []
        for name, part in source.split(parameters[parameter]).items():
            shape = tuple(part.shape)
            names = [each for full in (name, *source.aliases) for each in (full, full.removeprefix(prefix))]
            names = [modern[each] for each in dict.fromkeys(names) if each in modern]
            used.update(names)
            if not names:
                problems.append(f"{path}: {name}: expected a tensor of shape {shape}, got none")
                continue
            first, *copies = names
            tensor = tensors[first]
            problems += [
                f"{path}: {copy}: expected the values of {first}, to which it is tied, got others"
                for copy in copies
                if not torch.equal(tensors[copy], tensor)
            ]
            if tensor.layout != torch.strided:
                problems.append(f"{path}: {first}: expected a dense tensor, got {tensor.layout}")
            elif tensor.dtype not in FLOATING:
                problems.append(f"{path}: {first}: expected a floating-point dtype, got {tensor.dtype}")
            elif tuple(tensor.shape) != shape:
                problems.append(f"{path}: {first}: expected shape {shape}, got {tuple(tensor.shape)}")
            else:
                stored.append(tensor.to(torch.float32, copy=True))  # later changes of the file do not reach the model
                if not bool(stored[-1].isfinite().all()):
                    problems.append(f"{path}: {first}: expected finite float32 numbers, got NaN or infinity")
        if len(stored) == len(source.names):
            weights[parameter] = source.merge(stored)
    problems += [
        f"{path}: {name}: unexpected tensor of shape {tuple(tensor.shape)}, not part of the model"
        for name, tensor in tensors.items()
        if name not in used and not (ignored and ignored.search(name))
    ]
    raise_problems(problems, InvalidCheckpoint, limit=None)
    return weights


def assign_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Assign weights to a model built under `init_empty_weights`; tied parameters stay tied."""
    new = {parameter: nn.Parameter(weights[name]) for name, parameter in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, new[parameter])
    reset_buffers(model)


class _SkipRandomInit(TorchFunctionMode):
    """Skips ``normal_``, for which the meta device imports a compiler (a second)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
