"""Training from recipes.

`train` is imported at first use, so that recipes are read and checked without importing Fabric.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard.errors import MissingExtra


@contextmanager
def _needs_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("regard"):
            raise
        raise MissingExtra(f"training needs {error.name}: install it with `pip install 'regard[train]'`") from None


with _needs_extra():
    from regard.training.recipe import Recipe
    from regard.training.recipe_file import apply_overrides, load_recipe

if TYPE_CHECKING:
    from regard.training.loop import TrainResult, train
    from regard.training.loop import train_with as train_with

__all__ = ["Recipe", "TrainResult", "apply_overrides", "load_recipe", "train"]


def __getattr__(name: str) -> object:
    if name in ("TrainResult", "train", "train_with"):
        with _needs_extra():
            return getattr(importlib.import_module("regard.training.loop"), name)
    raise AttributeError(f"module 'regard.training' has no attribute '{name}'")
