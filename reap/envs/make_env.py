"""`build_env`: makes an `EnvBase` from a user's env, factory or gymnasium id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Any

import gymnasium as gym
from torch import nn

from reap.envs.adapters.torchrl import TorchRLEnv, is_torchrl_env
from reap.envs.base import EnvBase
from reap.envs.gymnasium.env import GymEnv
from reap.envs.gymnasium.vector_kinds import is_vector_env
from reap.errors import OptionError, add_note, shown


def is_env(given: Any) -> bool:
    """Whether an env was given, rather than a factory."""
    return isinstance(given, EnvBase | gym.Env) or is_vector_env(given) or is_torchrl_env(given)


def refuse_instances(factories: Sequence[Any], builders: str) -> None:
    """Raise OptionError for envs that cannot be sent to another process: only reap's envs can be rebuilt there.

    Args:
        factories: one `create_env_fn` for each env.
        builders: what builds the envs, for the error: "workers".
    """
    for factory in factories:
        if is_env(factory) and not isinstance(factory, EnvBase):
            raise OptionError(
                f"create_env_fn: {factory!r} is an env of this process; {builders} build their own: give a factory, "
                f"lambda: {type(factory).__name__}(...)"
            )


def build_env(given: Any, kwargs: Mapping[str, Any] | None = None) -> EnvBase:
    """Make an env from an env, a factory, a gymnasium id or a gymnasium env.

    Args:
        given: the `create_env_fn`.
        kwargs: keywords for the factory, or for `GymEnv` with an id.

    Raises:
        OptionError: anything else was given, or returned by the factory.
    """
    keywords = dict(kwargs or {})
    if isinstance(given, str):
        return GymEnv(given, **keywords)
    if is_env(given):
        if keywords:
            raise OptionError(f"create_env_kwargs {sorted(keywords)} need a factory, but an env was given")
        return _as_env(given)
    if not callable(given) or isinstance(given, nn.Module):
        raise OptionError(
            "create_env_fn: expected an env, a factory or a gymnasium id, "
            f"got {type(given).__name__}: {shown(given)}{_hint(given)}"
        )
    name = getattr(given, "__qualname__", type(given).__name__)
    try:
        made = given(**keywords)
    except Exception as error:
        add_note(error, f"reap: raised by create_env_fn {name}" + (f" with {shown(keywords)}" if keywords else ""))
        raise
    if not is_env(made):
        hint = "; does it lack a return?" if made is None else "; does it lack a call?" if isclass(made) else _hint(made)
        raise OptionError(f"create_env_fn {name}: expected it to return an env, got {type(made).__name__}: {shown(made)}{hint}")
    env = _as_env(made)
    env.maker = given, keywords
    return env


def _hint(given: Any) -> str:
    if isinstance(given, nn.Module):
        return "; that is a policy: the env comes first, then the policy. Are they swapped?"
    if isinstance(given, list | tuple):
        several = f"SerialEnv({len(given)}, [...])"
        return f"; several envs are a {several}, or in a process each a MultiSyncDataCollector([...], ...)"
    if any(cls.__module__.startswith("pettingzoo.") for cls in type(given).__mro__):
        return "; an env of PettingZoo is wrapped: PettingZooWrapper(env), from reap.envs"
    return ""


def _as_env(env: Any) -> EnvBase:
    if isinstance(env, EnvBase):
        env.ensure_open()
        return env
    if is_torchrl_env(env):
        return TorchRLEnv(env)
    return GymEnv(env)
