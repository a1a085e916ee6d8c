"""`EpisodeRecords`: the last episodes of a collector, each with what it takes to run it again.

Workers tell of whole rollouts (`RolloutNotes`), which are kept as they are. A record is put together when somebody asks for it:

    rollout    k                k + 1              k + 2
    row b      ...|R 5 ...|R 6  ......|R 7 ......  .......7|
                   '- a note   the record of 7: the note, its lead (5 and 6), and its own pieces
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.records import EpisodeRecord, Note, Recipe, RolloutNotes, Values
from reap.recording.trajectories import NO_ID

UNKNOWN = 1 << 62
"""In place of the number of a rollout, and later than any: the episode began where there was no note of it."""

Indices = NDArray[np.int64]


@dataclass
class WorkersNotes:
    """The notes of one worker.

    Attributes:
        recipes: by row.
        rollouts: by number, those that are still needed.
        began: by row, the rollout in which the episode under way began.
        anchors: by row, a rollout from which a note leads to it.
        noted: by row, the last rollout with a note.
    """

    recipes: Sequence[Recipe | None]
    began: Indices
    anchors: Indices
    noted: Indices
    rollouts: dict[int, RolloutNotes] = field(default_factory=dict[int, RolloutNotes])

    @property
    def first_needed(self) -> int:
        """The first rollout that episodes under way and to come need; no more than the next."""
        return int(min(self.anchors.min(), self.noted.min(), max(self.rollouts, default=0) + 1))


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
        anchor: the first rollout that any of them needs.
    """

    worker: int
    notes: WorkersNotes
    number: int
    ids: Indices
    ends: Indices
    began: Indices
    anchor: int


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
            if not notes.number:
                rows = next(iter(notes.actions.values())).shape[0]
                began, anchors, noted = (np.full(rows, UNKNOWN) for _ in range(3))
                self._workers[worker] = WorkersNotes(notes.recipes, began, anchors, noted)
            own = self._workers[worker]
            own.rollouts[notes.number] = notes
            anchors = np.where(own.noted == UNKNOWN, notes.number, own.noted)
            self._add_ended(worker, own, notes, anchors)
            rows = notes.starts[notes.begins] // notes.columns
            own.began[rows], own.anchors[rows] = notes.number, anchors[rows]
            if notes.notes:
                own.noted[list(notes.notes)] = notes.number
            self._forget(own)

    def _add_ended(self, worker: int, own: WorkersNotes, notes: RolloutNotes, anchors: Indices) -> None:
        ends = notes.ends
        if not len(ends):
            return
        segments, rows = np.searchsorted(notes.starts, ends, side="right") - 1, ends // notes.columns
        begins = notes.begins[segments]
        began = np.where(begins, notes.number, own.began[rows])
        known = np.flatnonzero(began != UNKNOWN)
        if len(known):
            anchor = int(np.where(begins, anchors[rows], own.anchors[rows]).min())
            self._ended.append(Ended(worker, own, notes.number, notes.ids[segments[known]], known, began[known], anchor))
            self._count += len(known)

    def _forget(self, own: WorkersNotes) -> None:
        """Let go of the oldest episodes, and of rollouts that none of the others needs."""
        touched = {id(own): own}
        while self._ended and self._count - len(self._ended[0].ids) >= self.most:
            oldest = self._ended.popleft()
            self._count -= len(oldest.ids)
            touched[id(oldest.notes)] = oldest.notes
        needed = {key: notes.first_needed for key, notes in touched.items()}
        for one in self._ended:
            if (key := id(one.notes)) in needed:
                needed[key] = min(needed[key], one.anchor)
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
    rollouts = one.notes.rollouts
    last, opening = rollouts[one.number], rollouts[first]
    row = int(last.ends[end] // last.columns)
    pieces = [_piece(rollouts[number], row, key) for number in range(first, one.number + 1)]
    note, lead = _beginning(rollouts, first, row, key)
    place = int(np.count_nonzero(opening.begins[: _segment(opening, row, key)]))
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
        is_limited=truncated and episode.length == limit,
    )


def _piece(notes: RolloutNotes, row: int, key: int) -> tuple[Values, Values]:
    """Actions and results of an episode in one rollout."""
    columns = _columns(notes, _segment(notes, row, key))
    return (
        {name: array[row, columns] for name, array in notes.actions.items()},
        {name: array[row, columns] for name, array in notes.results.items()},
    )


def _segments(notes: RolloutNotes, row: int) -> list[int]:
    """The segments of a row that are parts of episodes."""
    first, last = np.searchsorted(notes.starts, [row * notes.columns, (row + 1) * notes.columns])
    return [index for index in range(first, last) if notes.ids[index] != NO_ID and notes.lengths[index]]


def _segment(notes: RolloutNotes, row: int, key: int) -> int:
    return next(index for index in _segments(notes, row) if notes.ids[index] == key)


def _columns(notes: RolloutNotes, segment: int) -> slice:
    start = int(notes.starts[segment]) % notes.columns
    return slice(start, start + int(notes.lengths[segment]))


class Part(NamedTuple):
    """A reset and the frames after it, or frames that continue those of the rollout before.

    Attributes:
        begins: whether there is a reset.
        note: of the reset, if it has one.
        id: of the episode.
        actions: of the frames.
    """

    begins: bool
    note: Note | None
    id: int
    actions: Values


def _parts(notes: RolloutNotes, row: int) -> list[Part]:
    """What happened in a row, in order."""
    parts: list[Part] = []
    note = notes.notes.get(row)
    for segment in _segments(notes, row):
        columns, begins = _columns(notes, segment), bool(notes.begins[segment])
        actions = {name: array[row, columns] for name, array in notes.actions.items()}
        parts.append(Part(begins, note if begins else None, int(notes.ids[segment]), actions))
        note = None if begins else note
    return parts


def _beginning(rollouts: Mapping[int, RolloutNotes], number: int, row: int, key: int) -> tuple[Note, list[Values]]:
    """The last note before an episode that begins in a rollout, and the actions from there to its beginning."""
    parts = _parts(rollouts[number], row)
    parts = parts[: 1 + next(index for index, part in enumerate(parts) if part.id == key)]
    while not any(part.note for part in parts):
        number -= 1
        parts = [*_parts(rollouts[number], row), *parts]
    noted = max(index for index, part in enumerate(parts) if part.note)
    lead: list[list[Values]] = []
    for part in parts[noted:-1]:
        if part.begins:
            lead.append([])
        lead[-1].append(part.actions)
    note = parts[noted].note
    assert note is not None
    return note, [_joined(episode) for episode in lead]


def _joined(pieces: Sequence[Values]) -> dict[Key, Array]:
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
