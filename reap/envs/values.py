"""Values of gymnasium spaces to and from rows of arrays.

`observation_leaves` says how an observation is taken apart: for each key a function from the observation to what is written
into the row. `action_decoder` says how a column of actions becomes the actions of the envs, always as copies, for envs may
keep what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.any_shape import AnyShape
from reap.envs.one_hot import one_hot_rows
from reap.errors import OptionError
from reap.keys import Key
from reap.layout import Array
from reap.objects import copied

Read = Callable[[Any], Any]
Decode = Callable[[Sequence[Array]], Sequence[Any]]


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation.

    Attributes:
        key: where it goes.
        space: its space.
        read: from the whole observation to what is written into the row.
    """

    key: Key
    space: gym.Space[Any]
    read: Read


def identity(value: Any) -> Any:
    """The value itself."""
    return value


def observation_leaves(
    space: gym.Space[Any], key: Key, *, categorical: bool, encoder: Callable[[gym.Space[Any], bool], Read] | None = None
) -> list[ObservationLeaf]:
    """The arrays of an observation: one, or for Dict and Tuple spaces one per entry.

    Args:
        space: the observation space.
        key: key of an observation that is not a Dict; a Dict's entries lie under their own names.
        categorical: discrete values are written as indices, otherwise one-hot.
        encoder: from a space without parts, and `categorical`, to what is written of its values; one row's by default.
    """
    root = () if isinstance(space, spaces.Dict) else key
    return _leaves(space, root, identity, lambda space: (encoder or _encoder)(space, categorical))


def _leaves(space: gym.Space[Any], key: Key, read: Read, encoder: Callable[[gym.Space[Any]], Read]) -> list[ObservationLeaf]:
    if isinstance(space, spaces.Dict):
        entries = [(str(name), name, sub) for name, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        entries = [(str(i), i, sub) for i, sub in enumerate(space.spaces)]
    else:
        return [ObservationLeaf(key, space, _compose(encoder(space), read))]
    found: list[ObservationLeaf] = []
    for name, index, sub in entries:
        found.extend(_leaves(sub, (*key, name), _compose(itemgetter(index), read), encoder))
    return found


def _compose(outer: Read, inner: Read) -> Read:
    if inner is identity:
        return outer
    if outer is identity:
        return inner
    return lambda value: outer(inner(value))


def _encoder(space: gym.Space[Any], categorical: bool) -> Read:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if not categorical:
            rows = one_hot_rows(int(space.n))
            return lambda value: rows[_index(value, start, len(rows))]
        return (lambda value: int(value) - start) if start else identity
    if isinstance(space, spaces.MultiDiscrete):
        offset, counts = np.asarray(space.start), np.asarray(space.nvec)
        if categorical:
            return lambda value: value - offset
        places = np.concatenate(([0], np.cumsum(counts.reshape(-1))[:-1]))
        return lambda value: _many_hot(np.asarray(value) - offset, places, int(counts.sum()))
    if isinstance(space, AnyShape):
        return space.cell
    return identity if isinstance(space, spaces.Box | spaces.MultiBinary) else cell


def cell(value: Any) -> Array:
    """An object as it is written into an array of objects: a copy, for envs may go on to change what they returned."""
    written = np.empty(1, object)
    written[0] = copied(value)
    return written


def _index(value: Any, start: int, count: int) -> int:
    index = int(value) - start
    if not 0 <= index < count:
        raise IndexError(f"discrete value {int(value)} outside of {start}..{start + count - 1}")
    return index


def _many_hot(value: Array, places: Array, width: int) -> Array:
    row = np.zeros(width, np.int64)
    row[value.reshape(-1) + places] = 1
    return row


def action_decoder(space: gym.Space[Any], *, categorical: bool) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    """How actions are read from an array: a function for one env's row, and one for a column of rows.

    Both return copies. What the second returns has one action per row when indexed.
    """
    if isinstance(space, spaces.Discrete):
        return _discrete_decoder(int(space.start), categorical)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_decoder(space, categorical)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return np.array, np.array if space.shape else _arrays
    raise OptionError(
        f"action space {space}: expected Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these; "
        "wrap the env so that its actions are one of them"
    )


def _arrays(rows: Array) -> list[Array]:
    """An array without dimensions for each row; an index would give numbers, which are not in a Box."""
    return [np.array(row) for row in rows]


def _discrete_decoder(start: int, categorical: bool) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    if categorical:
        if not start:
            return int, np.ndarray.tolist
        return (lambda row: int(row) + start), (lambda rows: (rows + start).tolist())
    if not start:
        return (lambda row: int(row.argmax())), (lambda rows: rows.argmax(-1).tolist())
    return (lambda row: int(row.argmax()) + start), (lambda rows: (rows.argmax(-1) + start).tolist())


def _multi_discrete_decoder(
    space: spaces.MultiDiscrete, categorical: bool
) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    offset, dtype, shape = np.asarray(space.start), space.dtype, space.nvec.shape
    if categorical:
        return (lambda rows: (rows + offset).astype(dtype)), (lambda rows: (rows + offset).astype(dtype))
    cuts = np.cumsum(space.nvec.reshape(-1))[:-1]

    def decode(rows: Array) -> Array:
        indices = [part.argmax(-1) for part in np.split(rows, cuts, axis=-1)]
        return (np.stack(indices, -1).reshape((*rows.shape[:-1], *shape)) + offset).astype(dtype)

    return decode, decode


@dataclass(frozen=True)
class ActionLeaf:
    """One array of an action and how it is read, from one row and from a column of rows."""

    key: Key
    space: gym.Space[Any]
    one: Callable[[Array], Any]
    many: Callable[[Array], Any]


def action_leaves(space: gym.Space[Any], key: Key, *, categorical: bool) -> list[ActionLeaf]:
    """The arrays of an action: one, or for Dict and Tuple spaces one per entry, under `key`."""
    if isinstance(space, spaces.Dict):
        entries = [(str(name), sub) for name, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        entries = [(str(i), sub) for i, sub in enumerate(space.spaces)]
    else:
        one, many = action_decoder(space, categorical=categorical)
        return [ActionLeaf(key, space, one, many)]
    return [leaf for name, sub in entries for leaf in action_leaves(sub, (*key, name), categorical=categorical)]


def assemble(space: gym.Space[Any], leaves: Sequence[Any]) -> Any:
    """One env's action from the values of its leaves, in the order of `action_leaves`."""
    values = iter(leaves)

    def build(space: gym.Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: build(sub) for name, sub in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(build(sub) for sub in space.spaces)
        return next(values)

    return build(space)
