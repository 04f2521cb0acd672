"""``regard train``: a model from a recipe."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from regard.errors import InvalidArgument, InvalidFile


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and its files; train nothing.")] = False,
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

    - `data.train`, `data.valid`: UTF-8 files, plain or `.gz`; `--data.valid null` trains without validation

    - `data.folder`: where their paths start; default: the working directory

    - `output_dir`: the run folder

    Each task reads its own format. The toy recipes train in minutes, on data from the package.

    - translation: source, tab, target per line, or two aligned files: `--data.train "[train.en, train.de]"`.
      Recipes: toy-translation, tatoeba-en-de, multi30k-en-de, tatoeba-rnn-search

    - classification: text, tab, class per line. Recipes: toy-classification, polarity

    - tagging: one word and its tag per line, an empty line between sentences (CoNLL columns: the word first, the tag
      last); or a `.jsonl` file of objects with tokens and tags. Recipe: toy-tagging

    - masked_lm: one text per line. Recipes: toy-masked-lm, tatoeba-masked-lm

    - causal_lm: running text, or one text per line with `--data.sample_by line`, as in toy-causal-lm. Recipes:
      toy-causal-lm, shakespeare-characters

    The run folder gets models for `--model` of other commands: `last`; `best`, if there is validation; `averaged`, only
    with `--checkpoint.average_last N`: the mean weights of the last N snapshots. It also gets train.log, metrics.csv
    and TensorBoard events. After a crash, Ctrl-C (exit status 130) or SIGTERM (143), `--resume` continues, bit for bit
    on one CPU.

    `regard export` writes a model for transformers. `--dry-run` and the log of the run say at the start whether that
    will be possible; with `--checkpoint.format transformers`, the run writes that format, or does not start.
    """
    if str(recipe).startswith("--"):
        raise InvalidArgument(
            f"recipe: expected the recipe before its keys, got {recipe} first; write `regard train RECIPE {recipe} ...`"
        )
    from regard import training
    from regard.training.recipe_file import data_source

    loaded = training.load_recipe(recipe, context.args)  # a wrong recipe is refused before lightning is imported
    try:
        loaded.check_files()
    except InvalidFile as error:
        source = data_source(recipe)
        raise InvalidFile(f"{error}\nadd `--data.folder FOLDER`; {source}" if source else str(error)) from None
    if dry_run:
        from regard.training.run_folder import check_folder

        check_folder(loaded.output_dir, resume=resume)
        print(f"{loaded.output_dir}: {loaded.task}, {loaded.trainer.max_steps} steps")
        print(loaded.describe_export())
        return
    result = training.train(loaded, resume=resume)
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)
