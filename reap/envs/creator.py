"""`EnvCreator`: an env factory with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reap.envs.base import EnvBase
from reap.envs.make_env import build_env
from reap.errors import OptionError


class EnvCreator:
    """Builds an env each time it is called.

    Args:
        create_env_fn: an env factory or a gymnasium id.
        create_env_kwargs: keywords for it.
        share_memory: accepted for compatibility with torchrl; ignored.
        **kwargs: additional keywords for it.

    Example:
        >>> EnvCreator("CartPole-v1")()
        GymEnv(CartPole-v1)
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any] | str,
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        if share_memory is not True:
            raise OptionError("EnvCreator: share_memory: expected True, as in torchrl: an env of reap has no memory to share")
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """A creator of the same envs with additional keywords, which override those of this one."""
        return EnvCreator(self.create_env_fn, {**self.create_env_kwargs, **kwargs})

    def __call__(self, **kwargs: Any) -> EnvBase:
        """Make a new env; keywords given here override those of the creator."""
        return build_env(self.create_env_fn, {**self.create_env_kwargs, **kwargs})
