"""Converts values of gymnasium spaces to and from rows of arrays.

`observation_leaves` splits an observation: for each key it gives a function from the observation to the value that is written
into the row. `action_decoder` converts a column of actions to actions of the envs, always as copies, because envs may keep
their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.checks.choices import index_readers, no_choice, one_hot_readers, switches, zero_based
from reap.envs.gymnasium.any_shape import AnyShape
from reap.envs.gymnasium.one_hot import one_hot_rows
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array
from reap.recording.objects import copied
from reap.specs.fits import describe, one_choice
from reap.specs.onehot import ONE_HOT, is_not_one_hot

Read = Callable[[Any], Any]
Decode = Callable[[Sequence[Array]], Sequence[Any]]


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation.

    Attributes:
        key: its key in the batch.
        space: its space.
        read: extracts the row's value from the whole observation.
        is_checked: the result of `read` is known to fit the row; otherwise it is checked before it is written.
    """

    key: Key
    space: gym.Space[Any]
    read: Read
    is_checked: bool = False


def identity(value: Any) -> Any:
    """The value itself."""
    return value


def observation_leaves(
    space: gym.Space[Any], key: Key, *, categorical: bool, encoder: Callable[[gym.Space[Any], bool, Key], Read] | None = None
) -> list[ObservationLeaf]:
    """The arrays of an observation: one, or for Dict and Tuple spaces one per entry.

    Args:
        space: the observation space.
        key: key of an observation that is not a Dict; a Dict's entries have their own names.
        categorical: discrete values are written as indices, otherwise one-hot.
        encoder: makes, from a space without parts, `categorical` and the key, the function that encodes its values; the
            result fits the row or is the value itself. By default, that for one row.
    """
    return space_leaves(space, () if isinstance(space, spaces.Dict) else key, categorical=categorical, encoder=encoder)


def space_leaves(
    space: gym.Space[Any], key: Key, *, categorical: bool, encoder: Callable[[gym.Space[Any], bool, Key], Read] | None = None
) -> list[ObservationLeaf]:
    """The same with the entries of a Dict under `key` too."""
    return _leaves(space, key, identity, lambda space, key: (encoder or _encoder)(space, categorical, key))


