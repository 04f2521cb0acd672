"""Models on disk: ``config.json`` and ``model.safetensors`` in a folder, beside the tokenizer."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, nearest, refuse
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weights import build_without_weights, give_weights, read_weights

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
ARCHITECTURES = {"transformer": (TransformerConfig, Transformer)}


class Saveable(Protocol):
    """What can write itself into a folder, as a tokenizer."""

    def save(self, folder: Path) -> Any:
        """Write the files into the folder."""
        ...


def save_model(
    folder: str | os.PathLike[str],
    model: Transformer,
    tokenizer: Saveable | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model into a folder, so that a save that fails leaves the old model as it was.

    All files are written beside those that are there and replace them at the end, each in one step, but one after
    another: a process that is killed in just that moment can leave the new configuration beside the old weights.
    Weights that are shared inside the model are stored once.

    Args:
        folder: Made if it is missing.
        model: The model.
        tokenizer: Written into the same folder. Default: none.
        dtype: Of the stored weights. Default: the model's.

    Raises:
        InvalidArgument: If dtype is not a floating-point type.
        InvalidFile: If the folder cannot be made or written into, as where a file has its name.

    Example:
        >>> import tempfile
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(folder, model, dtype=torch.bfloat16)
        ...     load_model(folder).config == model.config
        True
    """
    if dtype is not None and not dtype.is_floating_point:
        raise InvalidArgument(f"dtype must be a floating-point type, but is {dtype}")
    config = {"architecture": "transformer", **asdict(model.config)}
    weights = {
        name: parameter.detach().to("cpu", dtype or parameter.dtype).contiguous()
        for name, parameter in model.named_parameters()
    }
    with replacing_files(Path(folder)) as staging:
        (staging / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(weights, staging / WEIGHTS_FILE, metadata={"format": "pt"})
        shutil.copymode(
            staging / CONFIG_FILE, staging / WEIGHTS_FILE
        )  # safetensors leaves it readable by its owner alone
        if tokenizer is not None:
            tokenizer.save(staging)


def load_model(folder: str | os.PathLike[str]) -> Transformer:
    """Read a model from a folder, in evaluation mode and on the CPU, with float32 weights.

    Args:
        folder: As :func:`save_model` writes it.

    Returns:
        The model.

    Raises:
        InvalidCheckpoint: If a file is missing or damaged, or with the name of every weight that does not fit the
            configuration or is not finite.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidCheckpoint(f"{folder} is not a folder: expected one with {CONFIG_FILE} and {WEIGHTS_FILE}")
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
    within = sorted(path.parent.name for path in folder.glob(f"*/{WEIGHTS_FILE}")) if missing else []
    hint = f"; there are models in {', '.join(within)}" if within else ""  # it is the folder of a run
    refuse([f"{folder / name} is missing{hint}" for name in missing], InvalidCheckpoint)
    config, architecture = _read_config(folder / CONFIG_FILE)
    weights = read_weights(folder / WEIGHTS_FILE)
    layers = config.num_encoder_layers + config.num_decoder_layers
    if layers > len(weights):  # before so many are built
        raise InvalidCheckpoint(
            f"{folder / CONFIG_FILE} asks for {layers} layers, but {folder / WEIGHTS_FILE} holds {len(weights)} tensors"
        )
    model = build_without_weights(lambda: architecture(config))
    give_weights(model, weights, folder / WEIGHTS_FILE)
    return model.eval()


@contextmanager
def replacing_files(folder: Path) -> Iterator[Path]:
    """Give a folder to write into; at the end its files replace those of the same names in ``folder``.

    Nothing in ``folder`` changes if writing fails: only when all files lie on the disk they are renamed, which needs no
    further space. They are renamed one after another: a kill between two renames leaves new files beside old ones.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    except OSError as error:
        raise InvalidFile(f"{folder} is no folder that can be written into: {error}") from error
    try:
        yield staging
        written = sorted(staging.iterdir())
        for path in written:
            _flush_to_disk(path)
        for path in written:
            path.replace(folder / path.name)
        _flush_to_disk(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_config(path: Path) -> tuple[TransformerConfig, type[Transformer]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # malformed JSON and UTF-8; brackets in brackets without end
        raise InvalidCheckpoint(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{path} must hold an object, but holds {type(values).__name__}")
    name = values.pop("architecture", None)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InvalidCheckpoint(
            f"{path}: architecture must be one of {', '.join(map(repr, ARCHITECTURES))}, but is {name!r}"
        )
    config_type, architecture = ARCHITECTURES[name]
    known = [field.name for field in fields(config_type)]
    objections = [f"{path}: {key!r} is no key of a {name}{nearest(key, known)}" for key in values if key not in known]
    if "vocab_size" not in values:
        objections.append(f"{path}: 'vocab_size' is missing")
    refuse(objections, InvalidCheckpoint)
    try:
        return config_type(**values), architecture
    except InvalidArgument as error:
        raise InvalidCheckpoint(f"{path}: {error}") from error
