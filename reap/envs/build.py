"""From what a user gives as an env to an `EnvBase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from reap.envs.base import EnvBase
from reap.envs.gym import GymEnv
from reap.errors import OptionError


def build_env(given: Any, kwargs: Mapping[str, Any] | None = None) -> EnvBase:
    """An env from an env, a factory, a gymnasium id or a gymnasium env.

    Args:
        given: what was given as `create_env_fn`.
        kwargs: keywords for the factory, or for `GymEnv` with an id.

    Raises:
        OptionError: something else was given, or the factory returned something else.
    """
    keywords = dict(kwargs or {})
    if isinstance(given, str):
        return GymEnv(given, **keywords)
    if isinstance(given, EnvBase | gym.Env):
        if keywords:
            raise OptionError(f"create_env_kwargs {sorted(keywords)} need a factory, but an env was given")
        return _as_env(given)
    if not callable(given):
        raise OptionError(f"create_env_fn: expected an env, a factory or a gymnasium id, got {type(given).__name__}: {given!r}")
    made = given(**keywords)
    if not isinstance(made, EnvBase | gym.Env):
        name = getattr(given, "__qualname__", type(given).__name__)
        hint = "; does it lack a return?" if made is None else ""
        raise OptionError(f"create_env_fn {name}: expected it to return an env, got {type(made).__name__}: {made!r}{hint}")
    return _as_env(made)


def _as_env(env: EnvBase | gym.Env[Any, Any]) -> EnvBase:
    if isinstance(env, EnvBase):
        env.ensure_open()
        return env
    return GymEnv(env)
