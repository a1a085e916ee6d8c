"""The library of gym envs: always gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any, Self

import gymnasium as gym

from reap.errors import OptionError


def gym_backend(submodule: str | None = None) -> ModuleType:
    """The gymnasium package, or a module in it.

    Example:
        >>> gym_backend().__name__, gym_backend("spaces").__name__
        ('gymnasium', 'gymnasium.spaces')
    """
    module: Any = gym
    for name in submodule.split(".") if submodule else ():
        module = getattr(module, name)
    return module


class set_gym_backend(ContextDecorator):  # noqa: N801  torchrl's name
    """Selects gymnasium as the library of gym envs, for programs that do; there is no other choice.

    A context manager, a decorator, or a call with `.set()`.

    Args:
        backend: `"gymnasium"`, the package itself, or a function that returns it.

    Raises:
        OptionError: another library.

    Example:
        >>> with set_gym_backend("gymnasium"):
        ...     gym_backend().__name__
        'gymnasium'
    """

    def __init__(self, backend: str | ModuleType | Callable[[], ModuleType]) -> None:
        given = backend() if callable(backend) else backend
        name = given if isinstance(given, str) else given.__name__
        if name != "gymnasium":
            raise OptionError(
                f"set_gym_backend: expected 'gymnasium', got {name!r}: shimmy makes gymnasium's envs of those of the old gym"
            )
        self.backend = gym

    def set(self) -> None:
        """Do nothing: gymnasium is the library."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return
