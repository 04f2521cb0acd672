"""Models on disk: a configuration and weights in a folder, beside the tokenizer; our own, or those of transformers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from safetensors.torch import save_file

from regard.errors import (
    InvalidArgument,
    InvalidCheckpoint,
    InvalidFile,
    InvalidType,
    UnsupportedCheckpoint,
    did_you_mean,
    raise_problems,
)
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.gpt import GPT, GPTConfig
from regard.models.huggingface import CONVERTERS, CheckpointConverter
from regard.models.huggingface.bert import MODULES_FILE, POOLING_FILE, SENTENCE_FILE, with_pooling
from regard.models.huggingface.converter import GENERATION_FILE, as_tuple
from regard.models.rnn_search import RNNSearch, RNNSearchConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weights import (
    WeightSource,
    assign_weights,
    build_without_weights,
    import_weights,
    read_weights,
    weight_files,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# What else tells how a checkpoint reads: none of an older model's may stay beside a new one.
BESIDE = (GENERATION_FILE, MODULES_FILE, POOLING_FILE, SENTENCE_FILE)
ARCHITECTURES: dict[str, tuple[type[Any], type[Any]]] = {
    "transformer": (TransformerConfig, Transformer),
    "bert": (BertConfig, Bert),
    "gpt": (GPTConfig, GPT),
    "rnn_search": (RNNSearchConfig, RNNSearch),
}
KINDS: dict[type[Any], tuple[str, str]] = {
    EncoderDecoder: ("an encoder-decoder", "translate"),
    GPT: ("a GPT", "generate"),
    Bert: ("a BERT", "look"),
}
"""What messages call each kind of model, and the command that is for it."""
Model = EncoderDecoder | Bert | GPT
Kind = TypeVar("Kind", bound=Model)
Layout = Literal["regard", "transformers"]


class Saveable(Protocol):
    """What can write itself into a folder, as a tokenizer."""

    def save(self, folder: Path) -> Any:
        """Write the files into the folder."""
        ...


def save_model(
    folder: str | os.PathLike[str],
    model: Model,
    tokenizer: Saveable | None = None,
    dtype: torch.dtype | None = None,
    layout: Layout = "regard",
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
        layout: ``"regard"`` keeps all of these; ``"transformers"`` those that Hugging Face's library has, so that it
            loads them: a `Bert`, a `GPT` in the shape of GPT-2, Llama, Mistral or Qwen2, a `Transformer` as Marian.

    Raises:
        InvalidType: If the folder is no path, or the tokenizer cannot be saved.
        InvalidArgument: If dtype is not a floating-point type, or with all that the other layout cannot tell.
        InvalidFile: If the folder cannot be made or written into, as where a file has its name.

    Example:
        >>> import tempfile
        >>> model = Transformer(TransformerConfig(100, d_model=16, num_heads=4, d_ff=32))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(folder, model, dtype=torch.bfloat16)
        ...     load_model(folder).config == model.config
        True
    """
    folder = _folder(folder)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgument(f"dtype must be a floating-point type, but is {dtype!r}")
    if tokenizer is not None and not callable(getattr(tokenizer, "save", None)):
        raise InvalidType(f"tokenizer must have a method save(folder), but is a {type(tokenizer).__name__}")
    if layout not in get_args(Layout):
        raise InvalidArgument(f"layout must be one of {', '.join(map(repr, get_args(Layout)))}, but is {layout!r}")
    kinds = {architecture: name for name, (_, architecture) in ARCHITECTURES.items()}
    if type(model) not in kinds:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidArgument(
            f"model must be one of {known}, but is a {type(model).__name__}: use torch.save for others"
        )
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    files: dict[str, Any] = {}
    if layout == "transformers":
        converter = _converter_of(model)
        config = converter.write_config(model.config)
        weights, files = converter.export_weights(model.config, weights), converter.extra_files(model.config)
    else:
        config = {"architecture": kinds[type(model)], **asdict(model.config)}
    weights = {name: weight.to("cpu", dtype or weight.dtype).contiguous() for name, weight in weights.items()}
    with replacing_files(folder, without=BESIDE) as staging:
        for path, values in {CONFIG_FILE: config, **files}.items():
            (staging / path).parent.mkdir(exist_ok=True)
            (staging / path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        save_file(weights, staging / WEIGHTS_FILE, metadata={"format": "pt"})
        shutil.copymode(
            staging / CONFIG_FILE, staging / WEIGHTS_FILE
        )  # safetensors leaves it readable by its owner alone
        if tokenizer is not None:
            tokenizer.save(staging)


def load_model(folder: str | os.PathLike[str]) -> Model:
    """Read a model from a folder, in evaluation mode and on the CPU, with float32 weights.

    Args:
        folder: As :func:`save_model` writes it, or a checkpoint of Hugging Face's transformers: a BERT, RoBERTa, GPT-2,
            Llama, Mistral, Qwen2 or Marian, in safetensors or torch's own files, whole or in parts.

    Returns:
        The model.

    Raises:
        InvalidType: If the folder is no path.
        InvalidCheckpoint: If a file is missing or damaged or could run code, if the architecture is unknown, or with
            the name of every weight that does not fit the configuration or is not finite.
    """
    folder = _folder(folder)
    if not folder.is_dir():
        raise InvalidCheckpoint(f"{folder} is not a folder: expected one with {CONFIG_FILE} and {WEIGHTS_FILE}")
    paths = weight_files(folder)
    missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
    missing += [] if paths else [WEIGHTS_FILE]
    within = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}")) if missing else []
    hint = f"; there are models in {', '.join(within)}" if within else ""  # it is the folder of a run
    raise_problems([f"{folder / name} is missing{hint}" for name in missing], InvalidCheckpoint)
    values = _read_json(folder / CONFIG_FILE)
    source = paths[0] if len(paths) == 1 else folder
    name, kind = values.get("architecture"), values.get("model_type")
    if isinstance(kind, str) and kind in CONVERTERS and name is None:
        weights, converter = read_weights(paths), CONVERTERS[kind]
        config = _huggingface_config(folder, values | _read_generation_config(folder), converter, weights)
        model = _build(folder, config, weights, source)
        options = {"prefix": converter.prefix, "ignored": converter.ignored_weights}
        weights = import_weights(converter.weight_map(config), weights, model, source, **options)
    else:
        config = _native_config(folder / CONFIG_FILE, values)
        weights = read_weights(paths)
        model = _build(folder, config, weights, source)
        names = {name: WeightSource((name,)) for name, _ in model.named_parameters()}
        weights = import_weights(names, weights, model, source)
    assign_weights(model, weights)
    return model.eval()


