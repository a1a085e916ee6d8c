"""Envs of reap as envs of torchrl, for use with its transforms and modules."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from reap.optional import load

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from reap.specs import Composite


class WrappedEnv(Protocol):
    """The part of reap's `EnvBase` that torchrl's env needs."""

    device: torch.device | None
    batch_size: torch.Size

    @property
    def observation_spec(self) -> Composite:
        """The specs of the observations."""
        ...

    @property
    def full_action_spec(self) -> Composite:
        """The specs of the actions."""
        ...

    @property
    def full_reward_spec(self) -> Composite:
        """The specs of the rewards."""
        ...

    @property
    def full_done_spec(self) -> Composite:
        """The specs of the done flags."""
        ...

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start new episodes."""
        ...

    def results_of_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the actions; the results are at the root of a new TensorDict."""
        ...

    def set_seed(self, seed: int) -> int:
        """Seed the env."""
        ...

    def close(self) -> None:
        """Release the env."""
        ...


def as_torchrl(env: WrappedEnv) -> Any:
    """An instance of `torchrl.envs.EnvBase` that resets and steps an env of reap.

    Raises:
        ImportError: torchrl is not installed.
    """
    return _wrapper_class()(env)


@cache
def _wrapper_class() -> Any:
    base: Any = load("torchrl.envs", "env.as_torchrl()").EnvBase

    class ReapEnv(base):
        """An env of reap as an env of torchrl."""

        def __init__(self, env: WrappedEnv) -> None:
            super().__init__(device=env.device, batch_size=env.batch_size)
            self.wrapped = env
            self.observation_spec = env.observation_spec.as_torchrl()
            self.action_spec = env.full_action_spec.as_torchrl()
            self.reward_spec = env.full_reward_spec.as_torchrl()
            self.done_spec = env.full_done_spec.as_torchrl()
            self.is_closed = False

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            begun = self.wrapped.reset(tensordict)
            return begun.select(*self.full_observation_spec.keys(True, True), *self.full_done_spec.keys(True, True))

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return self.wrapped.results_of_step(tensordict.exclude("next") if "next" in tensordict else tensordict)

        def _set_seed(self, seed: int | None) -> None:
            if seed is not None:
                self.wrapped.set_seed(seed)

        def close(self, *, raise_if_closed: bool = True) -> None:
            """Close the wrapped env; a second call does nothing."""
            self.is_closed = True
            self.wrapped.close()

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_") or "wrapped" not in self.__dict__:
                    raise
            return getattr(self.wrapped, name)  # what the user's own class has beside torchrl's

        def __reduce__(self) -> tuple[Any, ...]:
            return as_torchrl, (self.wrapped,)

        def __repr__(self) -> str:
            return f"{self.wrapped!r}.as_torchrl()"

    ReapEnv.__qualname__ = "ReapEnv"  # where pickle looks for the class
    return ReapEnv


def __getattr__(name: str) -> Any:
    if name == "ReapEnv":
        return _wrapper_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
