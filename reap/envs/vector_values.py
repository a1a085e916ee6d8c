"""Values of vector envs: batched observations, infos and actions, to and from columns of arrays.

The functions of `values` take apart one row; those here all rows at once, for each key by one array operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reap.envs.gym_rows import RowFormat
from reap.envs.values import ActionLeaf, ObservationLeaf, Read, identity, observation_leaves
from reap.layout import Array
from reap.objects import copied
from reap.specs import Spec


def batched_format(
    form: RowFormat, name: str, space: gym.Space[Any], infos: Mapping[str, Spec], *, categorical: bool, count: int
) -> RowFormat:
    """The format of all rows at once.

    Args:
        form: the format of one row.
        name: key of an observation that is not a Dict.
        space: observation space of one row.
        infos: values of the info that are kept, with their specs.
        categorical: discrete values are indices, otherwise one-hot.
        count: number of rows.
    """
    return RowFormat(
        observations=tuple(observation_leaves(space, (name,), categorical=categorical, encoder=_encoder)),
        infos=tuple(_info_leaf(key, spec, count) for key, spec in infos.items()),
        actions=tuple(replace(leaf, many=_action_decoder(leaf, categorical)) for leaf in form.actions),
        action_space=form.action_space,
    )


def _encoder(space: gym.Space[Any], categorical: bool) -> Read:
    if isinstance(space, spaces.Discrete):
        start, count = int(space.start), int(space.n)
        if categorical:
            return (lambda values: values - start) if start else identity
        choices = np.arange(start, start + count)
        return lambda values: np.equal(np.asarray(values)[..., None], choices)
    if isinstance(space, spaces.MultiDiscrete):
        offset, counts = np.asarray(space.start).reshape(-1), np.asarray(space.nvec).reshape(-1)
        if categorical:
            return lambda values: values - np.asarray(space.start)
        # Every choice of every part beside each other: which part it belongs to, and its value.
        part = np.repeat(np.arange(len(counts)), counts)
        value = np.concatenate([np.arange(n) + first for n, first in zip(counts, offset, strict=True)])
        return lambda values: np.equal(np.asarray(values).reshape(len(values), -1)[:, part], value)
    return identity if isinstance(space, spaces.Box | spaces.MultiBinary) else cells


def cells(values: Any) -> Array:
    """Objects, one for each row, as they are written into a column of objects."""
    written = np.empty((len(values), 1), object)
    for b, value in enumerate(values):
        written[b, 0] = copied(value)
    return written


def _info_leaf(name: str, spec: Spec, count: int) -> ObservationLeaf:
    if spec.dtype is None:
        return ObservationLeaf((name,), gym.spaces.Space(), lambda info: cells(_info_objects(info, name, count)))
    zero = np.asarray(spec.zero().numpy())
    nothing, mask_name = np.broadcast_to(zero, (count, *zero.shape)), "_" + name

    def read(info: Any) -> Array:
        value, mask = info.get(name), info.get(mask_name)
        if value is None:
            return nothing
        if mask is None or mask.all():
            return np.stack(value) if value.dtype == object else value
        values = np.array(nothing)
        for b in np.flatnonzero(mask):
            values[b] = value[b]
        return values

    return ObservationLeaf((name,), gym.spaces.Space(), read)


def _info_objects(info: Any, name: str, count: int) -> list[Any]:
    value, mask = info.get(name), info.get("_" + name)
    if value is None:
        return [None] * count
    return [_of_row(value, b) if mask is None or mask[b] else None for b in range(count)]


def _of_row(value: Any, b: int) -> Any:
    """One row's part of an info; gymnasium makes one dict of the rows' dicts, with masks beside the values."""
    if not isinstance(value, dict):
        return value[b]
    masks = {"_" + str(name) for name in value}
    present = {name: value.get(f"_{name}") for name in value if name not in masks}
    return {name: _of_row(value[name], b) for name, mask in present.items() if mask is None or mask[b]}


def _action_decoder(leaf: ActionLeaf, categorical: bool) -> Callable[[Array], Any]:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return _discrete_decoder(space, categorical)
    # One row of a Box without dimensions is a number; `ActionLeaf.many` makes a list of such rows.
    return leaf.many if isinstance(space, spaces.MultiDiscrete) else np.array


def _discrete_decoder(space: spaces.Discrete[Any], categorical: bool) -> Callable[[Array], Any]:
    start, dtype = int(space.start), space.dtype
    if categorical:
        return lambda rows: np.add(rows, start, dtype=dtype)
    if not start and dtype == np.intp:
        return lambda rows: rows.argmax(-1)
    return lambda rows: np.add(rows.argmax(-1), start, dtype=dtype)
