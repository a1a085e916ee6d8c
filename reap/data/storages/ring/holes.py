"""`Holes`: columns of writes that were never finished. They are not read, and the next round of the ring overwrites them.

Each is marked in its origin, so that any number of holes can exist and all processes see the same ones.
"""

from __future__ import annotations

import numpy as np

from reap.data.storages.ring.columns import Pieces, columns_of, pieces_of, window_of
from reap.data.storages.ring.control import BROKEN, HOLE, Control


class Holes:
    """The holes of a ring.

    Args:
        control: the shared counters and tables.
        capacity: number of columns.
    """

    def __init__(self, control: Control, capacity: int) -> None:
        self._control, self._capacity = control, capacity
        self._found: tuple[int, list[tuple[int, int]]] = 0, []  # with the count of broken writes at which they were found

    def make(self, pieces: Pieces) -> None:
        """Turn these columns into holes; with the ring's lock held."""
        for first, end in pieces:
            self._control.origins[first:end] = HOLE
        self._control.words[BROKEN] += 1

    def fill(self, pieces: Pieces) -> None:
        """Remove the holes among these columns, which a writer has just claimed; with the ring's lock held."""
        for first, end in pieces:
            origins = self._control.origins[first:end]
            origins[origins == HOLE] = 0

    def held(self) -> list[tuple[int, int]]:
        """First column and number of columns of each hole that has not been overwritten yet."""
        broken, holes = self._found
        if broken != self._control.words[BROKEN]:
            with self._control.lock:
                broken, holes = self._control.words[BROKEN], self._find()
        elif holes:
            oldest, _ = window_of(self._control.words, self._capacity)
            holes = [hole for hole in holes if sum(hole) > oldest]
        self._found = broken, holes
        return holes

    def _find(self) -> list[tuple[int, int]]:
        oldest, claimed = window_of(self._control.words, self._capacity)
        marks = np.zeros(claimed - oldest + 2, np.bool_)
        origins = columns_of(self._control.origins[None], pieces_of(oldest, claimed, self._capacity))[0]
        marks[1:-1] = origins == HOLE
        starts, ends = (oldest + np.flatnonzero(marks[1:] != marks[:-1])).reshape(-1, 2).T
        return list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))
