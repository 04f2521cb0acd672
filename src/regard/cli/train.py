"""``regard train``: a model from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import InvalidArgument


def train(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="YAML recipe, or the name of a recipe of the package, such as tatoeba-en-de.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint of the run.")] = False,
) -> None:
    """Train from a YAML recipe.

    Any key of the recipe can be set by its dotted name. The folder of the run (`output_dir`) gets models (`last`,
    `best`, `averaged`) that `--model` of the other commands takes, a log and metrics.csv.

        regard train toy-translation
        regard train tatoeba-en-de --data.folder pairs --trainer.max_steps 2000
        regard train my-recipe.yaml --resume

    After a crash, Ctrl-C or SIGTERM, `--resume` continues from the last checkpoint, bit for bit on one CPU.

    Recipes of the package: tatoeba-en-de, multi30k-en-de and tatoeba-rnn-search (translation), shakespeare-characters
    (causal_lm), tatoeba-masked-lm (masked_lm), polarity (classification). Four train in minutes, on data that are in
    the package: toy-translation, toy-causal-lm, toy-masked-lm and toy-classification.
    """
    if str(recipe).startswith("--"):
        raise InvalidArgument(
            f"RECIPE: expected the recipe before its keys, got {recipe} first; write `regard train RECIPE {recipe} ...`"
        )
    from regard import training

    loaded = training.load_recipe(recipe, context.args)  # a wrong recipe is refused before lightning is imported
    if training.train(loaded, resume=resume).interrupted:
        raise typer.Exit(130)
