"""Load a folder of Hugging Face transformers, and check that it is complete."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.errors import InvalidCheckpoint, raise_problems, require, short_repr
from regard.input_files import check_file, exists, read_json
from regard.models.weights import UNSAFE_PICKLE
from regard.text.backend import panics_as_errors

MAX_LAYERS = 1000
FILE_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".spm", ".txt")
ONLY_THE_FOLDER = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is downloaded, and transformers neither runs code of the folder nor asks on standard input whether to."""


def load_checkpoint(folder: Path, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The model, the tokenizer (or None) and the image processor (or None) in a folder.

    Of a model whose text says where it reads an image, the processor is that of both.

    Nothing is downloaded, and no code of the folder runs.

    Raises:
        InvalidCheckpoint: If the folder is not a checkpoint of transformers, needs code of its own, its weights are
            incomplete, or it has neither a tokenizer nor an image processor.
        MissingExtra: If transformers is not installed.
    """
    _check_folder(folder)
    transformers = require("transformers", extra="hf", needed_by="TransformersModel")
    with _as_checkpoint_error(folder, "cannot be read"), silence_transformers():
        config = transformers.AutoConfig.from_pretrained(folder, **ONLY_THE_FOLDER)
        _check_layers(folder, config.to_dict())
        config._attn_implementation = None  # a folder can name a kernel that would be downloaded
        names = getattr(config, "architectures", None) or [""]
        cls = getattr(transformers, names[0], transformers.AutoModel)
        model, info = cls.from_pretrained(
            folder,
            config=config,
            **ONLY_THE_FOLDER,
            output_loading_info=True,
            attn_implementation=None,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # all of them are in the error below
        )
    _check_weights(folder, model, info)
    tokenizer = processor = None
    with silence_transformers():
        if exists(folder / "preprocessor_config.json"):
            with _as_checkpoint_error(folder, "its image processor cannot be read"):
                processor = transformers.AutoImageProcessor.from_pretrained(folder, **ONLY_THE_FOLDER)
        if processor is None and model.main_input_name == "pixel_values":
            raise InvalidCheckpoint(f"{folder}: has no image processor (preprocessor_config.json)")
        if processor is None and not _has_tokenizer(folder):
            raise InvalidCheckpoint(f"{folder}: has no tokenizer; a model folder has one with its weights")
        if _has_tokenizer(folder):
            with _as_checkpoint_error(folder, "its tokenizer cannot be read"):
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **ONLY_THE_FOLDER)
                getattr(tokenizer, "all_special_ids", ())  # without end if the unknown token is unknown
        has_both = exists(folder / "processor_config.json") or processor is not None
        if tokenizer is not None and has_both and getattr(config, "image_token_id", None) is not None:
            with _as_checkpoint_error(folder, "its processor cannot be read"):
                processor = transformers.AutoProcessor.from_pretrained(folder, **ONLY_THE_FOLDER)
    return model, tokenizer, processor


def _check_folder(folder: Path) -> None:
    """Check that a folder has a configuration of transformers, and that its files are regular and can be read."""
    if not os.path.isdir(folder):
        raise InvalidCheckpoint(f"{folder} is not a folder: expected a checkpoint with config.json and its weights")
    path = folder / "config.json"
    if not exists(path):
        raise InvalidCheckpoint(f"{path} is missing: {folder} is not a checkpoint")
    for file in sorted(folder.iterdir()):
        if file.suffix in FILE_SUFFIXES or not os.path.isdir(file):
            check_file(file, InvalidCheckpoint)
    values = read_json(path, InvalidCheckpoint)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind is None:
        raise InvalidCheckpoint(f"{path}: is not a configuration of transformers: it has no model_type")
    if not isinstance(kind, str):
        raise InvalidCheckpoint(f"{path}: expected a name as model_type, got {short_repr(kind)}")


def _check_layers(path: Path, values: Any) -> None:
    """Check the numbers of layers, which transformers builds before it sees that they have no weights."""
    for key, value in values.items():
        if isinstance(value, dict):
            _check_layers(path, value)
        numbers = value if isinstance(value, list) else [value]
        largest = max((each for each in numbers if isinstance(each, int)), default=0)
        if str(key).endswith(("layers", "layer", "depths", "depth")) and largest > MAX_LAYERS:
            raise InvalidCheckpoint(f"{path}: {key}: expected at most {MAX_LAYERS:,} layers, got {short_repr(largest)}")


def _check_weights(folder: Path, model: Any, info: Mapping[str, Any]) -> None:
    """Check that no tensor is missing, of another shape, NaN or infinite; further tensors are ignored."""
    problems = [f"{folder}: {name} is missing" for name in sorted(info["missing_keys"])]
    problems += [
        f"{folder}: {name} has the shape {tuple(stored)}, but the configuration gives {tuple(expected)}"
        for name, stored, expected in sorted(info["mismatched_keys"])
    ]
    raise_problems(problems, InvalidCheckpoint, limit=None)
    floats = {
        name: each for name, each in model.named_parameters() if each.element_size() > 1
    }  # one byte may be anything
    broken = [name for name, weight in floats.items() if not bool(weight.isfinite().all())]
    raise_problems(
        [f"{folder}: {name} holds NaN or infinite numbers" for name in broken], InvalidCheckpoint, limit=None
    )


def _has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer; without one, transformers may make an empty tokenizer."""
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.spm")
    return any(True for name in names for _ in folder.glob(name))


@contextmanager
def _as_checkpoint_error(folder: Path, problem: str) -> Iterator[None]:
    """Turn what transformers raises for an incomplete folder into one sentence."""
    try:
        with panics_as_errors():
            yield
    except pickle.UnpicklingError as error:
        raise InvalidCheckpoint(f"{folder}: {problem}: its weights are refused: {UNSAFE_PICKLE}") from error
    except InvalidCheckpoint:
        raise
    except Exception as error:  # of transformers, safetensors, pickle, or whatever reads the weights
        if "trust_remote_code" in str(error):
            raise InvalidCheckpoint(
                f"{folder}: {problem}: expected classes that transformers has, got a folder that runs its own code "
                "(auto_map), which this library never does; if you trust the code, load the model with transformers "
                "and trust_remote_code=True, and pass it to regard.watch"
            ) from None
        raise InvalidCheckpoint(f"{folder}: {problem}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the log messages and progress bars of transformers."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
