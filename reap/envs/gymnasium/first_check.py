"""The check of the results of an env's first reset and first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.checks.rounding import ROUNDING
from reap.envs.gymnasium.values import contains, is_choice
from reap.errors import SpecMismatch
from reap.specs.fits import as_array, as_dtype, describe, expected_and_found, one_flag, one_number
from reap.words import counted

CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

RESET_VALUES = "(observation, info)"
STEP_VALUES = "(observation, reward, terminated, truncated, info)"


def check_reset(result: Any, space: gym.Space[Any], *, bounds: bool = True) -> None:
    """Raise SpecMismatch unless a reset returned an observation of the space and an info."""
    check_values(result, "env.reset", RESET_VALUES)
    check_observation(result[0], space, "env.reset", bounds=bounds)


def check_step(
    result: Any, space: gym.Space[Any], take_reward: Callable[[Any], Any] = one_number, *, bounds: bool = True
) -> bool:
    """Raise SpecMismatch unless the result of a step has gymnasium's form.

    Args:
        result: what the step returned.
        space: the space of its observation.
        take_reward: checks its reward.
        bounds: whether numbers must be within the bounds of a Box.

    Returns:
        Whether reward and flags are plain numbers; otherwise they are arrays of one element each.
    """
    check_values(result, "env.step", STEP_VALUES)
    check_observation(result[0], space, "env.step", bounds=bounds)
    _, reward, terminated, truncated, _ = result
    take_reward(reward)
    one_flag(terminated, "terminated")
    one_flag(truncated, "truncated")
    return all(np.ndim(value) == 0 for value in (reward, terminated, truncated))


def check_values(result: Any, where: str, expected: str) -> None:
    """Raise SpecMismatch unless a call returned as many values as gymnasium requires."""
    count = expected.count(",") + 1
    if not isinstance(result, tuple | list) or len(result) != count:
        raise _other_values(result, where, expected)


def no_step(result: Any) -> SpecMismatch:
    """The error for the result of a step that is not the five values of gymnasium."""
    return _other_values(result, "env.step", STEP_VALUES)


def no_reset(result: Any) -> SpecMismatch:
    """The error for the result of a reset that is not an observation and an info."""
    return _other_values(result, "env.reset", RESET_VALUES)


def step_values(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The five values of a step.

    The hot paths unpack them by themselves, and raise `no_step`: a call less for each env and step.

    Raises:
        SpecMismatch: they are not five.
    """
    try:
        observation, reward, terminated, truncated, info = result
    except (TypeError, ValueError):
        raise no_step(result) from None
    return observation, reward, terminated, truncated, info


def reset_values(result: Any) -> tuple[Any, Any]:
    """The observation and the info of a reset; see `step_values`.

    Raises:
        SpecMismatch: they are not two.
    """
    try:
        observation, info = result
    except (TypeError, ValueError):
        raise no_reset(result) from None
    return observation, info


def _other_values(result: Any, where: str, expected: str) -> SpecMismatch:
    found = counted(len(result), "value") if isinstance(result, tuple) else describe(result)
    return SpecMismatch(
        f"{where}: expected {expected}, found {found}; an env of the old gym interface is wrapped by the shimmy package"
    )


def check_observation(value: Any, space: gym.Space[Any], where: str, path: str = "observation", *, bounds: bool = True) -> None:
    """Raise SpecMismatch unless a value fits the space that the env declares; see `reap.specs.fits`.

    Args:
        value: the observation.
        space: the space.
        where: the call that returned it, for the error.
        path: the part of the observation, for the error.
        bounds: whether numbers must be within the bounds of a Box, up to one part in a million.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        _check_leaf(value, space, where, path, bounds)
        return
    for index, sub in _entries(value, space, where, path):
        check_observation(value[index], sub, where, f"{path}[{index!r}]", bounds=bounds)


def check_containers(value: Any, space: gym.Space[Any], where: str, path: str = "observation") -> None:
    """The part of `check_observation` that looks at dicts and tuples, and not at what is in them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for index, sub in _entries(value, space, where, path):
            check_containers(value[index], sub, where, f"{path}[{index!r}]")


def _entries(value: Any, space: spaces.Dict | spaces.Tuple[Any], where: str, path: str) -> Iterable[tuple[Any, gym.Space[Any]]]:
    """The keys or numbers of a space's entries with their spaces, if the value has the same."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            found = sorted(map(str, value)) if isinstance(value, dict) else describe(value)
            raise _mismatch(where, path, f"a dict with keys {sorted(space.spaces)}", found)
        return space.spaces.items()
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        raise _mismatch(where, path, f"a tuple of {len(space.spaces)}", describe(value))
    return enumerate(space.spaces)


def _check_leaf(value: Any, space: gym.Space[Any], where: str, path: str, bounds: bool) -> None:
    if not isinstance(space, spaces.Box):
        # As later values are checked; a space of a derived class may say more.
        fits = is_choice(value, space) if type(space) in CHOICES else contains(space, value)
        if not fits:
            raise _mismatch(where, path, str(space), describe(value))
        return
    array = as_array(value)
    if array is None or array.shape != space.shape or as_dtype(array, space.dtype) is None:
        raise _mismatch(where, path, *expected_and_found(value, space.shape, space.dtype))
    numbers = array.astype(np.float64)
    if np.isnan(numbers).any():
        raise _mismatch(where, path, "numbers", f"NaN at {_first(np.isnan(numbers))}")
    slack = ROUNDING * np.maximum(1.0, np.abs(np.where(np.isfinite(numbers), numbers, 0.0)))
    outside = (array < space.low - slack) | (array > space.high + slack)
    if bounds and outside.any():
        index = _first(outside)
        expected = f"values in [{space.low[index]}, {space.high[index]}]"
        raise _mismatch(where, path, expected, f"{array[index]} at index {index}")


def _first(mask: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _mismatch(where: str, path: str, expected: str, found: object) -> SpecMismatch:
    return SpecMismatch(
        f"{where}: {path} does not fit the env's own observation_space: expected {expected}, found {found}; "
        "correct the space or the value (gymnasium.wrappers.TransformObservation changes either)"
    )
