"""Converts batched observations, infos and actions of vector envs to and from columns of arrays.

The functions of `values` handle one row; those here handle all rows at once, by one array operation per key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from reap.envs.checks.choices import switches, zero_based
from reap.envs.checks.looks import choice_look
from reap.envs.gymnasium.facts.infos import checked_choices, info_value
from reap.envs.gymnasium.row_arrays import RowFormat
from reap.envs.gymnasium.values import ActionLeaf, ObservationLeaf, Read, contained, identity, observation_leaves
from reap.errors import SpecMismatch, located
from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.objects import copied
from reap.specs import Spec
from reap.specs.fits import Fit, as_array, as_dtype, describe, flags_of_rows


def batched_format(
    form: RowFormat, name: str, space: gym.Space[Any], infos: Mapping[str, Spec], *, categorical: bool, count: int
) -> RowFormat:
    """The format of all rows at once.

    Args:
        form: the format of one row.
        name: the key of an observation that is not a Dict.
        space: observation space of one row.
        infos: entries of the info to keep, with their specs.
        categorical: discrete values are indices, otherwise one-hot.
        count: number of rows.
    """
    return RowFormat(
        observations=tuple(observation_leaves(space, (name,), categorical=categorical, encoder=_encoder)),
        infos=tuple(_info_leaf(key, spec, count) for key, spec in infos.items()),
        actions=tuple(replace(leaf, many=_action_decoder(leaf)) for leaf in form.actions),
        observation_space=space,
        action_space=form.action_space,
    )


def _encoder(space: gym.Space[Any], categorical: bool, key: Key) -> Read:
    if isinstance(space, spaces.Discrete):
        start, count = int(space.start), int(space.n)
        offset, counts = np.asarray(start), np.asarray(count)
        if categorical:
            return lambda values: choices_of_rows(values, offset, counts, key)
        every = np.arange(count)
        return lambda values: np.equal(choices_of_rows(values, offset, counts, key)[:, None], every)
    if isinstance(space, spaces.MultiDiscrete):
        offset, counts = np.asarray(space.start), np.asarray(space.nvec)
        if categorical:
            return lambda values: choices_of_rows(values, offset, counts, key)
        # Every choice of every part beside each other: which part it belongs to, and its value.
        sizes = counts.reshape(-1)
        part = np.repeat(np.arange(len(sizes)), sizes)
        value = np.concatenate([np.arange(n) for n in sizes])
        return lambda values: np.equal(choices_of_rows(values, offset, counts, key).reshape(len(values), -1)[:, part], value)
    if isinstance(space, spaces.MultiBinary):
        return lambda values: switches(values, (len(values), *space.shape), key)
    return identity if isinstance(space, spaces.Box) else partial(_contained_cells, space=space, key=key)


def choices_of_rows(values: Any, offset: Array, counts: Array, key: Key) -> Array:
    """Choices of all rows counted from 0, int64 `[E, *counts.shape]`; an error names the row.

    Raises:
        SpecMismatch: see `choices`.
    """
    array = as_array(values)
    if array is None or array.ndim != counts.ndim + 1:
        return zero_based(values, offset, counts, key)
    try:
        return zero_based(array, np.broadcast_to(offset, array.shape), np.broadcast_to(counts, array.shape), key)
    except (SpecMismatch, ValueError):
        for b, value in enumerate(array):
            with located(f"row {b}"):
                zero_based(value, offset, counts, key)
        raise


def _contained_cells(values: Any, space: gym.Space[Any], key: Key) -> Array:
    for b, value in enumerate(values):
        with located(f"row {b}"):
            contained(value, space, key)
    return cells(values)


def cells(values: Any) -> Array:
    """Objects, one per row, in the form for a column of objects."""
    written = np.empty((len(values), 1), object)
    for b, value in enumerate(values):
        written[b, 0] = copied(value)
    return written


def _info_leaf(name: str, spec: Spec, count: int) -> ObservationLeaf:
    if spec.dtype is None:
        return ObservationLeaf((name,), gym.spaces.Space(), lambda info: cells(_info_objects(info, name, count)), True)
    zero = np.asarray(spec.zero().numpy())
    nothing = np.broadcast_to(zero, (count, *zero.shape))

    def read(info: Any) -> Array:
        value, mask = _entry(info, name, count)
        if value is None:
            return nothing
        if mask is None or mask.all():
            return checked(_of_every_row(value, name, count))
        values = np.array(nothing)
        for b in np.flatnonzero(mask):
            values[b] = checked(fit.take(value[b]))
        return values

    def checked(values: Array) -> Array:
        """The values of one row or of all, choices among which are ones."""
        if look is None or values.shape[values.ndim - zero.ndim :] != zero.shape or as_dtype(values, zero.dtype) is None:
            return values  # what does not fit is refused where it is written
        return checked_choices(values, look, name)

    fit, look = Fit((name,), zero.shape, zero.dtype), choice_look(spec, 0)
    return ObservationLeaf((name,), gym.spaces.Space(), read)


def _entry(info: Any, name: str, count: int) -> tuple[Any, Array | None]:
    """An entry of an info, and in which rows it is present, bool `[E]`; None for all.

    Raises:
        SpecMismatch: the info is no dict, or the entry has not one value for each row.
    """
    value, mask = info_value(info, name), info_value(info, "_" + name)
    if value is None or mask is None:
        return value, None
    present = flags_of_rows(mask, count, f"info {'_' + name!r}")
    if not isinstance(value, dict) and not _has_rows(value, count):
        raise _no_rows(value, name, count)
    return value, present


def _has_rows(value: Any, count: int) -> bool:
    """Whether there is one value for each row; of EnvPool as many as it was asked for."""
    is_several = isinstance(value, list | tuple) or (isinstance(value, np.ndarray | torch.Tensor) and value.ndim > 0)
    return is_several and len(value) == count


def _of_every_row(value: Any, name: str, count: int) -> Array:
    """The values of all rows as one array, where they make one."""
    array = as_array(value)
    if array is None or array.ndim == 0:
        raise _no_rows(value, name, count)
    if array.dtype != object:
        return array
    try:
        return np.stack(array.tolist())
    except (TypeError, ValueError):  # of different shapes, or no numbers
        return array


def _no_rows(value: Any, name: str, count: int) -> SpecMismatch:
    return SpecMismatch(f"info: {name!r}: expected one value for each of {count} rows, found {describe(value)}")


def _info_objects(info: Any, name: str, count: int) -> list[Any]:
    value, mask = _entry(info, name, count)
    if value is None:
        return [None] * count
    if not isinstance(value, dict) and not _has_rows(value, count):
        raise _no_rows(value, name, count)
    return [_of_row(value, b) if mask is None or mask[b] else None for b in range(count)]


def _of_row(value: Any, b: int) -> Any:
    """One row's part of an info, which gymnasium merges from the rows' dicts, with masks next to the values."""
    if not isinstance(value, dict):
        return value[b]
    masks = {"_" + str(name) for name in value}
    present = {name: value.get(f"_{name}") for name in value if name not in masks}
    return {name: _of_row(value[name], b) for name, mask in present.items() if mask is None or mask[b]}


def _action_decoder(leaf: ActionLeaf) -> Callable[[Array], Any]:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return _discrete_decoder(space, leaf.many)
    # One row of a Box without dimensions is a number; `ActionLeaf.many` makes a list of such rows.
    return leaf.many if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) else np.array


def _discrete_decoder(space: spaces.Discrete[Any], many: Callable[[Array], Any]) -> Callable[[Array], Any]:
    dtype = space.dtype
    return lambda rows: np.array(many(rows), dtype)
