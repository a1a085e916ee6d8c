"""`TrajectoryTable`: the places of the frames of each trajectory in a ring.

    frame q of a trajectory       first <= q < end, counted from where it was first seen
    is in column                  shift + q, counted without end

A trajectory that is interrupted by other writes consists of several pieces. Each has its own shift, and the trajectory's chain
holds the first frame of each piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

Chain = tuple[list[int], list[int]]
"""The first frame of each piece of a trajectory, and its shift."""

FIRST_SIZE = 1024

NOT_THERE = -1
"""Marks a frame that is not part of a trajectory."""


class TrajectoryTable:
    """Trajectories by number; numbers of removed trajectories are reused.

    Args:
        capacity: number of columns of the ring.

    Attributes:
        row: each trajectory's row.
        shift: the shift of its first piece.
        first: its first frame that still exists.
        end: the frame after its last one.
        chains: those of several pieces.
        is_chained: whether it is one of these.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._hold(np.zeros((4, FIRST_SIZE), np.int64), np.zeros(FIRST_SIZE, np.bool_))
        self.chains: dict[int, Chain] = {}
        self._free = list(range(FIRST_SIZE))[::-1]
        self._queue: deque[tuple[int, int]] = deque()
        self._at_tail: list[int] = []

    def lengths(self, numbers: Numbers) -> Numbers:
        """The lengths of these trajectories."""
        return self.end[numbers] - self.first[numbers]

    def shorter_than(self, least: int, numbers: Sequence[int]) -> list[int]:
        """Those of these trajectories with fewer frames than this."""
        return [number for number in numbers if self.end.item(number) - self.first.item(number) < least]

    def first_columns(self, numbers: Numbers) -> Numbers:
        """The columns in which these trajectories start."""
        return self.shift[numbers] + self.first[numbers]

    def in_order(self, numbers: Numbers) -> Numbers:
        """These trajectories without duplicates, sorted by their starts."""
        if len(numbers) < 2:
            return numbers
        numbers = np.unique(numbers)
        return numbers[np.lexsort((self.row[numbers], self.first_columns(numbers)))]

    def alive(self) -> Numbers:
        """All trajectories that have frames."""
        return np.flatnonzero(self.end > self.first)

    # ------------------------------------------------------------------ changes

    def add(self, row: int, start: int, length: int) -> int:
        """Add a new trajectory of one piece."""
        if not self._free:
            self._grow()
        number = self._free.pop()
        self.row[number], self.shift[number], self.first[number], self.end[number] = row, start, 0, length
        return number

    def join(self, number: int, start: int, length: int) -> None:
        """Add another piece, which starts in a later column than all others."""
        end = int(self.end[number])
        if number not in self.chains:
            self.chains[number] = [int(self.first[number])], [int(self.shift[number])]
            self.is_chained[number] = True
        frames, shifts = self.chains[number]
        frames.append(end)
        shifts.append(start - end)
        self.end[number] += length

    def extend(self, numbers: Numbers, lengths: Numbers) -> None:
        """Extend last pieces by these numbers of frames."""
        self.end[numbers] += lengths

    def note_pieces(self, starts: list[int], numbers: list[int]) -> None:
        """Remember where new pieces start, for trimming; none starts before those noted earlier."""
        self._queue.extend(sorted(zip(starts, numbers, strict=True)))

    def trim(self, oldest: int) -> tuple[list[int], list[int]]:
        """Drop frames in columns before `oldest`.

        Returns:
            Trajectories that became shorter, and those that are gone, whose numbers may be reused.
        """
        passed = set(self._at_tail)
        while self._queue and self._queue[0][0] < oldest:
            passed.add(self._queue.popleft()[1])
        left: list[int] = []
        gone: list[int] = []
        for number in sorted(passed):
            (left if self._shorten(number, oldest) else gone).append(number)
        self._free += gone
        self._at_tail = [number for number in left if self.shift.item(number) + self.first.item(number) <= oldest]
        return left, gone

    def _shorten(self, number: int, oldest: int) -> bool:
        """Drop a trajectory's frames in columns before `oldest`; return whether any are left."""
        if number in self.chains:
            self._drop_pieces(number, oldest)
        first = self.first[number] = max(self.first.item(number), oldest - self.shift.item(number))
        if first < self.end.item(number):
            return True
        self.first[number] = self.end[number] = 0
        return False

    def _drop_pieces(self, number: int, oldest: int) -> None:
        frames, shifts = self.chains[number]
        pieces = 0
        while pieces + 1 < len(frames) and shifts[pieces] + frames[pieces + 1] <= oldest:
            pieces += 1
        del frames[:pieces], shifts[:pieces]
        self.shift[number] = shifts[0]
        self.first[number] = max(int(self.first[number]), frames[0])
        if len(frames) == 1:
            del self.chains[number]
            self.is_chained[number] = False

    def _grow(self) -> None:
        size = len(self.row)
        numbers, flags = self._numbers, self.is_chained
        self._hold(np.hstack((numbers, np.zeros_like(numbers))), np.hstack((flags, np.zeros_like(flags))))
        self._free = list(range(size, 2 * size))[::-1]

    def _hold(self, numbers: Numbers, is_chained: NDArray[np.bool_]) -> None:
        self._numbers, self.is_chained = numbers, is_chained
        self.row, self.shift, self.first, self.end = numbers

    def pieces(self, number: int) -> tuple[int, ...]:
        """The parts of a trajectory: its row, then the first column and the number of frames of each piece."""
        first, end = self.first.item(number), self.end.item(number)
        frames, shifts = self.chains.get(number, ([first], [self.shift.item(number)]))
        bounds = [*(max(frame, first) for frame in frames), end]
        parts = ((begin + shift, stop - begin) for begin, stop, shift in zip(bounds, bounds[1:], shifts, strict=False))
        return self.row.item(number), *(value for part in parts for value in part)

    def adopt(self, other: TrajectoryTable, numbers: Mapping[int, int]) -> None:
        """Load another table's trajectories under new numbers.

        Args:
            other: the table.
            numbers: the new number of each non-empty trajectory.
        """
        theirs, own = (np.array(list(some), np.int64) for some in (numbers, numbers.values()))
        size = len(self.row)
        while size <= max(numbers.values(), default=0):
            size *= 2
        self._hold(np.zeros((4, size), np.int64), np.zeros(size, np.bool_))
        self._numbers[:, own], self.is_chained[own] = other._numbers[:, theirs], other.is_chained[theirs]
        self.chains = {numbers[number]: chain for number, chain in other.chains.items()}
        self._free = sorted(set(range(size)).difference(numbers.values()), reverse=True)
        self._queue = deque((start, numbers[number]) for start, number in other._queue)
        self._at_tail = [numbers[number] for number in other._at_tail]

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The table as tensors, numbers, lists and dicts."""
        return {
            "numbers": torch.from_numpy(self._numbers.copy()),
            "chains": {number: [list(frames), list(shifts)] for number, (frames, shifts) in self.chains.items()},
            "free": list(self._free),
            "queue": list(self._queue),
            "at_tail": list(self._at_tail),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`."""
        numbers: Numbers = state["numbers"].numpy().copy()
        self._hold(numbers, np.isin(np.arange(numbers.shape[1]), list(state["chains"])))
        self.chains = {number: (list(frames), list(shifts)) for number, (frames, shifts) in state["chains"].items()}
        self._free, self._at_tail = list(state["free"]), list(state["at_tail"])
        self._queue = deque((start, number) for start, number in state["queue"])

    # ------------------------------------------------------------------ places

    def places(self, numbers: Numbers, starts: Numbers, length: int) -> Numbers:
        """The places of slices of one length, `[n, length]`.

        Args:
            numbers: the trajectory of each.
            starts: the first frame of each.
            length: frames of each.
        """
        columns = (self.shift[numbers] + starts)[:, None] + np.arange(length)
        if self.chains:
            for k in np.flatnonzero(self.is_chained[numbers]).tolist():
                columns[k] += self._further(int(numbers[k]), int(starts[k]), length)
        columns %= self.capacity
        columns += (self.row[numbers] * self.capacity)[:, None]
        return columns

    def whole(self, number: int) -> Numbers:
        """The places of all frames of a trajectory."""
        return self.places(np.array([number]), self.first[[number]], int(self.end[number] - self.first[number]))[0]

    def last_columns(self, numbers: Numbers) -> Numbers:
        """The columns in which these trajectories end."""
        shifts = [
            self.chains[number][1][-1] if number in self.chains else self.shift.item(number) for number in numbers.tolist()
        ]
        return np.array(shifts, np.int64) + self.end[numbers] - 1

    def holding(self, rows: Numbers, columns: Numbers) -> Numbers:
        """The trajectories of the frames in these rows and columns, in this order; frames of none are left out."""
        parts = ((number, *self.pieces(number)) for number in self.alive().tolist())
        pieces = [(row, *piece, number) for number, row, *of in parts for piece in zip(of[::2], of[1::2], strict=True)]
        if not pieces:
            return np.zeros(0, np.int64)
        known = np.array(sorted(pieces), np.int64).T
        low, width = known[1].min(), np.ptp(known[1]) + known[2].max() + 1
        at = np.searchsorted(known[0] * width + known[1] - low, rows * width + columns - low, side="right") - 1
        row, first, count, number = known[:, np.maximum(at, 0)]
        return number[(at >= 0) & (row == rows) & (first <= columns) & (columns < first + count)]

    def located(self, numbers: Numbers, rows: Numbers, columns: Numbers) -> Numbers:
        """The number within each trajectory of the frame in a row and column; `NOT_THERE` if it is not one of its frames."""
        frames = columns - self.shift[numbers]
        for k in np.flatnonzero(self.is_chained[numbers]).tolist():
            frames[k] = self._located(int(numbers[k]), int(columns[k]))
        is_there = (self.row[numbers] == rows) & (self.first[numbers] <= frames) & (frames < self.end[numbers])
        return np.where(is_there, frames, NOT_THERE)

    def _located(self, number: int, column: int) -> int:
        frames, shifts = self.chains[number]
        piece = max(0, bisect_right(range(len(frames)), column, key=lambda k: frames[k] + shifts[k]) - 1)
        frame = column - shifts[piece]
        return frame if piece + 1 == len(frames) or frame < frames[piece + 1] else NOT_THERE

    def _further(self, number: int, start: int, length: int) -> Numbers | int:
        """The distances from the shift of the first piece to those of these frames."""
        frames, shifts = self.chains[number]
        piece, last = bisect_right(frames, start) - 1, bisect_right(frames, start + length - 1) - 1
        if piece == last:
            return shifts[piece] - shifts[0]
        bounds = np.array([start, *frames[piece + 1 : last + 1], start + length])
        return np.repeat(np.array(shifts[piece : last + 1]) - shifts[0], np.diff(bounds))
