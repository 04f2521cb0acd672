"""``regard train``: an experiment from one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import InvalidArgument


def train(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="A YAML file, or the name of a recipe of the package, such as tatoeba-en-de.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of the run, as if it had never stopped.")
    ] = False,
) -> None:
    """Train a model as a recipe says; any key of it can be set here by its dotted name.

    A recipe is of a task: translation, causal_lm, masked_lm or classification. Recipes of the package:
    tatoeba-en-de, multi30k-en-de and tatoeba-rnn-search (translation), shakespeare-characters (causal_lm),
    tatoeba-masked-lm (masked_lm), polarity (classification).

        regard train tatoeba-en-de --data.folder pairs --trainer.max_steps 2000

    After a crash, Ctrl-C or SIGTERM, the same line with `--resume` goes on from the last checkpoint, bit for bit on one
    CPU. The run folder then holds models (`last`, `best`, `averaged`) that `--model` of the other commands takes.
    """
    if str(recipe).startswith("--"):
        raise InvalidArgument(
            f"RECIPE: expected the file first and keys after it, but {recipe} came first: "
            f"write `regard train RECIPE {recipe} ...`"
        )
    from regard import training

    settings = training.load_recipe(recipe, context.args)  # refused before lightning is loaded
    if training.train(settings, resume=resume).interrupted:
        raise typer.Exit(130)
