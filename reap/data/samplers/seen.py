"""`Seen`: the part of a ring that a prioritized sampler has processed, and draws from its tree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from reap.data.samplers.base import EMPTY, HIDDEN
from reap.data.samplers.sum_tree import Places, SumTree, Values
from reap.data.storages.base import Storage
from reap.errors import CallOrderError


class Seen(NamedTuple):
    """The state of the ring when the sampler last looked at it.

    Attributes:
        oldest: the oldest column in use.
        claimed: the first column that was not claimed.
        writing: first column and number of columns of each write that was not published.
    """

    oldest: int = 0
    claimed: int = 0
    writing: tuple[tuple[int, int], ...] = ()


def set_valid(tree: SumTree, places: Places, values: Values | float, storage: Storage) -> None:
    """Set the values of frames in the tree, with 0 for invalid frames."""
    valid = None if storage.validity is None else storage.validity.of(places)
    tree.set(places, values if valid is None else np.where(valid, values, 0.0))


def drawn_places(tree: SumTree, storage: Storage, size: int, generator: torch.Generator | None) -> Places:
    """Draw this number of places in proportion to their values in the tree.

    Raises:
        CallOrderError: all have the value 0.
    """
    if math.isinf(tree.lowest):
        raise CallOrderError(
            EMPTY
            if not storage.columns_in_use
            else HIDDEN
            if not storage.ring.readable
            else "replay buffer: expected a frame with a priority above 0, found 0 for all; give some another priority, or eps"
        )
    return tree.draw(torch.rand(size, dtype=torch.float64, generator=generator).numpy())


def columns_of_writes(writes: Iterable[tuple[int, int]], oldest: int, end: int) -> Places:
    """The columns of these writes, given as first column and number, from `oldest` to `end`."""
    parts = [np.arange(max(start, oldest), min(start + count, end)) for start, count in writes]
    return np.concatenate([np.empty(0, np.int64), *parts])


def places_of_columns(columns: Places, storage: Storage) -> Places:
    """The places of these columns in all rows."""
    capacity = storage.ring.capacity
    return (np.arange(storage.rows)[:, None] * capacity + columns % capacity).reshape(-1)
