"""``regard export``: a model in the format of Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.models import resolve_dtype
from regard.cli.options import DtypeOption
from regard.errors import InvalidArgument, InvalidFile
from regard.input_files import exists

Format = Literal["transformers", "regard"]
CONFIG_FILE = "config.json"
RUN_MODELS = ("best", "last")
"""The models in a run folder, the first that exists is exported."""


def export(
    run: Annotated[Path, typer.Argument(help="Run folder, whose best model is exported, or model folder.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write to.", show_default="the model's folder with `-FORMAT`"),
    ] = None,
    save_format: Annotated[
        Format, typer.Option("--format", metavar="format", help="transformers, or regard for Regard's own format.")
    ] = "transformers",
    dtype: DtypeOption = "float32",
) -> None:
    """Write a trained model and its tokenizer as a checkpoint that Hugging Face's transformers loads.

    The outputs stay the same: what the model does not have, such as biases, is written as zeros. Of a run, `best` is
    exported, or `last` if there was no validation; name another folder, such as `averaged`, to export that.

        regard export runs/toy-translation
        regard export runs/toy-translation/averaged --format transformers -o translator --dtype bfloat16

    If transformers does not have the model, the error names the fields of its configuration that are the reason;
    nothing is written then. `regard train RECIPE --dry-run` says it before the training.
    """
    folder = _model_folder(run)
    target = output or folder.with_name(f"{folder.name}-{save_format}")
    if target.resolve() == folder.resolve():
        raise InvalidArgument(f"--output: expected another folder than that of the model, got {target}")
    if target.exists() and not target.is_dir():
        raise InvalidArgument(f"--output: expected a folder, got the file {target}")
    from regard.models import load_model, save_model
    from regard.models.huggingface.export import transformers_class
    from regard.text.tokenizer import load_tokenizer

    model = load_model(folder)
    save_model(target, model, load_tokenizer(folder), resolve_dtype(dtype), format=save_format)
    written_as = transformers_class(model.config) if save_format == "transformers" else type(model).__name__
    print(f"{target}: {written_as}")


def _model_folder(run: Path) -> Path:
    """The model that is exported: that of a model folder, or one of a run folder."""
    folders = [run, *(run / name for name in RUN_MODELS)]
    found = next((folder for folder in folders if exists(folder / CONFIG_FILE)), None)
    if found is None:
        got = "no such folder" if not run.exists() else "a folder without them" if run.is_dir() else "a file"
        raise InvalidFile(f"{run}: expected a run with {' or '.join(RUN_MODELS)}, or a model folder, got {got}")
    return found
