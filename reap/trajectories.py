"""`TrajectoryTracker`: ids, step counts, limits and finished episodes.

Nothing is written per frame. A row's *segment* is what it recorded of one episode in one rollout; it is written when the
episode ends, or when the rollout does:

    column        0 . . . 4 5 . . . . . . . 13 14 . . T
    row b         id 7    | id 9               | id 12 ->     goes on in the next rollout, after `count` steps

Ids are `leaf << 40 | k`: `k` counts the episodes begun by this tracker, `leaf` is the number of the worker, so that ids are
unique without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reap.buffers import DONE, IDS, REWARD, STEP_COUNT, TRUNCATED, Slot, after
from reap.layout import Array

LEAF_SHIFT = 40
NO_LIMIT = 1 << 62
NO_ID = -1


@dataclass(frozen=True)
class Episode:
    """A finished episode: the sum of its rewards, and its length in frames."""

    reward: float
    length: int


class TrajectoryTracker:
    """Follows the episodes of all rows through the rollouts.

    Args:
        rows: number of rows.
        leaf: number of the worker, the upper bits of every id.
        limit: frames after which an episode is truncated; None for no limit.
    """

    def __init__(self, rows: int, *, leaf: int = 0, limit: int | None = None) -> None:
        self.rows = rows
        self.finished: list[Episode] = []
        self.due = NO_LIMIT
        """The first column in which a row may reach the limit."""
        self._limit = NO_LIMIT if limit is None else limit
        self._leaf = leaf << LEAF_SHIFT
        self._begun = 0
        self._ids = np.full(rows, NO_ID, np.int64)
        self._count = np.zeros(rows, np.int64)
        self._first = np.zeros(rows, np.int64)
        self._return = np.zeros(rows, np.float64)
        self._idle = np.zeros(rows, bool)

    def bind(self, slot: Slot) -> None:
        """Start a rollout that is recorded in `slot`; episodes go on from the rollout before."""
        self._slot_ids = slot.by_row(IDS)
        self._rewards = slot.by_row(after(REWARD))
        self._done = slot.by_row(after(DONE))
        self._truncated = slot.by_row(after(TRUNCATED))
        counted = STEP_COUNT in slot.fields
        self._counts = (slot.by_row(STEP_COUNT), slot.by_row(after(STEP_COUNT))) if counted else None
        self._first[:] = 0
        self._set_due()

    def begin(self, rows: Iterable[int], column: int) -> None:
        """New episodes, with new ids, whose first frame is recorded in `column`."""
        for b in rows:
            self._ids[b] = self._leaf | self._begun
            self._begun += 1
            self._count[b] = 0
            self._return[b] = 0.0
            self._first[b] = column
            self._idle[b] = False
        self.due = min(self.due, column + self._limit - 1)

    @property
    def idle(self) -> list[int]:
        """Rows whose episode ended and that have not begun another."""
        return np.flatnonzero(self._idle).tolist()

    @property
    def under_way(self) -> list[int]:
        """Rows of whose present episode frames are recorded, in rollouts that are closed."""
        return np.flatnonzero((self._count > 0) & ~self._idle).tolist()

    def take_finished(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def reach_limit(self, ended: Sequence[int] | None, t: int) -> Sequence[int] | None:
        """Truncate the rows that reach the limit with column `t`; return them together with those that ended."""
        last = self._first + (self._limit - self._count) - 1
        reached = np.flatnonzero((last == t) & ~self._idle)
        self.due = int(last[last > t].min(initial=NO_LIMIT))
        if not reached.size:
            return ended
        self._truncated[reached, t] = True
        return reached.tolist() if ended is None else sorted({*ended, *reached.tolist()})

    def end(self, rows: Iterable[int], t: int) -> None:
        """Episodes that ended with column `t`."""
        for b in rows:
            first, length = self._first[b], self._count[b] + t + 1 - self._first[b]
            self._done[b, t] = True
            self._write(b, int(first), t + 1)
            reward = self._return[b] + self._rewards[b, first : t + 1, 0].sum(dtype=np.float64)
            self.finished.append(Episode(float(reward), int(length)))
            self._idle[b] = True
            self._first[b] = t + 1

    def close(self, columns: int) -> Array:
        """The rollout ends before `columns`: record what is open; return the number of valid columns of each row."""
        recorded = np.arange(self._slot_ids.shape[1])
        stops = np.where(self._idle, self._first, columns)
        opened = (recorded >= self._first[:, None]) & (recorded < stops[:, None])  # [E, T]
        np.copyto(self._slot_ids, self._ids[:, None], where=opened)
        self._return += np.where(opened, self._rewards[..., 0], 0.0).sum(-1, dtype=np.float64)
        if self._counts is not None:
            for b in np.flatnonzero(stops > self._first):
                self._write(b, int(self._first[b]), int(stops[b]))
        self._count += stops - self._first
        return stops

    def _write(self, b: int, first: int, stop: int) -> None:
        self._slot_ids[b, first:stop] = self._ids[b]
        if self._counts is not None:
            root, following = self._counts
            count = np.arange(self._count[b], self._count[b] + stop - first + 1)[:, None]
            root[b, first:stop], following[b, first:stop] = count[:-1], count[1:]

    def _set_due(self) -> None:
        last = self._first + (self._limit - self._count) - 1
        self.due = int(last[~self._idle].min(initial=NO_LIMIT))
