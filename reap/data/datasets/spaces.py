"""Values of gymnasium spaces from the values of frames, and back; many at once, `[T, *item]`.

frames        ("observation",) or the names of a Dict; ("action", ...); choices as indices or one-hot
data sets     the env's own: nested dicts and tuples; Discrete from its start on
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array

OBSERVATION, ACTION = ("observation",), ("action",)
STORABLE = "Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples"


def leaves(space: Space[Any], key: Key) -> Iterator[tuple[Key, Space[Any]]]:
    """The keys of the parts of a space, as collectors name them; see `root_of`."""
    if isinstance(space, spaces.Dict):
        entries: Any = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        entries = enumerate(space.spaces)
    else:
        yield key, space
        return
    for name, part in entries:
        yield from leaves(part, (*key, str(name)))


def root_of(space: Space[Any], key: Key) -> Key:
    """The prefix of the keys of an observation: empty for a Dict, whose entries have names."""
    return () if isinstance(space, spaces.Dict) else key


def restricted(space: Space[Any], key: Key, known: Callable[[Key], bool]) -> Space[Any] | None:
    """The space without the entries of Dicts that are not known; None if nothing is left."""
    if isinstance(space, spaces.Dict):
        parts = {name: restricted(part, (*key, str(name)), known) for name, part in space.spaces.items()}
        left = {name: part for name, part in parts.items() if part is not None}
        return spaces.Dict(left) if left else None
    if isinstance(space, spaces.Tuple):
        entries = [restricted(part, (*key, str(number)), known) for number, part in enumerate(space.spaces)]
        return space if entries and all(part is not None for part in entries) else None
    return space if known(key) else None


def assembled(space: Space[Any], key: Key, read: Callable[[Key], Array]) -> Any:
    """Values of a space, `[T, ...]`, in nested dicts and tuples.

    Args:
        space: the space.
        key: the prefix of its parts' keys.
        read: the values under a key.

    Raises:
        SpecMismatch: values that are not in their space.
    """
    if isinstance(space, spaces.Dict):
        return {str(name): assembled(part, (*key, str(name)), read) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(assembled(part, (*key, str(number)), read) for number, part in enumerate(space.spaces))
    return _decoded(space, key, read(key))


def require_storable(space: Space[Any], key: Key) -> None:
    """Raise SpecMismatch for a space whose values cannot be written, or that has an entry whose name a file cannot hold.

    Args:
        space: the space.
        key: the prefix of its parts' keys.
    """
    for part, one in leaves(space, key):
        require_name(part)
        if not isinstance(one, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise SpecMismatch(_expected(part, one))


def require_name(key: Key) -> None:
    """Raise SpecMismatch for a key that cannot be the name of values in a file of HDF5, where a slash makes a group."""
    for name in key:
        if name in {"", "."} or "/" in name or "\0" in name:
            raise SpecMismatch(
                f"{plain(key)!r}: expected a name that HDF5 can hold (no slash, not empty, not '.'), found {name!r}; rename it "
                "in a wrapper of the env, or leave it out"
            )


def _expected(key: Key, space: Space[Any]) -> str:
    return f"{plain(key)!r}: expected {STORABLE}, got {space}"


def _decoded(space: Space[Any], key: Key, values: Array) -> Array:
    if isinstance(space, spaces.Discrete):
        return (_places(space, key, values, np.asarray(space.n)) + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return (_places(space, key, values, np.asarray(space.nvec)) + np.asarray(space.start)).astype(space.dtype)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise SpecMismatch(_expected(key, space))
    item = values.shape[1:]
    if item != (math.prod(space.shape),) and _without_ones(item) != _without_ones(space.shape):
        raise SpecMismatch(
            f"{plain(key)!r}: expected values of shape {space.shape}, as in {space}, found {item}; is it another env?"
        )
    cast = values.reshape(len(values), *space.shape).astype(space.dtype, copy=False)
    is_same = cast.dtype == values.dtype or np.array_equal(cast.reshape(values.shape), values, equal_nan=cast.dtype.kind == "f")
    if not is_same or (isinstance(space, spaces.MultiBinary) and not np.isin(cast, (0, 1)).all()):
        raise SpecMismatch(
            f"{plain(key)!r}: expected values of {space}, which is {space.dtype}, found others in {values.dtype}"
        )
    return cast


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _places(space: Space[Any], key: Key, values: Array, counts: Array) -> Array:
    """Choices as indices from 0, `[T, *counts.shape]`, from indices or one-hot.

    The shape says which they are, unless each choice is the only one: then indices are zeros, and one-hot values are ones.
    """
    item = values.shape[1:]
    are_one_hot = item == (int(counts.sum()),)
    are_indices = item == counts.shape or (item == (1,) and not counts.shape)
    flat = values.reshape(len(values), -1)
    places: Any = np.zeros((len(values), counts.size), np.int64)
    if are_one_hot and are_indices:
        wrong = ~((flat == 0).all(-1) | (flat == 1).all(-1))
    elif are_one_hot:
        blocks = np.split(flat, np.cumsum(counts.reshape(-1))[:-1], axis=-1)
        places = np.stack([block.argmax(-1) for block in blocks], -1)
        wrong = np.any([((block != 0).sum(-1) != 1) | (block.max(-1) != 1) for block in blocks], 0)
    elif are_indices:
        places = flat.astype(np.int64)
        wrong = ((places != flat) | (places < 0) | (places >= counts.reshape(-1))).any(-1)
    else:
        raise SpecMismatch(f"{plain(key)!r}: expected a choice of {space}, found values of shape {item}; is it another env?")
    if wrong.any():
        found = values[int(wrong.argmax())].tolist()
        raise SpecMismatch(
            f"{plain(key)!r}: expected a choice of {space}, as index or one-hot, found {found}; is it another env?"
        )
    return places.reshape(len(values), *counts.shape)


def taken_apart(space: Space[Any], key: Key, values: Any, *, categorical: bool) -> Iterator[tuple[Key, Tensor]]:
    """The values of frames by key, from values of a space `[T, ...]`; the inverse of `assembled`.

    Args:
        space: the space.
        key: the prefix of its parts' keys.
        values: nested dicts and tuples of arrays.
        categorical: choices are indices, otherwise one-hot.
    """
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from taken_apart(part, (*key, str(name)), values[name], categorical=categorical)
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from taken_apart(part, (*key, str(number)), values[number], categorical=categorical)
    else:
        yield key, _encoded(space, key, np.asarray(values), categorical=categorical)


def _encoded(space: Space[Any], key: Key, values: Array, *, categorical: bool) -> Tensor:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        places = torch.from_numpy(values.astype(np.int64) - np.asarray(space.start, np.int64))
        if categorical:
            return places
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else np.asarray(space.nvec).reshape(-1).tolist()
        columns = places.reshape(len(places), -1).unbind(-1)
        return torch.cat([torch.nn.functional.one_hot(one, count) for one, count in zip(columns, counts, strict=True)], -1)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return torch.from_numpy(np.array(values))
    raise SpecMismatch(_expected(key, space))


def guessed(values: Mapping[Key, Tensor], key: Key) -> Space[Any]:
    """A space that holds the values of frames `[T, *item]`, where no env says which: Boxes as large as their dtype.

    Args:
        values: by key.
        key: the key of the values, or the prefix of their keys.
    """
    if key in values:
        return _box(values[key])
    parts: dict[Key, Tensor] = {one[len(key) :]: value for one, value in values.items() if one[: len(key)] == key}
    names = dict.fromkeys(one[0] for one in parts)
    return spaces.Dict({name: guessed(parts, (name,)) for name in names})


def _box(values: Tensor) -> Space[Any]:
    array = values[:0].numpy()
    if array.dtype == np.bool_:
        return spaces.MultiBinary(values.shape[1:])
    dtype: Any = array.dtype
    limits = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(*limits, shape=array.shape[1:], dtype=dtype.type)
