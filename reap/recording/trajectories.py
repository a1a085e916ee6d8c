"""`TrajectoryTracker`: ids, step counts, limits and finished episodes.

Nothing is written per frame. A row's *segment* is the part of one episode that lies in one rollout. The loop only notes where
segments start and episodes end; a few array operations at the end of the rollout write everything else:

    column        0 . . . 4 5 . . . . . . . 13 14 . . T
    row b         id 7    | id 9               | id 12 ->     continues in the next rollout, after `count` steps

Places are flat, `b * T + column`, so that the segments of all rows, sorted, cover the slot without a gap. Invalid frames
belong to segments with id -1.

Ids are `leaf << 40 | k`: `k` counts the episodes started by this tracker, `leaf` is the number of the worker, which makes ids
unique without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from reap.keys import Key
from reap.recording.buffers import DONE, IDS, REWARD, STEP_COUNT, TERMINATED, TRUNCATED, Slot, after

LEAF_SHIFT = 40
NO_LIMIT = 1 << 62
NO_ID = -1

Indices = NDArray[np.int64]


class Episode(NamedTuple):
    """A finished episode: the sum of its rewards, and its length in frames."""

    reward: float
    length: int


class Segments(NamedTuple):
    """The segments of a rollout, in the order of their places.

    Attributes:
        starts: places where they start.
        ids: their ids.
        lengths: their lengths in frames.
        firsts: the first segment of each row.
        before: number of frames that the episode of each of these had in earlier rollouts.
    """

    starts: Indices
    ids: Indices
    lengths: Indices
    firsts: Indices
    before: Indices

    @property
    def begins(self) -> NDArray[np.bool_]:
        """Whether each segment is the start of its episode."""
        begins = self.ids != NO_ID
        begins[self.firsts] &= self.before == 0
        return begins


TrackerState = TypedDict("TrackerState", {"begun": int, "ids": list[int], "count": list[int], "return": list[float]})


class TrajectoryTracker:
    """Tracks the episodes of all rows across rollouts.

    Args:
        rows: number of rows.
        leaf: number of the worker, the upper bits of every id.
        limit: frames after which an episode is truncated; None for no limit.
        rewards: keys of the slot whose values, summed, are a frame's reward.
        writes_counts: write step counts; False if the env has an observation of that name.
    """

    def __init__(
        self,
        rows: int,
        *,
        leaf: int = 0,
        limit: int | None = None,
        rewards: Sequence[Key] = (after(REWARD),),
        writes_counts: bool = True,
    ) -> None:
        self.due = NO_LIMIT
        """The first column in which any row can reach the limit."""
        self.finished: list[Episode] = []
        self.segments: Segments
        """The segments of the last closed rollout."""
        self._rows = range(rows)
        self._rewards = tuple(rewards)
        self._writes_counts = writes_counts
        self._limit = NO_LIMIT if limit is None else limit
        self._leaf = leaf << LEAF_SHIFT
        self._begun = 0
        # Per row, at the end of the last rollout: id, frames and reward of the episode under way.
        self._ids = [NO_ID] * rows
        self._count = np.zeros(rows, np.int64)
        self._return = np.zeros(rows, np.float64)
        # Per row: the column with which the present episode reaches the limit.
        self._last = [NO_LIMIT] * rows
        # In this rollout: the ids of segments by the places where they begin, and places where episodes end.
        self._starts: dict[int, int] = {}
        self._ends: list[int] = []
        self._columns = 0

    @property
    def leaf(self) -> int:
        """Number of the worker, the upper bits of every id; a new value applies to later ids."""
        return self._leaf >> LEAF_SHIFT

    @leaf.setter
    def leaf(self, number: int) -> None:
        self._leaf = number << LEAF_SHIFT

    def bind(self, slot: Slot) -> None:
        """Start a rollout recorded in `slot`; episodes continue from before, or start in column 0."""
        self._slot = slot
        self._columns = slot.columns
        self._starts = dict(zip(self._places(0), self._ids, strict=True))
        self._ends = []
        self._truncated = slot.by_row(after(TRUNCATED))
        # Lost with a rollout that is never closed: the first id of each segment, and the steps before it.
        self._first_ids = slot.by_row(IDS)
        self._first_ids[:, 0] = self._ids
        if self._writes_counts and STEP_COUNT in slot.fields:
            slot.by_row(STEP_COUNT)[:, 0, 0] = self._count
        if self._limit < NO_LIMIT:
            waiting = (self._limit - self._count - 1).tolist()
            self._last = [NO_LIMIT if i == NO_ID else last for i, last in zip(self._ids, waiting, strict=True)]
            self.due = min(self._last)

    def skip_to(self, column: int) -> None:
        """Start recording in this column; earlier columns hold another tracker's frames, which the caller restores."""
        self._starts = dict.fromkeys(self._places(0), NO_ID) | dict(zip(self._places(column), self._ids, strict=True))
        self._first_ids[:, column] = self._ids
        self._last = [last if last == NO_LIMIT else last + column for last in self._last]
        self.due = min(self._last)

    def begin(self, rows: Iterable[int], column: int) -> None:
        """Start new episodes whose first frame is recorded in `column`; for column 0 call this before `bind`.

        The id of an episode without a recorded frame is reused by the next one.
        """
        for b in rows:
            number = self._ids[b]
            if number == NO_ID or self._count[b]:
                number = self._ids[b] = self._leaf | self._begun
                self._begun += 1
            self._last[b] = column + self._limit - 1
            if column:
                self._starts[b * self._columns + column] = number
                self._first_ids[b, column] = number
            else:
                self._count[b] = 0
                self._return[b] = 0.0
        self.due = min(self.due, column + self._limit - 1)

    def reach_limit(self, ended: Sequence[int] | None, t: int, among: range) -> Sequence[int] | None:
        """Truncate those rows that reach the limit in column `t`; return them together with the rows that ended."""
        reached = [b for b in among if self._last[b] == t]
        for b in reached:
            self._last[b] = NO_LIMIT
        self.due = min(self._last)
        if not reached:
            return ended
        self._truncated[reached, t] = True
        return reached if ended is None else sorted({*ended, *reached})

    def end(self, rows: Iterable[int], t: int) -> None:
        """Note episodes that ended in column `t`; the rows are idle until their next episode starts."""
        for b in rows:
            place = b * self._columns + t
            self._ends.append(place)
            self._ids[b] = NO_ID
            self._last[b] = NO_LIMIT
            if t + 1 < self._columns:
                self._starts[place + 1] = NO_ID
                self._first_ids[b, t + 1] = NO_ID

    def _places(self, column: int) -> range:
        """The places of a column."""
        return range(column, len(self._rows) * self._columns, self._columns)

    @property
    def ended(self) -> int:
        """Number of episodes that have ended in this rollout."""
        return len(self._ends)

    def rows_ended(self, first: int) -> list[int]:
        """The rows of the episodes that have ended in this rollout, in order, from a given one on."""
        return [place // self._columns for place in self._ends[first:]]

    @property
    def ends(self) -> Indices:
        """The places where episodes have ended in this rollout, in order."""
        return np.asarray(self._ends, np.int64)

    @property
    def idle(self) -> list[int]:
        """Rows whose episode has ended and that have not started another."""
        return [b for b in self._rows if self._ids[b] == NO_ID]

    @property
    def begun(self) -> list[int]:
        """Rows whose current episode has recorded frames in closed rollouts, and idle rows."""
        return [b for b in self._rows if self._ids[b] == NO_ID or self._count[b]]

    def take_finished(self) -> list[Episode]:
        """The episodes that ended since the last call, in the order in which they ended."""
        finished, self.finished = self.finished, []
        return finished

    def close(self, columns: int) -> None:
        """End the rollout before `columns`: write ids, step counts and done flags, and note finished episodes."""
        if columns < self._columns:
            self._starts |= dict.fromkeys(self._places(columns), NO_ID)
        slot, places = self._slot, sorted(self._starts)
        starts, ids = np.array(places, np.int64), np.array([self._starts[place] for place in places], np.int64)
        stops = _shifted(starts, len(self._rows) * self._columns)
        lengths = stops - starts
        slot.by_row(IDS).reshape(-1)[...] = ids.repeat(lengths)
        np.logical_or(slot.by_row(after(TERMINATED)), self._truncated, out=slot.by_row(after(DONE)))
        counts, returns = lengths.copy(), np.add.reduceat(self._frame_rewards(slot), starts)
        # A row's first segment continues the episode that was under way.
        firsts = starts.searchsorted(np.arange(0, len(self._rows) * self._columns, self._columns))
        counts[firsts] += self._count
        returns[firsts] += self._return
        if self._writes_counts and STEP_COUNT in slot.fields:
            self._write_counts(slot, counts - stops, lengths)
        self.segments = Segments(starts, ids, lengths, firsts, self._count)
        self._carry_on(firsts, ids, counts, returns)
        ended = starts.searchsorted(self.ends, side="right") - 1
        self.finished.extend(map(Episode, returns[ended].tolist(), counts[ended].tolist()))

    def state(self) -> TrackerState:
        """A copy of everything that unfinished episodes need to continue."""
        return {"begun": self._begun, "ids": list(self._ids), "count": self._count.tolist(), "return": self._return.tolist()}

    def restore(self, state: TrackerState, *, going_on: bool) -> None:
        """Load a state; unless episodes continue, only to make later ids new."""
        self._begun = state["begun"]
        rows = len(self._rows)
        self._ids = list(state["ids"]) if going_on else [NO_ID] * rows
        self._count = np.asarray(state["count"] if going_on else [0] * rows, np.int64)
        self._return = np.asarray(state["return"] if going_on else [0.0] * rows, np.float64)

    def _frame_rewards(self, slot: Slot) -> NDArray[np.float64]:
        """The reward of each frame in the slot, row after row."""
        size = slot.rows * slot.columns
        arrays = [slot.by_row(key) for key in self._rewards]
        if len(arrays) == 1 and arrays[0].size == size:
            return arrays[0].reshape(-1).astype(np.float64)
        return sum((array.reshape(size, -1).sum(1, dtype=np.float64) for array in arrays), np.zeros(size))

    def _write_counts(self, slot: Slot, offsets: Indices, lengths: Indices) -> None:
        # The step that follows a frame is the frame's place in the slot, counted from 1, plus the offset of its segment.
        steps = offsets.repeat(lengths)
        steps += np.arange(len(steps))
        slot.by_row(STEP_COUNT).reshape(-1)[...] = steps
        np.add(steps, 1, out=slot.by_row(after(STEP_COUNT)).reshape(-1))

    def _carry_on(self, firsts: Indices, ids: Indices, counts: Indices, returns: NDArray[np.float64]) -> None:
        """Keep the length and reward of unfinished episodes: those of each row's last valid segment."""
        lasts = _shifted(firsts, len(counts)) - 1
        lasts -= ids[lasts] == NO_ID
        self._count, self._return = counts[lasts], returns[lasts]
        idle = self.idle
        self._count[idle], self._return[idle] = 0, 0.0


def _shifted(numbers: Indices, last: int) -> Indices:
    """The number after each one, and `last` after the last."""
    following = np.empty_like(numbers)
    following[:-1] = numbers[1:]
    following[-1] = last
    return following
