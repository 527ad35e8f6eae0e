"""Expands that have a name: what to follow, how far and which way, so that a caller chooses a name and no knobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from isotherm.pipeline.brain.errors import RecipeNameRequiredError, RecipeNotFoundError
from isotherm.pipeline.brain.walk import Direction


@dataclass(frozen=True, slots=True)
class ExpandRecipe:
    """A named expand. Args: labels, containment: as `split_labels` takes them; hops: None means one."""

    name: str
    labels: tuple[str, ...] | None = ()
    hops: int = 1
    direction: Direction = Direction.BOTH
    containment: bool = False


class Recipes:
    """The recipes of a process; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, ExpandRecipe] = {}

    def register(self, recipe: ExpandRecipe) -> None:
        """Add a recipe, or replace the one of its name. Raises: RecipeNameRequiredError for a blank name."""
        name = recipe.name.strip()
        if not name:
            raise RecipeNameRequiredError("a recipe needs a name")
        with self._lock:
            self._by_name[name] = replace(recipe, name=name)

    def named(self, name: str) -> ExpandRecipe:
        """The recipe of a name. Raises: RecipeNotFoundError when there is none."""
        with self._lock:
            found = self._by_name.get(name.strip())
        if found is None:
            raise RecipeNotFoundError("no recipe of this name is registered")
        return found

    def names(self) -> list[str]:
        """Names of all recipes, in order."""
        with self._lock:
            return sorted(self._by_name)
