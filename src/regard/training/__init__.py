"""Training from recipes.

`train` is loaded when it is first used: a recipe is read and refused without waiting for lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from regard.errors import MissingExtra

try:
    from regard.training.recipe import Recipe, apply_overrides, make_recipe, read_recipe
except ModuleNotFoundError as error:
    raise MissingExtra(f"training needs {error.name}: install it with `pip install 'regard[train]'`") from None

if TYPE_CHECKING:
    from regard.training.run import Outcome, train

__all__ = ["Outcome", "Recipe", "apply_overrides", "make_recipe", "read_recipe", "train"]


def __getattr__(name: str) -> object:
    if name in ("Outcome", "train"):
        return getattr(importlib.import_module("regard.training.run"), name)
    raise AttributeError(f"module 'regard.training' has no attribute '{name}'")
