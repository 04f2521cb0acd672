"""``regard train``: a model from a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import InvalidArgument, InvalidFile

if TYPE_CHECKING:
    from regard.training import Recipe


def _print_keys(value: bool) -> None:
    if not value:
        return
    from regard.training.recipe_keys import keys_of_all_tasks

    for heading, keys in keys_of_all_tasks().items():
        typer.echo(f"{heading}\n")
        for key in keys:
            typer.echo(f"  --{key.name}  {f'default {key.default}' if key.default else 'required'}")
            if key.meaning:
                typer.echo(fill(key.meaning, width=100, initial_indent=" " * 6, subsequent_indent=" " * 6))
        typer.echo()
    raise typer.Exit


def train(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe (YAML), name of a recipe of the package, or run folder.", show_default=False)
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint of the run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check recipe, files and folder, but not the devices; train nothing.")
    ] = False,
    _help_keys: Annotated[
        bool,
        typer.Option("--help-keys", callback=_print_keys, is_eager=True, help="List all keys of recipes and end."),
    ] = False,
) -> None:
    r"""Train a model from a YAML recipe, on your own texts or on those of the package.

    `--section.key value` after the recipe sets any key. `--help-keys` lists all keys with defaults and meanings;
    `recipe.yaml` in the run folder has every key with its value.

        regard train toy-translation
        regard train toy-translation --output_dir runs/mine \
            --data.train pairs.tsv --data.valid valid.tsv --trainer.max_steps 500
        regard train runs/mine --resume
        regard train toy-causal-lm --dry-run

    - `data.train`, `data.valid`: UTF-8 files, plain or `.gz`, or `.parquet`, `.jsonl` or `.json` files with columns;
      `--data.valid null` trains without validation

    - `data.streaming`: true for a corpus that is tokenized while the model trains; not for tagging

    - `data.folder`: where their paths start; default: the working directory

    - `output_dir`: the run folder

    Each task reads its own format. The toy recipes train in minutes, on data from the package.

    - translation: source, tab, target per line, or two aligned files: `--data.train "[train.en, train.de]"`; or the
      columns `--data.source_column` and `--data.target_column`.
      Recipes: toy-translation, tatoeba-en-de, tatoeba-en-de-copy, multi30k-en-de, tatoeba-rnn-search

    - classification: text, tab, class per line; or the columns `--data.text_column` and `--data.label_column`.
      Recipes: toy-classification, polarity

    - tagging: one word and its tag per line, an empty line between sentences (CoNLL columns: the word first, the tag
      last); or a `.jsonl` file of objects with tokens and tags. Recipe: toy-tagging

    - masked_lm: one text per line, or per row of `--data.text_column`. Recipes: toy-masked-lm, tatoeba-masked-lm

    - causal_lm: running text, or one text per line with `--data.sample_by line`, as in toy-causal-lm, or per row of
      `--data.text_column`. Recipes: toy-causal-lm, shakespeare-characters

    The run folder gets models for `--model` of other commands: `last`; `best`, if there is validation; `averaged`, only
    with `--checkpoint.average_last N`: the mean weights of the last N snapshots. It also gets train.log, metrics.csv
    and TensorBoard events. After a crash, Ctrl-C (exit status 130) or SIGTERM (143), `--resume` continues, bit for bit
    on one CPU.

    `regard export` writes a model for transformers. `--dry-run` and the log of the run say at the start whether that
    will be possible; with `--checkpoint.format transformers`, the run writes that format, or does not start.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns of each lost process in dozens of lines
    from regard import training
    from regard.training.processes import Processes

    with Processes() as processes:
        with processes.together():  # a wrong recipe is refused before Fabric is imported
            loaded = _load(recipe, context.args)
            if dry_run and processes.rank == 0:
                _describe(loaded, resume=resume)
        if dry_run:
            return
        result = training.train_with(processes, loaded, resume=resume)
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)


def _load(recipe: Path, keys: list[str]) -> Recipe:
    """Read a recipe, and check its files."""
    from regard.training.recipe_file import data_source, load_recipe

    if str(recipe).startswith("--"):
        raise InvalidArgument(
            f"recipe: expected the recipe before its keys, got {recipe} first; write `regard train RECIPE {recipe} ...`"
        )
    loaded = load_recipe(recipe, keys)
    try:
        loaded.check_files()
    except InvalidFile as error:
        source = data_source(recipe)
        raise InvalidFile(f"{error}\nadd `--data.folder FOLDER`; {source}" if source else str(error)) from None
    return loaded


def _describe(recipe: Recipe, *, resume: bool) -> None:
    """Check the run folder, and print what a training would do."""
    from regard.training.run_folder import check_folder

    check_folder(recipe.output_dir, resume=resume)
    print(f"{recipe.output_dir}: {recipe.task}, {recipe.trainer.max_steps} steps")
    print(recipe.describe_export())
