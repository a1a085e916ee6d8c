"""Builds gymnasium envs and vector envs from ids, with the wrappers for `GymEnv`'s options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from gymnasium import error as gym_error
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import AddRenderObservation

from reap.envs.gymnasium.calls import Env
from reap.envs.gymnasium.vector_kinds import is_vector_env
from reap.envs.notices import without_notices
from reap.errors import OptionError, nearest
from reap.option_values import is_count, switch
from reap.optional import load


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, sums the rewards, and stops repeating when the episode ends."""

    stateless = True

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self._frames = frames

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take several steps of the env with one action."""
        total: Any = 0.0
        for _ in range(self._frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info  # pyright: ignore[reportPossiblyUnboundVariable]


class TensorActions(gym.ActionWrapper[Any, Any, Any]):
    """Passes actions to an env as tensors."""

    stateless = True

    def action(self, action: Any) -> Any:
        """The action as a tensor, or as a dict or tuple of tensors."""
        if isinstance(action, dict):
            return {name: self.action(part) for name, part in action.items()}
        if isinstance(action, tuple):
            return tuple(self.action(part) for part in action)
        return torch.as_tensor(action)


@dataclass(frozen=True)
class Wrapping:
    """The wrappers that the options of `GymEnv` put around a single env.

    Attributes:
        from_pixels: render each step.
        pixels_only: omit the env's own observation.
        frame_skip: number of times that each action is repeated.
        convert_actions_to_numpy: pass arrays and numbers to the env; otherwise tensors.
    """

    from_pixels: bool
    pixels_only: bool
    frame_skip: Any
    convert_actions_to_numpy: bool = True

    def __post_init__(self) -> None:
        for name in ("from_pixels", "pixels_only", "convert_actions_to_numpy"):
            switch(getattr(self, name), name)
        skip = self.frame_skip
        if skip is not None and not is_count(skip):
            raise OptionError(f"frame_skip: expected a positive integer, got {skip!r}")

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments of `gymnasium.make`."""
        return {"render_mode": "rgb_array"} if self.from_pixels else {}

    def __call__(self, env: Env) -> Env:
        """Put the wrappers around an env."""
        if not self.convert_actions_to_numpy:
            env = TensorActions(env)
        if self.frame_skip is not None:
            env = FrameSkip(env, self.frame_skip)
        if not self.from_pixels:
            return env
        if env.render_mode != "rgb_array":
            raise OptionError(f"from_pixels needs render_mode='rgb_array', this env has {env.render_mode!r}")
        env.reset()
        return AddRenderObservation(env, render_only=self.pixels_only, render_key="pixels", obs_key="observation")

    def refuse(self, given: str) -> None:
        """Raise OptionError if there are wrappers, which need a single env, since `given` is not one."""
        options = {
            "from_pixels": self.from_pixels,
            "frame_skip": self.frame_skip is not None,
            "convert_actions_to_numpy": not self.convert_actions_to_numpy,
        }
        asked = [name for name, given in options.items() if given]
        if asked:
            raise OptionError(
                f"{asked}: wrappers go around single envs, and {given} is a whole; give these options where it is made"
            )


def build(env: Any, count: Any, wrapping: Wrapping, kwargs: Mapping[str, Any]) -> Any:
    """Make an env, or a vector env of `count` rows, from an id, or return the given env.

    Raises:
        OptionError: an unknown id, not an env, or unsupported options.
    """
    if not is_count(count, least=0):
        raise OptionError(f"num_envs: expected a number of envs, or 0 for a single one, got {count!r}")
    if isinstance(env, str):
        return _make_vector(env, count, wrapping, **kwargs) if count else _make_one(env, wrapping, kwargs)
    if not isinstance(env, gym.Env) and not is_vector_env(env):
        hint = "; give its id, so that it can be made several times" if count else ""
        raise OptionError(f"GymEnv: expected a gymnasium id, env or vector env, got {type(env).__name__}: {env!r}{hint}")
    given = sorted(kwargs) + (["num_envs"] if count else [])
    if given:
        raise OptionError(f"GymEnv: {given} go to gymnasium.make and need an id, but an env was given")
    if not is_vector_env(env):
        return wrapping(env)
    wrapping.refuse(f"the vector env {type(env).__name__}")
    return env


def _make_one(env_id: str, wrapping: Wrapping, kwargs: Mapping[str, Any]) -> Env:
    return wrapping(make_gymnasium_env(env_id, **{**wrapping.keywords, **kwargs}))


def _make_vector(
    env_id: str,
    count: int,
    wrapping: Wrapping,
    *,
    vectorization_mode: Any = "sync",
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: tuple[Callable[[Env], Env], ...] = (),
    **kwargs: Any,
) -> Any:
    """Make a vector env; the keywords are those of `gymnasium.make_vec`."""
    mode = getattr(vectorization_mode, "value", vectorization_mode)
    options = dict(vector_kwargs or {})
    if mode == "vector_entry_point":
        if wrappers or options:
            raise OptionError(
                "vectorization_mode='vector_entry_point' has no single envs: wrappers and vector_kwargs cannot be used"
            )
        wrapping.refuse("a vector entry point")
        return _make_entry_point(env_id, count, kwargs)
    kinds = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
    if mode not in kinds:
        raise OptionError(f"vectorization_mode: expected one of {[*kinds, 'vector_entry_point']}, got {vectorization_mode!r}")
    factory = partial(_make_wrapped, env_id, wrapping, tuple(wrappers), kwargs)
    return kinds[mode]([factory] * count, **options)


def _make_wrapped(
    env_id: str, wrapping: Wrapping, wrappers: tuple[Callable[[Env], Env], ...], kwargs: Mapping[str, Any]
) -> Env:
    env = _make_one(env_id, wrapping, kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _make_entry_point(env_id: str, count: int, kwargs: Mapping[str, Any]) -> Any:
    _register(env_id)
    try:
        with without_notices(env_id, kwargs):
            return gym.make_vec(env_id, count, vectorization_mode="vector_entry_point", **kwargs)
    except gym_error.Error as error:
        if env_id in gym.registry:
            raise OptionError(f"{env_id}: {error}") from error
        raise _unknown_id(env_id) from error


def _register(env_id: str) -> None:
    if env_id.startswith("ALE/") and env_id not in gym.registry:
        gym.register_envs(load("ale_py", env_id))


def make_gymnasium_env(env_id: str, **kwargs: Any) -> Env:
    """`gymnasium.make`, with similar names in the error, and with Atari ids registered on demand.

    Raises:
        OptionError: no env of that name is registered.
    """
    _register(env_id)
    kwargs.setdefault("disable_env_checker", True)
    try:
        with without_notices(env_id, kwargs):
            return gym.make(env_id, **kwargs)
    except gym_error.Error as error:
        if not (isinstance(error, gym_error.UnregisteredEnv) or type(error) is gym_error.Error):
            raise
        raise _unknown_id(env_id) from error


def _unknown_id(env_id: str) -> OptionError:
    return OptionError(
        f"unknown env id {env_id!r}: gymnasium has no env of that name.{nearest(env_id, list(gym.registry))} "
        "Ids of other packages are known after importing the package."
    )
