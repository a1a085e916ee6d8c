"""`EligibleTrajectories`: the trajectories that are long enough, in an array, so that a random choice takes constant time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reap.data.episodes.trajectories import Numbers, TrajectoryTable
from reap.data.samplers.sum_tree import SumTree

NOT_HERE = -1


class EligibleTrajectories:
    """Trajectories of a minimum length in a dense array; a removed one is replaced by the last one.

    Args:
        table: the trajectories.
        least: the minimum number of frames.
        starts: returns, from lengths, the number of slices of each; None chooses all uniformly, whatever their lengths.

    Attributes:
        count: their number.
    """

    def __init__(self, table: TrajectoryTable, least: int, starts: Callable[[Numbers], Numbers] | None = None) -> None:
        self._table, self._least, self._starts = table, least, starts
        self.count = 0
        self._numbers, self._at = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._weights = SumTree(1)
        self.grew(table.in_order(table.alive()).tolist())

    @property
    def numbers(self) -> Numbers:
        """Their numbers, in order; read-only."""
        return self._numbers[: self.count]

    def choose(self, at_random: Numbers) -> Numbers:
        """Trajectories, one for each random number from 0 to 2^62."""
        if self._starts is None:
            return self._numbers[at_random % self.count]
        return self._numbers[self._weights.draw(at_random / (1 << 62))]

    def holds(self, number: int) -> bool:
        """Whether this trajectory is among them."""
        return self._at.item(number) != NOT_HERE

    def restore(self, numbers: list[int]) -> None:
        """Set the trajectories, in this order."""
        self._at[:] = NOT_HERE
        self.count = len(numbers)
        self._numbers[: self.count] = numbers
        self._at[self.numbers] = np.arange(self.count)
        self._weigh(self.numbers)

    def grew(self, numbers: Sequence[int]) -> None:
        """Note that these are new or longer, without duplicates."""
        self._make_room(len(numbers))
        too_short = set(self._table.shorter_than(self._least, numbers))
        for number in numbers:
            if number not in too_short and not self.holds(number):
                self._numbers[self.count], self._at[number] = number, self.count
                self.count += 1
        self._weigh(numbers)

    def shrank(self, left: Sequence[int], gone: Sequence[int]) -> None:
        """Note that some are shorter, and others gone."""
        for number in (*self._table.shorter_than(self._least, left), *gone):
            self._remove(number)
        self._weigh(left)

    def _remove(self, number: int) -> None:
        at = self._at.item(number)
        if at == NOT_HERE:
            return
        self.count -= 1
        last = self._numbers.item(self.count)
        self._numbers[at], self._at[last] = last, at
        self._at[number] = NOT_HERE
        if self._starts is not None:
            self._weights.set(np.array([self.count]), 0.0)
            if at < self.count:
                self._weigh(np.array([last]))

    def _weigh(self, numbers: Numbers | Sequence[int]) -> None:
        if self._starts is None:
            return
        known = np.asarray(numbers, np.int64)
        here = known[self._at[known] != NOT_HERE]
        if len(here):
            self._weights.set(self._at[here], self._starts(self._table.lengths(here)).astype(np.float64))

    def _make_room(self, count: int) -> None:
        size = len(self._table.row)
        if len(self._at) < size:
            self._at = np.concatenate((self._at, np.full(size - len(self._at), NOT_HERE)))
        if self.count + count > len(self._numbers):
            self._numbers = np.concatenate((self._numbers, np.zeros(self.count + count, np.int64)))
            if self._starts is not None:
                self._weights = SumTree(len(self._numbers))
                self._weigh(self.numbers)
