"""`EpisodeIndex`: which frames of a buffer follow each other in one env, kept up to date as columns are written.

    columns      0  1  2  3 | 4  5  6  7 | 8  9 10 11        three writes
    ids          a  a  a  b | c  c  c  c | b  b  b  d
    segments     a--a--a  b   c--c--c--c   b--b--b  d        neighbours of one stream and id, none of them done
    trajectories a  (0-2)    b  (3, 8-10)    c  (4-7)    d  (11)

A frame follows its neighbour if both have the same stream and id and the earlier one is not done. Where a write begins, where
one of the two replaced another frame, and everywhere if there are no ids, it must continue from where the earlier
one ended, too (`Continuity`): a batch may be missing in between. If a segment ends that is not done, its end is
noted; a segment that begins with the same stream and id, and continues from there, belongs to the same trajectory. Without ids
only the last end of the stream counts.

The index is a function of the contents of the buffer; it is rebuilt if it is missing, and not shared between processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from time import sleep
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reap.data.episodes.continuity import Continuity
from reap.data.episodes.labels import Columns, GivenLabels, Labels
from reap.data.episodes.segments import Segments, in_doubt, segments_of
from reap.data.episodes.trajectories import Numbers, TrajectoryTable
from reap.data.storages.ring.reading import Reading
from reap.data.storages.tensors import TensorRing

CHUNK = 1 << 20
"""Number of frames processed together."""

PAUSES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
"""Seconds after which the index is updated again if no column that was read is left: writers have overwritten the whole ring,
or one that is still writing holds back later columns of others."""

NO_TRAJECTORY = -1

_NOTHING = NO_TRAJECTORY, b""

Name = tuple[Any, ...]
"""Row and stream of a segment, and with ids also its id and the digest that it starts with or continues from."""


class Watcher(Protocol):
    """Is notified of changed trajectories."""

    def grew(self, numbers: Sequence[int]) -> None:
        """Note that these are new or longer, in the order of their starts."""

    def shrank(self, left: Sequence[int], gone: Sequence[int]) -> None:
        """Note that some are shorter, and others gone."""


class EpisodeIndex:
    """Trajectories of a buffer.

    Args:
        storage: holds the frames; it is not empty.
        labels: tell which of them belong together.
        keeps_owners: keep the trajectory of each frame, for `at`.

    Attributes:
        table: the trajectories.
        watchers: objects that are notified of changes.
    """

    def __init__(self, storage: TensorRing, labels: Labels | GivenLabels, *, keeps_owners: bool = False) -> None:
        self.storage, self._labels = storage, labels
        self._owners = np.zeros(storage.rows * storage.ring.capacity, np.int32) if keeps_owners else None
        self._continuity = None if labels.trusts_order else Continuity(storage)
        self._compares = self._continuity is not None and bool(self._continuity.keys)
        self.table = TrajectoryTable(storage.ring.capacity)
        self.watchers: list[Watcher] = []
        self._reading: Reading | None = None
        self._begin()

    def _begin(self) -> None:
        self._read_until = 0
        self._tails = np.full(self.storage.rows, NO_TRAJECTORY)
        self._open: dict[Name, tuple[int, bytes]] = {}
        self._names: dict[int, Name] = {}

    # ------------------------------------------------------------------ bringing up to date

    def update(self) -> None:
        """Add the frames written since the last call, and remove overwritten ones."""
        pauses = iter(PAUSES)
        while not self._catch_up() and (pause := next(pauses, None)) is not None:
            sleep(pause)

    def _catch_up(self) -> bool:
        """Whether any frame of the index still exists."""
        ring = self.storage.ring
        reading = ring.begin_reading()
        if reading == self._reading and not reading.writing:
            return True
        changes = self._labels.changes
        if self._reading is not None and changes(reading.edits) != changes(self._reading.edits):
            self._look_again()
            return True
        settled, start = ring.settled, max(self._read_until, ring.oldest)
        while start < settled:
            stop = min(settled, start + max(1, CHUNK // self.storage.rows))
            self._take_in(start, stop)
            self._read_until = start = stop
        # Removes frames that were overwritten while they were read.
        oldest = ring.oldest
        self._trim(oldest)
        self._reading = reading
        return oldest < self._read_until

    def _look_again(self) -> None:
        """Read all frames again, because some were edited; unchanged trajectories keep their numbers."""
        fresh = EpisodeIndex(self.storage, self._labels, keeps_owners=self._owners is not None)
        fresh.update()
        known = {self.table.pieces(number): number for number in self.table.alive().tolist()}
        found = fresh.table.in_order(fresh.table.alive()).tolist()
        same = {number: known[pieces] for number in found if (pieces := fresh.table.pieces(number)) in known}
        kept = set(same.values())
        free = (number for number in count() if number not in kept)
        numbers = {number: same[number] if number in same else next(free) for number in found}
        self.table.adopt(fresh.table, numbers)
        self._tails = np.array([numbers.get(number, NO_TRAJECTORY) for number in fresh._tails.tolist()])
        self._open = {name: (numbers[number], digest) for name, (number, digest) in fresh._open.items()}
        self._names = {numbers[number]: name for number, name in fresh._names.items()}
        if self._owners is not None and fresh._owners is not None:
            own = np.zeros(len(fresh.table.row), np.int32)
            own[list(numbers)] = list(numbers.values())
            self._owners[:] = own[fresh._owners]
        self._read_until, self._reading = fresh._read_until, fresh._reading
        for watcher in self.watchers:
            watcher.shrank([], [number for number in known.values() if number not in kept])
            watcher.grew([numbers[number] for number in found if number not in same])

    def _trim(self, oldest: int) -> None:
        left, gone = self.table.trim(oldest)
        if not left and not gone:
            return
        if oldest >= self._read_until:
            self._tails[:] = NO_TRAJECTORY
        for number in gone:
            name = self._names.pop(number, None)
            if name is not None and self._open.get(name, _NOTHING)[0] == number:
                del self._open[name]
        for watcher in self.watchers:
            watcher.shrank(left, gone)

    def _take_in(self, start: int, stop: int) -> None:
        """Read columns; those before `start` are known already, unless they were overwritten in between."""
        if start != self._read_until:
            self._tails[:] = NO_TRAJECTORY
        known = self._tails != NO_TRAJECTORY  # the frame before may be overwritten by now
        lead = int(True in known.tolist())  # a third of what any() takes, for a few rows
        read = self._labels.read(start - lead, stop)
        linked = self._linked(read, start - lead)
        if lead:
            linked[:, 1] &= known
        segments = segments_of(read.valid[:, lead:], read.done[:, lead:], linked[:, lead:])
        if read.inits is not None:
            segments = segments._replace(is_new=read.inits[segments.rows, segments.firsts + lead])
        severed = None if read.replaced is None else self._severed(read, linked)
        if severed is not None:
            segments = self._parted(segments, read, severed, lead)
        if lead:
            left = known & ~linked[:, 1] & ~read.done[:, 0]
            left = (left if severed is None else left & ~severed[:, 1]).nonzero()[0]
            self._note_ends(self._tails[left], left, np.zeros_like(left), read, start - lead)
        numbers = self._followed(segments, read, start, lead)
        self._tails[:] = NO_TRAJECTORY
        if self._owners is not None:
            rows, columns = np.nonzero(read.valid[:, lead:])
            self._owners[self._places(rows, start + columns)] = np.repeat(numbers, segments.lasts - segments.firsts + 1)
        at_end = segments.lasts == stop - start - 1
        self._tails[segments.rows[at_end]] = numbers[at_end]
        self._tails[read.done[:, -1]] = NO_TRAJECTORY
        grown = self.table.in_order(numbers).tolist()
        for watcher in self.watchers:
            watcher.grew(grown)

    def _linked(self, read: Columns, start: int) -> NDArray[np.bool_]:
        """Which frames follow their left neighbour, `[rows, n]`; the first ones have none."""
        ids, done, valid, streams, _, _, inits = read
        linked = np.empty(valid.shape, np.bool_)
        linked[:, 0] = False
        later = linked[:, 1:]
        np.equal(ids[:, 1:], ids[:, :-1], out=later)
        later &= streams[1:] == streams[:-1]
        later &= valid[:, 1:]
        later &= np.greater(valid, done)[:, :-1]  # valid and not done
        if inits is not None:
            later &= ~inits[:, 1:]
        if self._continuity is not None:
            rows, columns = (linked & in_doubt(read) if self._labels.has_ids else linked).nonzero()
            if len(columns):
                places = (self._places(rows, start + columns + step) for step in (-1, 0))
                linked[rows, columns] = self._continuity.holds(*places)
        return linked

    def _severed(self, read: Columns, linked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where no trajectory continues into a frame, because it or the previous one was replaced."""
        assert read.replaced is not None
        severed = np.zeros_like(linked)
        if self._compares:
            same_stream = read.streams[1:] == read.streams[:-1]
            severed[:, 1:] = (read.replaced[:, 1:] | read.replaced[:, :-1]) & same_stream & ~linked[:, 1:]
        else:
            severed[:, 1:] = read.replaced[:, :-1] & ~linked[:, 1:]
        return severed

    def _parted(self, segments: Segments, read: Columns, severed: NDArray[np.bool_], lead: int) -> Segments:
        """The segments, split at frames that replaced others.

        If observations can be compared, they tell which frames follow each other, except for adjacent ones. If not,
        such a frame separates the frames of its stream before it from those after it.
        """
        assert read.replaced is not None
        rows, firsts, lasts = segments.rows, segments.firsts + lead, segments.lasts + lead
        ends = np.pad(severed, ((0, 0), (0, 1)))[rows, lasts + 1]
        parted = segments._replace(is_new=segments.is_new | severed[rows, firsts], may_go_on=segments.may_go_on & ~ends)
        if self._compares:
            return parted
        count = np.pad(read.replaced.cumsum(1), ((0, 0), (1, 0)))
        return parted._replace(
            is_new=segments.is_new | read.replaced[rows, firsts], closes=count[rows, lasts + 1] > count[rows, firsts]
        )

    def _places(self, rows: Numbers, columns: Numbers) -> Numbers:
        capacity = self.storage.ring.capacity
        return rows * capacity + columns % capacity

    def at(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """The trajectories of the frames at these places, and the frames' numbers in them; -1 for frames of none."""
        assert self._owners is not None
        capacity, top = self.storage.ring.capacity, self._read_until - 1
        numbers: Numbers = self._owners[places].astype(np.int64)
        return numbers, self.table.located(numbers, places // capacity, top - (top - places) % capacity)

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The state of the index, as tensors, numbers, lists and dicts."""
        self.update()
        return {"read_until": self._read_until, "table": self.table.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`; the storage has the same contents as then.

        Later writes get new streams and do not continue earlier frames.
        """
        self._begin()
        self._read_until = state["read_until"]
        self._reading = Reading(self._read_until, self.storage.ring.begin_reading().edits, ())
        self.table.restore(state["table"])
        if self._owners is not None:
            for number in self.table.alive().tolist():
                self._owners[self.table.whole(number)] = number

    # ------------------------------------------------------------------ segments

    def _followed(self, segments: Segments, read: Columns, start: int, lead: int) -> Numbers:
        """The trajectories of these segments, `[n]`; new ones are added, others are made longer."""
        longer = segments.goes_on.nonzero()[0]
        if not len(longer):
            return self._begun(segments, read, start, lead)
        numbers, new = np.empty(len(segments.rows), np.int64), (~segments.goes_on).nonzero()[0]
        rows, firsts, lasts, _, may_go_on, _, closes = segments.only(longer)
        numbers[longer] = grown = self._tails[rows]
        self.table.extend(grown, lasts - firsts + 1)
        for k in closes.nonzero()[0].tolist():
            self._close(rows.item(k), read.streams.item(firsts.item(k) + lead))
        broken = may_go_on.nonzero()[0]
        self._note_ends(grown[broken], rows[broken], lasts[broken] + lead, read, start - lead)
        numbers[new] = self._begun(segments.only(new), read, start, lead)
        return numbers

    def _begun(self, segments: Segments, read: Columns, start: int, lead: int) -> Numbers:
        """The trajectories of segments that do not continue the frame before them."""
        starts, lengths = start + segments.firsts, segments.lasts - segments.firsts + 1
        if not self._open and True not in segments.may_go_on.tolist():
            numbers = list(map(self.table.add, segments.rows.tolist(), starts.tolist(), lengths.tolist()))
        else:
            numbers = self._join_or_add(segments, read, start, lead)
        self.table.note_pieces(starts.tolist(), numbers)
        return np.array(numbers, np.int64)

    def _join_or_add(self, segments: Segments, read: Columns, start: int, lead: int) -> list[int]:
        rows, firsts, lasts, _, may_go_on, is_new, closes = segments
        starts, lengths = start + firsts, lasts - firsts + 1
        begun = self._named(rows, firsts + lead, read, self._digests(rows, starts, is_end=False))
        ending = np.flatnonzero(may_go_on)
        ends = iter(
            self._named(
                rows[ending],
                lasts[ending] + lead,
                read,
                self._digests(rows[ending], start + lasts[ending], is_end=True),
            )
        )
        numbers: list[int] = []
        flags = zip(may_go_on.tolist(), is_new.tolist(), closes.tolist(), strict=True)
        parts = zip(begun, rows.tolist(), starts.tolist(), lengths.tolist(), flags, strict=True)
        for (name, digest), row, first, length, (is_open, is_alone, parts_stream) in parts:
            found = self._found(name, digest)
            number = None if is_alone else found
            if parts_stream:
                self._close(*name[:2])
            if number is None:
                number = self.table.add(row, first, length)
            else:
                self.table.join(number, first, length)
            if is_open:
                self._note_end(number, *next(ends))
            numbers.append(number)
        return numbers

    # ------------------------------------------------------------------ ends that may go on

    def _note_ends(self, numbers: Numbers, rows: Numbers, at: Numbers, read: Columns, start: int) -> None:
        """Remember the frames with which these trajectories end for now."""
        if not len(rows):
            return
        digests = self._digests(rows, start + at, is_end=True)
        for number, (name, digest) in zip(numbers.tolist(), self._named(rows, at, read, digests), strict=True):
            self._note_end(number, name, digest)

    def _note_end(self, number: int, name: Name, digest: bytes) -> None:
        self._open[name] = number, digest
        self._names[number] = name

    def _close(self, row: int, stream: int) -> None:
        """Drop all ends of one stream in a row."""
        for name in [name for name in self._open if name[:2] == (row, stream)]:
            del self._names[self._open.pop(name)[0]]

    def _found(self, name: Name, digest: bytes) -> int | None:
        """The trajectory that continues with a segment that starts like this, if any."""
        found = self._open.pop(name, None)
        if found is None:
            return None
        number, expected = found
        del self._names[number]
        return number if digest == expected else None

    def _digests(self, rows: Numbers, columns: Numbers, *, is_end: bool) -> Sequence[bytes]:
        if self._continuity is None or not self._continuity.keys:
            return [b""] * len(rows)
        places = self._places(rows, columns)
        return self._continuity.ends(places) if is_end else self._continuity.starts(places)

    def _named(self, rows: Numbers, at: Numbers, read: Columns, digests: Sequence[bytes]) -> Iterable[tuple[Name, bytes]]:
        """For each segment, the name of its trajectory, and the digest that it has to continue from."""
        parts: list[Sequence[Any]] = [rows.tolist(), read.streams[at].tolist()]
        if self._labels.has_ids:
            parts += [read.ids[rows, at].tolist(), digests]
        return zip(zip(*parts, strict=True), digests, strict=True)
