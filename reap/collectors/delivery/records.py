"""`EpisodeRecords`: the last episodes of a collector, each with what it takes to run it again.

Workers tell of whole rollouts (`RolloutNotes`), which are kept as they are. A record is put together when somebody asks for it:

    notes of rollout   k             k + 1         k + 2
    row b              ...|R--lead--|R 7 .......  ........  ...7|
                           '- a note        the record of 7: the note, the lead, and three pieces
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.records import EpisodeRecord, Note, Recipe, RolloutNotes, Values

UNKNOWN = -1
"""In place of the number of a rollout: the episode began where there was no note of it."""

Indices = NDArray[np.int64]


@dataclass
class WorkersNotes:
    """The notes of one worker.

    Attributes:
        recipes: by row.
        rollouts: by number, those that are still needed.
        began: by row, the rollout in which the episode under way began.
        last: the number of the last one.
    """

    recipes: Sequence[Recipe | None] = ()
    rollouts: dict[int, RolloutNotes] = field(default_factory=dict[int, RolloutNotes])
    began: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    last: int = UNKNOWN


@dataclass
class Ended:
    """Episodes that ended in one rollout.

    Attributes:
        worker: who recorded it.
        notes: what is kept of the worker.
        number: of the rollout.
        ids: of the episodes.
        ends: for each, its place among those that ended in the rollout.
        began: for each, the rollout in which it began.
    """

    worker: int
    notes: WorkersNotes
    number: int
    ids: Indices
    ends: Indices
    began: Indices


class EpisodeRecords(Mapping[int, EpisodeRecord]):
    """The last episodes that ended, by the id of their trajectory, in the order in which they ended.

    It may be read while a collector works in the background.

    Args:
        most: how many are kept.
        limit: frames after which the collector truncates an episode, or None.
    """

    def __init__(self, most: int, limit: int | None) -> None:
        self.most = most
        self._limit = limit
        self._workers: dict[int, WorkersNotes] = {}
        self._ended: deque[Ended] = deque()
        self._count = 0
        self._lock = Lock()

    def add(self, worker: int, notes: RolloutNotes) -> None:
        """Take the notes of a rollout.

        Args:
            worker: who recorded it; a new one in the place of another begins with number 0.
            notes: as they came; those of a worker come in order.
        """
        with self._lock:
            own = self._notes_of(worker, notes)
            own.rollouts[notes.number], own.last = notes, notes.number
            self._add_ended(worker, own, notes)
            rows = notes.starts[notes.begins] // notes.columns
            own.began[rows] = notes.number
            self._forget(own)

    def _notes_of(self, worker: int, notes: RolloutNotes) -> WorkersNotes:
        own = self._workers.get(worker)
        if own is None or not notes.number:
            own = self._workers[worker] = WorkersNotes(notes.recipes)
        if notes.number != own.last + 1 or not notes.number:
            rows = next(iter(notes.actions.values())).shape[0]
            own.began = np.full(rows, UNKNOWN)
        return own

    def _add_ended(self, worker: int, own: WorkersNotes, notes: RolloutNotes) -> None:
        ends = notes.ends
        if not len(ends):
            return
        segments = np.searchsorted(notes.starts, ends, side="right") - 1
        began = np.where(notes.begins[segments], notes.number, own.began[ends // notes.columns])
        known = np.flatnonzero(began != UNKNOWN)
        if len(known):
            self._ended.append(Ended(worker, own, notes.number, notes.ids[segments][known], known, began[known]))
            self._count += len(known)

    def _forget(self, own: WorkersNotes) -> None:
        """Let go of the oldest episodes, and of rollouts that none of the others needs."""
        touched = {id(own): own}
        while self._count - len(self._ended[0].ids) >= self.most if self._ended else False:
            oldest = self._ended.popleft()
            self._count -= len(oldest.ids)
            touched[id(oldest.notes)] = oldest.notes
        needed = {key: int(notes.began[notes.began != UNKNOWN].min(initial=notes.last + 1)) for key, notes in touched.items()}
        for one in self._ended:
            if id(one.notes) in needed:
                needed[id(one.notes)] = min(needed[id(one.notes)], int(one.began.min()))
        for key, notes in touched.items():
            for number in [number for number in notes.rollouts if number < needed[key]]:
                del notes.rollouts[number]

    def take(self) -> list[EpisodeRecord]:
        """The records of all episodes that are kept, which are not kept any more."""
        with self._lock:
            records = [_record(one, index, self._limit) for one, index in self._places()]
            self._ended.clear()
            self._count = 0
            for own in self._workers.values():
                self._forget(own)
            return records

    def _places(self) -> list[tuple[Ended, int]]:
        places = [(one, index) for one in self._ended for index in range(len(one.ids))]
        return places[-self.most :]

    def __getitem__(self, key: int) -> EpisodeRecord:
        with self._lock:
            for one, index in self._places():
                if one.ids[index] == key:
                    return _record(one, index, self._limit)
        raise KeyError(
            f"{key}: no episode of this id has ended, or {self.most} have since; record_episodes=N keeps the last N that ended"
        )

    def __iter__(self) -> Iterator[int]:
        with self._lock:
            return iter([int(one.ids[index]) for one, index in self._places()])

    def __len__(self) -> int:
        return min(self._count, self.most)

    def __repr__(self) -> str:
        return f"EpisodeRecords({len(self)} of the last {self.most} episodes)"


def _record(one: Ended, index: int, limit: int | None) -> EpisodeRecord:
    """The record of an episode that ended."""
    key, end, first = int(one.ids[index]), int(one.ends[index]), int(one.began[index])
    last = one.notes.rollouts[one.number]
    row = int(last.ends[end] // last.columns)
    pieces = [_piece(one.notes.rollouts[number], row, key) for number in range(first, one.number + 1)]
    note, lead, place = _beginning(one.notes.rollouts[first], row, key)
    opening = one.notes.rollouts[first]
    episode, terminated, truncated = last.episodes[end], bool(last.terminated[end]), bool(last.truncated[end])
    return EpisodeRecord(
        id=key,
        worker=one.worker,
        row=row,
        recipe=one.notes.recipes[row] if one.notes.recipes else None,
        note=note,
        lead=lead,
        actions=_joined([actions for actions, _ in pieces]),
        first={name: array[place] for name, array in opening.firsts.items()},
        results=_joined([results for _, results in pieces]),
        reward=episode.reward,
        length=episode.length,
        terminated=terminated,
        truncated=truncated,
        is_limited=truncated and not terminated and episode.length == limit,
    )


def _piece(notes: RolloutNotes, row: int, key: int) -> tuple[Values, Values]:
    """Actions and results of an episode in one rollout."""
    segments = _segments(notes, row)
    (index,) = segments[notes.ids[segments] == key]
    columns = _columns(notes, index)
    return (
        {name: array[row, columns] for name, array in notes.actions.items()},
        {name: array[row, columns] for name, array in notes.results.items()},
    )


def _segments(notes: RolloutNotes, row: int) -> Indices:
    """The segments of a row that have frames."""
    first, last = np.searchsorted(notes.starts, [row * notes.columns, (row + 1) * notes.columns])
    return np.arange(first, last)[notes.lengths[first:last] > 0]


def _columns(notes: RolloutNotes, segment: Any) -> slice:
    start = int(notes.starts[segment]) % notes.columns
    return slice(start, start + int(notes.lengths[segment]))


def _beginning(notes: RolloutNotes, row: int, key: int) -> tuple[Note, list[Values], int]:
    """The last note before the beginning of an episode, the actions from there on, and its place among all beginnings."""
    segments = _segments(notes, row)
    begun = segments[notes.begins[segments]]
    number = int(np.flatnonzero(notes.ids[begun] == key)[0])
    resets = notes.resets[row]
    without_frames = resets.count - len(begun)
    noted = max(index for index in resets.notes if index <= without_frames + number)
    lead: list[Values] = [{} for _ in range(noted, without_frames)]
    for segment in begun[max(0, noted - without_frames) : number]:
        columns = _columns(notes, segment)
        lead.append({name: array[row, columns].copy() for name, array in notes.actions.items()})
    return resets.notes[noted], lead, int(np.count_nonzero(notes.begins[: begun[number]]))


def _joined(pieces: Sequence[Values]) -> dict[Key, Array]:
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
