"""`Ring`: which columns of a buffer are written, by which process, and which can be read.

    claim    under the lock: the next columns are this writer's      claimed += n
    copy     without a lock: several writers at the same time
    publish  under the lock, last: the columns can be read           written += frames

The count of columns never starts over; column c is at place c % capacity. A reader notes the state of the ring, takes its
frames, and looks again: frames from columns that were being written, or were claimed in the meantime, are drawn again. The
columns of an unfinished write become holes: they are never read, and are overwritten in the next round. The entry of a killed
writer stays in the table, and becomes a hole as soon as the entry or its columns are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reap.data.storages.ring.columns import Pieces, pieces_of, window_of
from reap.data.storages.ring.control import BROKEN, BUSY, CLAIMED, EDITS, FLOOR, REPLACEMENT, STREAMS, WRITTEN, Control
from reap.data.storages.ring.holes import Holes
from reap.data.storages.ring.origins import Origins
from reap.data.storages.ring.reading import Reading
from reap.data.storages.ring.writer_table import WriterTable
from reap.errors import CallOrderError
from reap.system.waits import Wait


class Claim(NamedTuple):
    """Columns reserved for a writer.

    Attributes:
        start: the first of them.
        columns: number of columns.
        entry: the writer's entry in the table.
    """

    start: int
    columns: int
    entry: int


class Ring:
    """A ring of columns written by one or more processes.

    Args:
        control: the shared counters and tables.
        capacity: number of columns.

    Attributes:
        origins: the stream that wrote each column.

    Example:
        >>> ring = Ring(Control(10), capacity=10)
        >>> claim = ring.claim(4)
        >>> ring.readable, len(list(ring.under_way()))
        (0, 1)
        >>> ring.publish(claim, frames=4)
        >>> ring.readable, ring.oldest, ring.written
        (4, 0, 4)
    """

    def __init__(self, control: Control, capacity: int) -> None:
        self.capacity = capacity
        self.control = control
        self.origins = Origins(control, capacity)
        self._words, self._table, self._holes = control.words, WriterTable(control), Holes(control, capacity)
        self._claims: dict[int, Claim] = {}  # by thread: what this process is writing

    def __reduce__(self) -> tuple[Any, ...]:
        return Ring, (self.control, self.capacity)

    @property
    def claimed(self) -> int:
        """Number of columns claimed so far, which is also the number of the next one."""
        return self._words[CLAIMED]

    @property
    def oldest(self) -> int:
        """The first column that has not been overwritten."""
        return window_of(self._words, self.capacity)[0]

    @property
    def window(self) -> tuple[int, int]:
        """`oldest` and `claimed` at one moment, even while others write."""
        return window_of(self._words, self.capacity)

    @property
    def written(self) -> int:
        """Number of frames written so far."""
        return self._words[WRITTEN]

    def places(self, start: int, columns: int) -> NDArray[np.int64]:
        """The places of consecutive columns, `[columns]`."""
        first = start % self.capacity
        places = np.arange(first, first + columns)
        if first + columns > self.capacity:
            places %= self.capacity
        return places

    def pieces(self, start: int, stop: int) -> Pieces:
        """The places of the columns from `start` to `stop`."""
        return pieces_of(start, stop, self.capacity)

    @property
    def readable(self) -> int:
        """Number of columns that are written and not being overwritten."""
        oldest, claimed = self.window
        ends = ((max(start, oldest), min(start + columns, claimed)) for start, columns in self.under_way())
        hidden = sum(max(0, end - start) for start, end in ends)
        return claimed - oldest - hidden

    # ------------------------------------------------------------------ writers

    def new_streams(self, count: int) -> int:
        """Reserve numbers for `count` streams, each the frames of one env in order; return the first."""
        with self.control.lock:
            first = self._words[STREAMS]
            self._words[STREAMS] = first + count
        return first

    def claim(self, columns: int, prepare: Callable[[int], None] | None = None) -> Claim:
        """Claim the next columns; wait for a writer that is still busy with data a whole round older.

        A long wait warns with the name of that writer: a process that is stopped in the middle of a write may resume.

        Args:
            columns: number of columns, at most `capacity`.
            prepare: called with the number of places in use after the write; nothing is claimed if it raises.

        Raises:
            CallOrderError: this process may not write.
            RuntimeError: all write slots are in use.
        """
        self._refuse()
        self.give_up_broken()
        wait: Wait | None = None
        while True:
            with self.control.lock:
                start = self._words[CLAIMED]
                slow = self._slow_writer(start + columns) if self._words[BUSY] else None
                if slow is None:
                    if prepare is not None:
                        prepare(min(self.capacity, start % self.capacity + columns))
                    return self._enter(start, columns)
            wait = wait or Wait(partial(self._table.described, slow))
            wait.rest()

    def _refuse(self) -> None:
        if self.control.refusal:
            raise CallOrderError(self.control.refusal)

    def _slow_writer(self, end: int) -> int | None:
        """The entry of a writer that is still busy with columns that columns before `end` would overwrite."""
        overwritten, claimed, entries = end - self.capacity, self._words[CLAIMED], self._table.entries()
        self._words[BUSY] = len(entries)  # a writer that was killed may not have counted itself
        for entry, start, _ in entries:
            if start < overwritten or start >= claimed:  # >=: it was killed while it claimed
                if start < claimed and self._table.is_alive(entry):
                    return entry
                self._make_hole(entry)
        return None

    def _enter(self, start: int, columns: int) -> Claim:
        words, entry = self._words, self._free_entry()
        claim = self._claims[get_ident()] = Claim(start, columns, entry)
        self._table.enter(entry, start, columns)
        words[CLAIMED] = start + columns
        if words[BROKEN]:
            self._holes.fill(self.pieces(start, start + columns))
        return claim

    def _free_entry(self) -> int:
        """A free entry; entries of dead writers are freed if there is no other."""
        table = self._table
        if (free := table.free()) is not None:
            return free
        for entry in range(len(table)):
            if not table.is_alive(entry):
                self._make_hole(entry)
        if (free := table.free()) is not None:
            return free
        raise RuntimeError(f"replay buffer: all {len(table)} concurrent write slots are in use")

    def _make_hole(self, entry: int) -> None:
        """Turn the columns of an unfinished write into a hole and free its entry; with the lock held.

        In this order, so that a reader sees the entry or the hole.
        """
        words, (start, columns) = self._words, self._table.columns(entry)
        first, end = max(start, words[CLAIMED] - self.capacity), min(start + columns, words[CLAIMED])
        if first < end:
            self._holes.make(self.pieces(first, end))
        self._table.leave(entry)

    def publish(self, claim: Claim, frames: int) -> None:
        """Make claimed columns readable.

        Args:
            claim: the columns.
            frames: number of frames written to them.
        """
        with self.control.lock:
            self._table.leave(claim.entry)
            if self.control.tally is not None:
                self.control.tally[0] += frames
            self._words[WRITTEN] += frames
        self._claims.pop(get_ident(), None)

    def give_up(self, claim: Claim) -> None:
        """Leave claimed columns unwritten; they will not be read."""
        with self.control.lock:
            if self._table.is_own(claim.entry, claim.start, claim.columns):
                self._make_hole(claim.entry)
        self._claims.pop(get_ident(), None)

    def give_up_broken(self) -> None:
        """Give up a write of this thread that an exception interrupted; the thread must not be writing now."""
        claim = self._claims.get(get_ident())
        if claim is not None:
            self.give_up(claim)

    def count(self, frames: int) -> None:
        """Count frames that replaced others."""
        with self.control.lock:
            self._words[WRITTEN] += frames

    def under_way(self) -> Iterator[tuple[int, int]]:
        """First column and number of columns of each write that is not published, unfinished ones included."""
        words = self._words
        if words[BUSY]:  # before the holes: an entry may become a hole
            yield from [(start, columns) for _, start, columns in self._table.entries()]
        if words[BROKEN]:
            yield from self._holes.held()

    @property
    def settled(self) -> int:
        """The first column that a living writer is writing, or else `claimed`."""
        claimed = self.claimed
        if not self._words[BUSY]:
            return claimed
        self.give_up_broken()
        alive = [start for entry, start, _ in self._table.entries() if self._table.is_alive(entry)]
        return min((start for start in alive if start < claimed), default=claimed)

    @property
    def is_being_written(self) -> bool:
        """Whether a living writer is writing now."""
        return self.settled < self.claimed

    def empty(self, *, forget_written: bool = True) -> None:
        """Restart at the first place; everything written so far becomes unreadable."""
        with self.control.lock:
            start = -(-self._words[CLAIMED] // self.capacity) * self.capacity
            self._words[CLAIMED] = self._words[FLOOR] = start
            if forget_written:
                self._words[WRITTEN] = 0

    @contextmanager
    def editing(self, replaced: NDArray[np.int64] | None = None) -> Generator[None]:
        """A context in which the caller changes frames in place; concurrent readers read again.

        Args:
            replaced: places of frames that are replaced by others.
        """
        self._refuse()
        replaces = replaced is not None and len(replaced) > 0
        with self.control.lock:
            self._words[EDITS] |= 1
            try:
                if replaced is not None:
                    self.origins.mark_replaced(replaced)
                yield
            finally:
                self._words[EDITS] += 1 + REPLACEMENT * replaces

    @contextmanager
    def replacing(self) -> Generator[None]:
        """A context in which the caller loads a state, and no process writes.

        Raises:
            CallOrderError: a process is writing.
        """
        with self.editing():
            self.require_unwritten()
            yield

    def require_unwritten(self) -> None:
        """Raise CallOrderError if a process is writing."""
        if self.is_being_written:
            raise CallOrderError(
                "replay buffer: expected no process to write while it is loaded; pause or stop the collector first"
            )

    # ------------------------------------------------------------------ readers

    def begin_reading(self) -> Reading:
        """The state of the ring before frames are taken."""
        words = self._words
        claimed = words[CLAIMED]
        return Reading(claimed, words[EDITS], tuple(self.under_way()) if words[BUSY] or words[BROKEN] else ())

    def is_untouched(self, reading: Reading) -> bool:
        """Whether no write was in progress when the reader started, and none has started since."""
        claimed, edits, writing = reading
        return not writing and self._words[CLAIMED] == claimed and self._words[EDITS] == edits and not edits & 1

    def is_edited(self, reading: Reading) -> bool:
        """Whether frames were being changed in place when the reader started, or have been changed since."""
        return bool(reading.edits & 1) or self._words[EDITS] != reading.edits

    def touched(self, places: NDArray[np.int64], reading: Reading) -> NDArray[np.bool_]:
        """Which places `[...]` may have been written while they were read, as a mask `[...]`.

        Args:
            places: columns from 0 to `capacity`.
            reading: the result of `begin_reading` before the frames were taken.
        """
        last = self._words[CLAIMED] - 1
        return reading.touched(last - (last - places) % self.capacity)

    def whole(self) -> slice | NDArray[np.int64]:
        """The places of columns that are written and not being overwritten, in ascending order.

        The answer stays true while the lock is held.

        Returns:
            A slice if they are contiguous, else each place, `[n]`.
        """
        oldest, claimed = self.window  # read before the writes, so that each column before `claimed` is published or among them
        if not any(start < claimed and start + columns > oldest for start, columns in self.under_way()):
            return slice(0, claimed - oldest)
        filled = self.filled(oldest, claimed)
        places = np.sort(np.arange(oldest, claimed)[filled] % self.capacity)
        if not len(places):
            return slice(0, 0)
        first, last = int(places[0]), int(places[-1])
        return slice(first, last + 1) if last - first < len(places) else places

    def filled(self, start: int, end: int, *lead: int) -> NDArray[np.bool_]:
        """Which of the columns from `start` to `end` are published, `[*lead, n]`."""
        filled = np.empty((*lead, end - start), np.bool_)
        filled.fill(True)  # np.ones takes four times as long
        for first, columns in self.under_way():
            filled[..., max(0, first - start) : max(0, first + columns - start)] = False
        return filled
