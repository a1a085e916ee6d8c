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


def _decoded(space: Space[Any], key: Key, values: Array) -> Array:
    item = values.shape[1:]
    if isinstance(space, spaces.Discrete):
        if item not in ((int(space.n),), (1,), ()):
            raise SpecMismatch(
                f"{plain(key)!r}: expected a choice of {space}, found values of shape {item}; is it another env?"
            )
        places = values.argmax(-1) if item == (int(space.n),) else values.reshape(len(values))
        return places.astype(space.dtype) + space.start
    if isinstance(space, spaces.MultiDiscrete):
        counts = np.asarray(space.nvec)
        if item != counts.shape:
            blocks = np.split(values, np.cumsum(counts.reshape(-1))[:-1], axis=-1)
            values = np.stack([block.argmax(-1) for block in blocks], -1).reshape(len(values), *counts.shape)
        return (values + np.asarray(space.start)).astype(space.dtype)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise SpecMismatch(
            f"{plain(key)!r}: expected Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples, got {space}"
        )
    if values.size != len(values) * math.prod(space.shape):
        raise SpecMismatch(
            f"{plain(key)!r}: expected values of shape {space.shape}, as in {space}, found {item}; is it another env?"
        )
    cast = values.reshape(len(values), *space.shape).astype(space.dtype, copy=False)
    if cast.dtype != values.dtype and not np.array_equal(cast.reshape(values.shape), values, equal_nan=cast.dtype.kind == "f"):
        raise SpecMismatch(
            f"{plain(key)!r}: expected values of {space}, which is {space.dtype}, found others in {values.dtype}"
        )
    return cast


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
    raise SpecMismatch(f"{plain(key)!r}: expected Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples, got {space}")


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