def _leaves(
    space: gym.Space[Any], key: Key, read: Read, encoder: Callable[[gym.Space[Any], Key], Read]
) -> list[ObservationLeaf]:
    if isinstance(space, spaces.Dict):
        entries = [(str(name), name, sub) for name, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        entries = [(str(i), i, sub) for i, sub in enumerate(space.spaces)]
    else:
        encode = encoder(space, key)
        return [ObservationLeaf(key, space, _compose(encode, read), encode is not identity)]
    found: list[ObservationLeaf] = []
    for name, index, sub in entries:
        found.extend(_leaves(sub, (*key, name), _compose(itemgetter(index), read), encoder))
    return found


def containers(space: gym.Space[Any], read: Read = identity) -> list[tuple[Read, int]]:
    """The dicts and tuples of an observation, from the outside in: how each is read, and the number of its entries."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return []
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    inner = [containers(sub, _compose(itemgetter(index), read)) for index, sub in entries]
    return [(read, len(space.spaces)), *(found for one in inner for found in one)]


def _compose(outer: Read, inner: Read) -> Read:
    if inner is identity:
        return outer
    if outer is identity:
        return inner
    return lambda value: outer(inner(value))


def _encoder(space: gym.Space[Any], categorical: bool, key: Key) -> Read:
    if isinstance(space, spaces.Discrete):
        return _discrete_encoder(int(space.start), int(space.n), key, categorical)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_encoder(np.asarray(space.start), np.asarray(space.nvec), key, categorical)
    if isinstance(space, spaces.MultiBinary):
        return lambda value: switches(value, space.shape, key)
    if isinstance(space, spaces.Box):
        return identity
    write = space.cell if isinstance(space, AnyShape) else cell
    return lambda value: write(contained(value, space, key))


def _discrete_encoder(start: int, count: int, key: Key, categorical: bool) -> Read:
    if categorical:
        return lambda value: one_choice(value, start, count, key)
    rows = one_hot_rows(count)
    return lambda value: rows[one_choice(value, start, count, key)]


def _multi_discrete_encoder(offset: Array, counts: Array, key: Key, categorical: bool) -> Read:
    if categorical:
        return lambda value: zero_based(value, offset, counts, key)
    places = np.concatenate(([0], np.cumsum(counts.reshape(-1))[:-1]))
    width = int(counts.sum())
    return lambda value: _many_hot(zero_based(value, offset, counts, key), places, width)


def contained(value: Any, space: gym.Space[Any], key: Key) -> Any:
    """The value, if it is in the space.

    Raises:
        SpecMismatch: it is not in the space.
    """
    if not contains(space, value):
        raise SpecMismatch(f"{plain(key)!r}: expected {space}, found {describe(value)}")
    return value


def contains(space: gym.Space[Any], value: Any) -> bool:
    """Whether a value is in a space.

    Raises:
        OptionError: the space does not define which values it contains.
    """
    try:
        return bool(space.contains(value))
    except NotImplementedError as error:
        raise OptionError(
            f"observation space {space} of {type(space)}: expected a space that says which values are in it; define its "
            "contains(value), or wrap the env with one of gymnasium's spaces"
        ) from error


def is_choice(value: Any, space: gym.Space[Any]) -> bool:
    """Whether a value is read as a choice of a space of choices; `contains` refuses other types of the same number."""
    try:
        _encoder(space, True, ())(value)
    except SpecMismatch:
        return False
    return True


def cell(value: Any) -> Array:
    """A copy for an array of objects, because envs may later change the values that they returned."""
    written = np.empty(1, object)
    written[0] = copied(value)
    return written


def _many_hot(value: Array, places: Array, width: int) -> Array:
    row = np.zeros(width, np.int64)
    row[value.reshape(-1) + places] = 1
    return row


def action_decoder(
    space: gym.Space[Any], key: Key, *, categorical: bool
) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    """Readers of actions from an array: a function for one env's row, and one for a column of rows.

    Both return copies, and raise SpecMismatch for invalid choices. The result of the second has one action per row when
    indexed.
    """
    if isinstance(space, spaces.Discrete):
        return _discrete_decoder(int(space.start), int(space.n), key, categorical)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_decoder(space, key, categorical)
    if isinstance(space, spaces.MultiBinary):
        decode = _binary_decoder(key, space.shape)
        return decode, decode
    if isinstance(space, spaces.Box):
        return np.array, np.array if space.shape else _arrays
    raise OptionError(
        f"action space {space}: expected Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these; "
        "wrap the env so that its actions are one of them"
    )


def _arrays(rows: Array) -> list[Array]:
    """A zero-dimensional array for each row; indexing would give scalars, which are not in a Box."""
    return [np.array(row) for row in rows]


def _discrete_decoder(
    start: int, count: int, key: Key, categorical: bool
) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    one, many = (index_readers if categorical else one_hot_readers)(count, key)
    if not start:
        return one, many
    return (lambda row: one(row) + start), (lambda rows: [place + start for place in many(rows)])


def _multi_discrete_decoder(
    space: spaces.MultiDiscrete, key: Key, categorical: bool
) -> tuple[Callable[[Array], Any], Callable[[Array], Any]]:
    offset, dtype, counts = np.asarray(space.start), space.dtype, np.asarray(space.nvec)
    if categorical:

        def shift(rows: Array) -> Array:
            wrong = (rows < 0) | (rows >= counts)
            if wrong.any():
                raise no_choice(rows, key, f"integers from 0 to {(counts - 1).tolist()}", _of_rows(wrong, counts.ndim))
            return (rows + offset).astype(dtype)

        return shift, shift
    cuts = np.cumsum(counts.reshape(-1))[:-1]

    def decode(rows: Array) -> Array:
        parts = np.split(rows, cuts, axis=-1)
        wrong = sum(map(is_not_one_hot, parts))
        if np.any(wrong):
            blocks = f"{ONE_HOT} in each of the blocks {counts.reshape(-1).tolist()}"
            raise no_choice(rows, key, blocks, _of_rows(wrong, 0))
        places = np.stack([part.argmax(-1) for part in parts], -1)
        return (places.reshape((*rows.shape[:-1], *counts.shape)) + offset).astype(dtype)

    return decode, decode


def _of_rows(wrong: Any, inner: int) -> Any:
    """For each row of `[E, *inner]`, whether any value is wrong; None for the values of one row."""
    array = np.asarray(wrong)
    return array.any(tuple(range(1, array.ndim))) if array.ndim > inner else None


def _binary_decoder(key: Key, shape: tuple[int, ...]) -> Callable[[Array], Any]:
    def decode(rows: Array) -> Array:
        wrong = (rows != 0) & (rows != 1)
        if wrong.any():
            raise no_choice(rows, key, "zeros and ones", _of_rows(wrong, len(shape)))
        return np.array(rows)

    return decode


@dataclass(frozen=True)
class ActionLeaf:
    """One array of an action, with its readers for one row and for a column of rows."""

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
        one, many = action_decoder(space, key, categorical=categorical)
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
