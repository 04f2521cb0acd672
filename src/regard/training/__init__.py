"""Training from recipes."""

from __future__ import annotations

from regard.training.recipe import Recipe, apply_overrides, make_recipe, read_recipe
from regard.training.train import Outcome, train

__all__ = ["Outcome", "Recipe", "apply_overrides", "make_recipe", "read_recipe", "train"]
