"""`Frames`: some columns of a run, `[rows, columns]`, whose next observations may be stored once.

    observation        o0  o1  o2 | o0' o1'      root: every column
    next observation   o1  o2  o3 | o1' o2'      stored at the ends only: o3, o2'

A trajectory ends where the next column has another id, and at the last column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from reap.errors import SpecMismatch
from reap.keys import Key, NestedKey, nested, plain
from reap.tensordicts import make_tensordict

TRAJECTORY: Key = ("collector", "traj_ids")
NEXT = "next"


@dataclass(frozen=True)
class Frames:
    """Values by key.

    Attributes:
        values: `[rows, columns, *item]`.
        ids: the trajectory of each frame, `[rows, columns]`.
        ends: values under `"next"` that are stored at the ends of trajectories only, `[ends, *item]`, in the order of the rows.
        objects: keys of Python objects (text, for example), which are not among the values.
    """

    values: Mapping[Key, Tensor]
    ids: NDArray[np.int64]
    ends: Mapping[Key, Tensor] = field(default_factory=dict[Key, Tensor])
    objects: frozenset[Key] = frozenset()

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows, columns = self.ids.shape
        return rows, columns

    @cached_property
    def are_ends(self) -> NDArray[np.bool_]:
        """The places at which `ends` has values."""
        return ends_of(self.ids)

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        """The number of the end at each place where there is one."""
        return np.cumsum(self.are_ends.reshape(-1)).reshape(self.ids.shape) - 1

    def following(self, key: Key, row: int, column: int) -> Tensor:
        """The value of a frame under `("next", *key)`, `[*item]`."""
        later = (NEXT, *key)
        if later in self.values:
            return self.values[later][row, column]
        if self.are_ends[row, column]:
            return self.ends[later][int(self._numbers[row, column])]
        return self.values[key][row, column + 1]

    def tensordict(self) -> TensorDictBase:
        """All values, `[rows, columns]`, including those rebuilt from values stored at ends only."""
        values = dict(self.values)
        for later, stored in self.ends.items():
            root = self.values[later[1:]]
            whole = torch.empty_like(root)
            whole[:, :-1] = root[:, 1:]
            whole[torch.from_numpy(self.are_ends)] = stored
            values[later] = whole
        return make_tensordict(nested(values), torch.Size(self.shape))


def ends_of(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where trajectories `[rows, columns]` end, or are cut by the last column.

    Example:
        >>> ends_of(np.array([[0, 0, 1, 1]]))
        array([[False,  True, False,  True]])
    """
    ends = np.ones(ids.shape, np.bool_)
    np.not_equal(ids[:, :-1], ids[:, 1:], out=ends[:, :-1])
    return ends


def frames_of(data: TensorDictBase, name: str) -> Frames:
    """The frames of a TensorDict `[rows, columns]`.

    Args:
        data: the frames.
        name: a name for them, for the error.

    Raises:
        SpecMismatch: they have no ids of trajectories and no done flags.
    """
    keys = [(key,) if isinstance(key, str) else tuple(key) for key in data.keys(True, True)]
    values = {key: data.get(plain(key)) for key in keys}
    if TRAJECTORY in values:
        ids = values[TRAJECTORY].reshape(data.shape).numpy()
    elif (NEXT, "done") in values:
        done = values[NEXT, "done"].reshape(data.shape).numpy()
        before = np.concatenate([np.zeros_like(done[:, :1]), done[:, :-1]], 1).reshape(-1)
        before[:: data.shape[1]] = True
        ids = np.cumsum(before).reshape(done.shape) - 1
    else:
        raise SpecMismatch(f"{name}: expected {TRAJECTORY} or ('next', 'done'), by which episodes are told; found neither")
    return Frames(values, np.asarray(ids, np.int64), objects=_objects(data))


def _objects(data: TensorDictBase) -> frozenset[Key]:
    entries = data.items(include_nested=True, leaves_only=True, is_leaf=lambda kind: not issubclass(kind, TensorDict))
    names: list[NestedKey] = [key for key, value in entries if is_non_tensor(value)]
    return frozenset((key,) if isinstance(key, str) else key for key in names)