def _folder(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise InvalidType(f"folder must be a str or a path, but is a {type(folder).__name__}")
    return Path(folder)


def load_as(folder: str | os.PathLike[str], kind: type[Kind]) -> Kind:
    """Read a model of one kind from a folder, as :func:`load_model` does.

    Raises:
        InvalidCheckpoint: As there, or if it is a model of another kind.
    """
    model = load_model(folder)
    if not isinstance(model, kind):
        came, serves = next(told for each, told in KINDS.items() if isinstance(model, each))
        needed, _ = KINDS[kind]
        raise InvalidCheckpoint(f"{folder} holds {came}, which `regard {serves}` serves; here {needed} is needed")
    return model


def build_model(config: Any) -> Any:
    """Make the model that a configuration is of, with new weights."""
    return next(model for kind, model in ARCHITECTURES.values() if type(config) is kind)(config)


def architecture_of(folder: str | os.PathLike[str]) -> type[Any] | None:
    """The class of the model in a folder, where its configuration tells; what is wrong with it, loading it says."""
    folder = _folder(folder)
    try:
        values = _read_json(folder / CONFIG_FILE)
    except InvalidCheckpoint:
        return None
    converter = CONVERTERS.get(str(values.get("model_type")))
    theirs = None if converter is None else converter.architecture
    return ARCHITECTURES.get(str(values.get("architecture", theirs)), (None, None))[1]


def _build(folder: Path, config: Any, weights: dict[str, Any], source: Path) -> Any:
    """Make the model of a configuration, without weights.

    Raises:
        InvalidCheckpoint: If it has more layers than there are tensors, or its positions more entries than any tensor:
            before these are computed.
    """
    names = ("num_encoder_layers", "num_decoder_layers", "num_layers")
    layers = sum(getattr(config, name, 0) for name in names)
    if layers > len(weights):
        came = f"{source} holds {len(weights)} tensors"
        raise InvalidCheckpoint(f"{folder / CONFIG_FILE} asks for {layers} layers, but {came}")
    largest = max((size for weight in weights.values() for size in weight.shape), default=0)
    if getattr(config, "positions", None) in ("rotary", "alibi"):
        heads, width = config.num_heads, getattr(config, "resolved_head_dim", config.d_model // config.num_heads)
        if max(heads, width) > largest:
            raise InvalidCheckpoint(
                f"{folder / CONFIG_FILE} asks for d_model={config.d_model} in {heads} heads with head_dim={width}, but "
                f"no tensor in {source} has an axis of more than {largest}"
            )
    try:
        return build_without_weights(lambda: build_model(config))
    except InvalidArgument as error:
        raise InvalidCheckpoint(f"{folder / CONFIG_FILE}: {error}") from error


def _converter_of(model: Model) -> CheckpointConverter:
    """The kind of transformers' checkpoint that a model can be."""
    if isinstance(model, GPT):
        if model.config.norm != "rms_norm":
            return CONVERTERS["gpt2"]
        if model.config.sliding_window is not None:
            return CONVERTERS["mistral"]
        return CONVERTERS[
            "qwen2" if model.config.attention_bias and not model.config.has_attention_out_bias else "llama"
        ]
    if isinstance(model, RNNSearch):
        raise InvalidArgument("layout='transformers' has no place for an RNNSearch: use layout='regard'")
    return CONVERTERS["bert" if isinstance(model, Bert) else "marian"]


@contextmanager
def replacing_files(folder: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """Give a folder to write into; at the end its files replace those of the same names in ``folder``.

    Files of the names in ``without`` that were not written are removed last.
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
        written = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
        for path in written:
            _flush_to_disk(staging / path)
        for path in written:
            (folder / path).parent.mkdir(exist_ok=True)
            (staging / path).replace(folder / path)
        for path in {Path(name) for name in without}.difference(written):
            (folder / path).unlink(missing_ok=True)
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # malformed JSON and UTF-8; brackets in brackets without end
        raise InvalidCheckpoint(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidCheckpoint(f"{path} must hold an object, but holds {type(values).__name__}")
    return values


def _native_config(path: Path, values: dict[str, Any]) -> Any:
    name = values.pop("architecture", None)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = f"one of {', '.join(map(repr, ARCHITECTURES))}, or model_type one of {', '.join(map(repr, CONVERTERS))}"
        came = repr(name) if name is not None or "model_type" not in values else f"model_type {values['model_type']!r}"
        raise InvalidCheckpoint(f"{path}: architecture must be {known}, but is {came}")
    config_type, _ = ARCHITECTURES[name]
    known = [field.name for field in fields(config_type)]
    objections = [
        f"{path}: {key!r} is no key of a {name}{did_you_mean(key, known)}" for key in values if key not in known
    ]
    if "vocab_size" not in values:
        objections.append(f"{path}: 'vocab_size' is missing")
    raise_problems(objections, InvalidCheckpoint)
    try:
        return config_type(**values)
    except InvalidArgument as error:
        raise InvalidCheckpoint(f"{path}: {error}") from error


def _read_generation_config(folder: Path) -> dict[str, Any]:
    """The words that begin and end what is generated, where a checkpoint keeps them in a file of their own."""
    path = folder / GENERATION_FILE
    said = _read_json(path) if path.is_file() else {}
    keys = ("bos_token_id", "eos_token_id", "decoder_start_token_id")
    found = {key: said[key] for key in keys if said.get(key) is not None}
    wrong = {key: ids for key, ids in found.items() if not all(type(word) is int for word in as_tuple(ids))}
    raise_problems(
        [f"{path}: {key} must be the id of a word, but is {ids!r}" for key, ids in wrong.items()], InvalidCheckpoint
    )
    return found


def _huggingface_config(
    folder: Path, values: dict[str, Any], converter: CheckpointConverter, weights: dict[str, Any]
) -> Any:
    try:
        config = converter.read_config(values, weights)
        if (folder / MODULES_FILE).is_file() and isinstance(config, BertConfig):
            config = with_pooling(config, folder)
    except InvalidArgument as error:
        raise UnsupportedCheckpoint(f"{folder / CONFIG_FILE}: {converter.use_checkpoint_names(str(error))}") from error
    except (OSError, TypeError, ValueError, AttributeError, LookupError) as error:  # a list for a number, no file
        raise InvalidCheckpoint(f"{folder / CONFIG_FILE} does not read as a {converter.model_type}: {error}") from error
    return config
