"""`EnvCreator`: an env factory with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reap.envs.base import EnvBase
from reap.envs.make_env import build_env


class EnvCreator:
    """Builds an env each time it is called.

    Args:
        create_env_fn: an env factory or a gymnasium id.
        create_env_kwargs: keywords for it.

    Example:
        >>> EnvCreator("CartPole-v1")()
        GymEnv(CartPole-v1)
    """

    def __init__(self, create_env_fn: Callable[..., Any] | str, create_env_kwargs: Mapping[str, Any] | None = None) -> None:
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = dict(create_env_kwargs or {})

    def __call__(self, **kwargs: Any) -> EnvBase:
        """A new env; keywords given here come before those of the creator."""
        return build_env(self.create_env_fn, {**self.create_env_kwargs, **kwargs})
