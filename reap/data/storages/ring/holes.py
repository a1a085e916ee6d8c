"""`Holes`: columns whose write was broken off. Nobody reads them, and they are free when the ring comes round to them.

Each is marked where its stream would be, so that there may be any number of them, and all processes see the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reap.data.storages.ring.control import BROKEN, HOLE, Control

if TYPE_CHECKING:
    from reap.data.storages.ring.ring import Pieces, Ring


class Holes:
    """The holes of a ring.

    Args:
        control: the numbers that its processes agree by.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._found: tuple[int, list[tuple[int, int]]] = 0, []  # when so many writes had been broken off

    def make(self, pieces: Pieces) -> None:
        """Have these columns be holes; with the ring's lock held."""
        for first, end in pieces:
            self._control.origins[first:end] = HOLE
        self._control.words[BROKEN] += 1

    def fill(self, pieces: Pieces) -> None:
        """Have these columns be none: they are written anew, and a writer's entry stands for them; with the lock held."""
        for first, end in pieces:
            origins = self._control.origins[first:end]
            origins[origins == HOLE] = 0

    def held(self, ring: Ring) -> list[tuple[int, int]]:
        """First column and number of columns of each hole of a ring over which nothing was written yet."""
        broken, holes = self._found
        if broken != self._control.words[BROKEN]:
            with self._control.lock:
                broken, holes = self._control.words[BROKEN], self._find(ring)
        elif holes:
            oldest = ring.oldest
            holes = [hole for hole in holes if sum(hole) > oldest]
        self._found = broken, holes
        return holes

    def _find(self, ring: Ring) -> list[tuple[int, int]]:
        oldest, claimed = ring.window
        marks = np.zeros(claimed - oldest + 2, np.bool_)
        marks[1:-1] = ring.origins(ring.pieces(oldest, claimed)) == HOLE
        starts, ends = (oldest + np.flatnonzero(marks[1:] != marks[:-1])).reshape(-1, 2).T
        return list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))
