"""The check of an env's first observations against its own space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.errors import SpecMismatch


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
        if not space.contains(value):
            raise _mismatch(where, path, str(space), _describe(value))
        return
    array = np.asarray(value)
    if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
        raise _mismatch(where, path, f"shape {space.shape}, dtype {space.dtype}", _describe(value))
    if np.isnan(array.astype(np.float64)).any():
        raise _mismatch(where, path, "numbers", f"NaN at {_first(np.isnan(array.astype(np.float64)))}")
    slack = 1e-6 * np.maximum(1.0, np.abs(array.astype(np.float64)))
    outside = (array < space.low - slack) | (array > space.high + slack)
    if outside.any():
        index = _first(outside)
        bounds = f"values in [{space.low[index]}, {space.high[index]}]"
        raise _mismatch(where, path, bounds, f"{array[index]} at index {index}")


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
