"""The check of what an env's first reset and first step return."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.rounding import ROUNDING
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.layout import Array

NUMBERS = ("reward", "terminated", "truncated")
RESET_VALUES = "(observation, info)"
STEP_VALUES = "(observation, reward, terminated, truncated, info)"


def check_reset(result: Any, space: gym.Space[Any]) -> None:
    """Raise SpecMismatch unless a reset returned an observation of the space and an info."""
    check_values(result, "env.reset", RESET_VALUES)
    check_observation(result[0], space, "env.reset")


def check_step(result: Any, space: gym.Space[Any]) -> bool:
    """Raise SpecMismatch unless a step returned what gymnasium says.

    Returns:
        Whether reward and flags are numbers as they are; otherwise they are arrays of one element each.
    """
    check_values(result, "env.step", STEP_VALUES)
    check_observation(result[0], space, "env.step")
    plain = [_check_number(value, name) for value, name in zip(result[1:4], NUMBERS, strict=True)]
    return all(plain)


def one_number(value: Any, name: str = "reward") -> Any:
    """The number in a reward or a flag, which may be an array of one element.

    Raises:
        SpecMismatch: it is something else.
    """
    _check_number(value, name)
    return np.asarray(value).item()


def fitted(value: Any, row: Array, key: Key, where: str) -> Any:
    """A value as it is written into a row of arrays: it has the row's shape, or is one number where one is due.

    Raises:
        SpecMismatch: with the key, what was expected and what was found.
    """
    try:
        array = np.asarray(value, row.dtype)
        is_number = value is not None or row.dtype.hasobject  # None is NaN for numpy
        if is_number and (array.shape == row.shape or array.size == row.size == 1):
            return array.reshape(row.shape)
    except (TypeError, ValueError):  # no numbers, or parts of different shapes
        pass
    raise SpecMismatch(
        f"{where}: {plain(key)!r}: expected shape {row.shape}, dtype {row.dtype}, found {_describe(value)}; an observation "
        "whose shape changes needs a collector with use_buffers=False, an info of any kind info_keys={name: NonTensor(())}"
    )


def check_values(result: Any, where: str, expected: str) -> None:
    """Raise SpecMismatch unless a call returned as many values as gymnasium says."""
    count = expected.count(",") + 1
    if not isinstance(result, tuple | list) or len(result) != count:
        found = f"{len(result)} values" if isinstance(result, tuple) else _describe(result)
        raise SpecMismatch(
            f"{where}: expected {expected}, found {found}; an env of the old gym interface is wrapped by the shimmy package"
        )


def _check_number(value: Any, name: str) -> bool:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        kind = "number" if name == "reward" else "bool"
        raise SpecMismatch(f"env.step: {name}: expected one {kind}, found {_describe(value)}")
    return array.ndim == 0


def check_observation(value: Any, space: gym.Space[Any], where: str, path: str = "observation") -> None:
    """Raise SpecMismatch unless a value fits the space that the env declares.

    Floats may lie outside of a Box by rounding (one part in a million), integer types may differ in width.
    """
    if isinstance(space, spaces.Dict):
        entries: list[tuple[Any, gym.Space[Any]]] = list(space.spaces.items())
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            found = sorted(value) if isinstance(value, dict) else _describe(value)
            raise _mismatch(where, path, f"a dict with keys {sorted(space.spaces)}", found)
    elif isinstance(space, spaces.Tuple):
        entries = list(enumerate(space.spaces))
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _mismatch(where, path, f"a tuple of {len(space.spaces)}", _describe(value))
    else:
        _check_leaf(value, space, where, path)
        return
    for index, sub in entries:
        check_observation(value[index], sub, where, f"{path}[{index!r}]")


def _check_leaf(value: Any, space: gym.Space[Any], where: str, path: str) -> None:
    if not isinstance(space, spaces.Box):
        if not _contains(space, value):
            raise _mismatch(where, path, str(space), _describe(value))
        return
    try:
        array = np.asarray(value)
    except ValueError:  # parts of different shapes
        raise _mismatch(where, path, f"shape {space.shape}, dtype {space.dtype}", _describe(value)) from None
    if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
        raise _mismatch(where, path, f"shape {space.shape}, dtype {space.dtype}", _describe(value))
    numbers = array.astype(np.float64)
    if np.isnan(numbers).any():
        raise _mismatch(where, path, "numbers", f"NaN at {_first(np.isnan(numbers))}")
    slack = ROUNDING * np.maximum(1.0, np.abs(np.where(np.isfinite(numbers), numbers, 0.0)))
    outside = (array < space.low - slack) | (array > space.high + slack)
    if outside.any():
        index = _first(outside)
        bounds = f"values in [{space.low[index]}, {space.high[index]}]"
        raise _mismatch(where, path, bounds, f"{array[index]} at index {index}")


def _contains(space: gym.Space[Any], value: Any) -> bool:
    try:
        return space.contains(value)
    except NotImplementedError as error:
        raise OptionError(
            f"observation space {space} of {type(space)}: expected a space that says which values are in it; define its "
            "contains(value), or wrap the env with one of gymnasium's spaces"
        ) from error


def _first(mask: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, dtype {value.dtype}"
    return f"{value!r} ({type(value).__name__})"


def _mismatch(where: str, path: str, expected: str, found: object) -> SpecMismatch:
    return SpecMismatch(
        f"{where}: {path} does not fit the env's own observation_space: expected {expected}, found {found}; "
        "correct the space or the value (gymnasium.wrappers.TransformObservation changes either)"
    )
