"""Recipes: descriptions from which an env can be built again, in another process or at a later time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from reap.recording.records import Recipe
from reap.workers.pickling import pickled

NO_KEYWORDS: Mapping[str, Any] = {}


def factory_recipe(factory: Callable[..., Any], kwargs: Mapping[str, Any] = NO_KEYWORDS) -> Recipe | None:
    """The recipe of an env that a factory makes; None if it cannot be pickled."""
    try:
        return Recipe(factory=pickled((factory, dict(kwargs))))
    except Exception:  # noqa: BLE001  whatever its parts raise when they are pickled
        return None


def maker_of(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """The arguments of `build_env` for a recipe: a factory or a gymnasium id, and its keywords."""
    if recipe.factory is None:
        return recipe.env_id, dict(recipe.options or {})
    factory, kwargs = pickle.loads(recipe.factory)
    return factory, kwargs
