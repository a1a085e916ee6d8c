"""`Ring`: which columns of a buffer are written, by whom, and which can be read.

    claim    under the lock: the next columns are this writer's      claimed += n
    copy     without a lock: several writers at the same time
    publish  under the lock, last: the columns can be read           written += frames

Columns are counted on for ever; column c lies at c % capacity. A reader notes how far the ring was, takes its frames, and looks
again: what lay in columns that somebody claimed meanwhile, or was writing before, is drawn again. The columns of a write that
was broken off become holes: they are never read, and are free when the ring comes round to them. A writer that is killed leaves
its entry in the table behind, which is a hole as soon as somebody needs the entry or the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reap.data.storages.ring.control import (
    BROKEN,
    BUSY,
    CLAIMED,
    EDITS,
    FLOOR,
    REPLACED,
    REPLACEMENT,
    STREAMS,
    WRITTEN,
    Control,
)
from reap.data.storages.ring.holes import Holes
from reap.data.storages.ring.reading import Reading
from reap.data.storages.ring.writer_table import WriterTable
from reap.errors import CallOrderError
from reap.recording.layout import Array
from reap.system.waits import Wait

Pieces = Sequence[tuple[int, int]]
"""Where columns lie: from one place to another, in two pieces where they go round."""


class Claim(NamedTuple):
    """Columns that a writer may write.

    Attributes:
        start: the first of them, counted for ever.
        columns: how many.
        entry: the writer's entry in the table.
    """

    start: int
    columns: int
    entry: int


def columns_of(array: Array, pieces: Pieces) -> Array:
    """Columns of an array `[rows, columns, ...]`: a view if they lie in one piece."""
    parts = [array[:, first:end] for first, end in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


class Ring:
    """Columns written in a ring by one process or several.

    Args:
        control: the numbers that they agree by.
        capacity: columns that there is room for.

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
        self._words, self._table, self._holes = control.words, WriterTable(control), Holes(control)
        self._claims: dict[int, Claim] = {}  # by thread: what this process is writing

    def __reduce__(self) -> tuple[Any, ...]:
        return Ring, (self.control, self.capacity)

    @property
    def claimed(self) -> int:
        """Columns claimed so far: the first that nobody has claimed."""
        return self._words[CLAIMED]

    @property
    def oldest(self) -> int:
        """The first column that still holds what was written to it."""
        return self.window[0]

    @property
    def window(self) -> tuple[int, int]:
        """`oldest` and `claimed` at one moment, whoever is writing."""
        claimed = self._words[CLAIMED]
        return min(claimed, max(self._words[FLOOR], claimed - self.capacity)), claimed

    @property
    def written(self) -> int:
        """Frames written so far."""
        return self._words[WRITTEN]

    def places(self, start: int, columns: int) -> NDArray[np.int64]:
        """Where so many columns lie, from this one on, `[columns]`."""
        first = start % self.capacity
        places = np.arange(first, first + columns)
        if first + columns > self.capacity:
            places %= self.capacity
        return places

    def pieces(self, start: int, stop: int) -> Pieces:
        """Where the columns from `start` to `stop` lie."""
        first, columns = start % self.capacity, stop - start
        behind = first + columns - self.capacity
        return [(first, first + columns)] if behind <= 0 else [(first, self.capacity), (0, behind)]

    def origins(self, pieces: Pieces) -> NDArray[np.int32]:
        """Of which streams these columns are, and where writes begin; see `Control`."""
        return columns_of(self.control.origins[None], pieces)[0]

    def replaced(self, pieces: Pieces, rows: int) -> NDArray[np.bool_] | None:
        """Which frames of these columns were put in the place of others, `[rows, n]`; None if none was."""
        if self._words[EDITS] < REPLACEMENT:
            return None
        marks = columns_of(self.control.origins[: rows * self.capacity].reshape(rows, -1), pieces) & REPLACED
        return marks != 0 if marks.any() else None

    def note_origins(self, first: int, end: int, origins: Any, rows: int) -> None:
        """Note of which streams what is written from one place to another is, in the place of what was there."""
        self.control.origins[first:end] = origins
        if rows > 1 and self._words[EDITS] >= REPLACEMENT:
            self.control.origins[self.capacity : rows * self.capacity].reshape(rows - 1, -1)[:, first:end] = 0

    @property
    def readable(self) -> int:
        """Columns that hold something and are not being written."""
        oldest, claimed = self.window
        ends = ((max(start, oldest), min(start + columns, claimed)) for start, columns in self.under_way())
        hidden = sum(max(0, end - start) for start, end in ends)
        return claimed - oldest - hidden

    # ------------------------------------------------------------------ writers

    def new_streams(self, count: int) -> int:
        """The first of so many numbers for streams: what one env says, frame after frame."""
        with self.control.lock:
            first = self._words[STREAMS]
            self._words[STREAMS] = first + count
        return first

    def claim(self, columns: int, prepare: Callable[[int], None] | None = None) -> Claim:
        """Columns to write, at most `capacity`; waits for writers that are slower than the ring is long.

        A wait that takes long says for whom: a process that is stopped in the middle of a write may go on with it.

        Args:
            columns: how many.
            prepare: called with the number of places, from the first on, in which something lies then; nothing is claimed
                where it raises.

        Raises:
            CallOrderError: nothing can be written here.
            RuntimeError: there are more writers at the same time than the table has entries.
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
        """The entry of one who is still writing what lies in the place of the columns before `end`."""
        overwritten, claimed, entries = end - self.capacity, self._words[CLAIMED], self._table.entries()
        self._words[BUSY] = len(entries)  # of a writer that was killed while it counted
        for entry, start, _ in entries:
            if start < overwritten or start >= claimed:  # the latter of one that was killed while it claimed
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
        """An entry that nobody uses; those of writers that are gone are made free where there is no other."""
        table = self._table
        if (free := table.free()) is not None:
            return free
        for entry in range(len(table)):
            if not table.is_alive(entry):
                self._make_hole(entry)
        if (free := table.free()) is not None:
            return free
        raise RuntimeError(f"replay buffer: expected at most {len(table)} writes at the same time, found as many under way")

    def _make_hole(self, entry: int) -> None:
        """Have the columns of a write that was broken off never read, and its entry free; with the lock held.

        In this order: whoever does not see the entry any more sees the hole.
        """
        words, (start, columns) = self._words, self._table.columns(entry)
        first, end = max(start, words[CLAIMED] - self.capacity), min(start + columns, words[CLAIMED])
        if first < end:
            self._holes.make(self.pieces(first, end))
        self._table.leave(entry)

    def publish(self, claim: Claim, frames: int) -> None:
        """Let readers have what was written.

        Args:
            claim: the columns.
            frames: how many frames that were.
        """
        with self.control.lock:
            self._table.leave(claim.entry)
            if self.control.tally is not None:
                self.control.tally[0] += frames
            self._words[WRITTEN] += frames
        self._claims.pop(get_ident(), None)

    def give_up(self, claim: Claim) -> None:
        """Leave claimed columns unwritten: nobody will read them."""
        with self.control.lock:
            if self._table.is_own(claim.entry, claim.start, claim.columns):
                self._make_hole(claim.entry)
        self._claims.pop(get_ident(), None)

    def give_up_broken(self) -> None:
        """Give up a write of this thread that an exception broke off, wherever it came: the thread is not writing now."""
        claim = self._claims.get(get_ident())
        if claim is not None:
            self.give_up(claim)

    def count(self, frames: int) -> None:
        """Count frames that were written in the place of others."""
        with self.control.lock:
            self._words[WRITTEN] += frames

    def under_way(self) -> Iterator[tuple[int, int]]:
        """First column and number of columns of each write that is not published, also of those that were broken off."""
        words = self._words
        if words[BUSY]:  # before the holes: an entry may become one
            yield from [(start, columns) for _, start, columns in self._table.entries()]
        if words[BROKEN]:
            yield from self._holes.held(self)

    @property
    def settled(self) -> int:
        """The first column that somebody is writing, or else `claimed`; writers that are gone do not count."""
        claimed = self.claimed
        if not self._words[BUSY]:
            return claimed
        self.give_up_broken()
        alive = [start for entry, start, _ in self._table.entries() if self._table.is_alive(entry)]
        return min((start for start in alive if start < claimed), default=claimed)

    @property
    def is_being_written(self) -> bool:
        """Whether somebody is writing now."""
        return self.settled < self.claimed

    def empty(self, *, forget_written: bool = True) -> None:
        """Begin anew at the first place: nothing that was written can be read any more."""
        with self.control.lock:
            start = -(-self._words[CLAIMED] // self.capacity) * self.capacity
            self._words[CLAIMED] = self._words[FLOOR] = start
            if forget_written:
                self._words[WRITTEN] = 0

    @contextmanager
    def editing(self, replaced: NDArray[np.int64] | None = None) -> Generator[None]:
        """In the body the caller changes frames in place; readers take theirs again.

        Args:
            replaced: places where other frames come in the place of those that are there.
        """
        self._refuse()
        replaces = replaced is not None and len(replaced) > 0
        with self.control.lock:
            self._words[EDITS] |= 1
            try:
                if replaces:
                    self.control.origins[replaced] |= REPLACED
                yield
            finally:
                self._words[EDITS] += 1 + REPLACEMENT * replaces

    @contextmanager
    def replacing(self) -> Generator[None]:
        """In the body the caller puts a state in the place of all of it; nobody is writing then, and nobody begins to.

        Raises:
            CallOrderError: somebody is writing.
        """
        with self.editing():
            self.require_unwritten()
            yield

    def require_unwritten(self) -> None:
        """Raise CallOrderError while somebody writes."""
        if self.is_being_written:
            raise CallOrderError(
                "replay buffer: expected nobody to write while it is loaded; pause or stop the collector first"
            )

    # ------------------------------------------------------------------ readers

    def begin_reading(self) -> Reading:
        """How far the ring is, before frames are taken."""
        words = self._words
        claimed = words[CLAIMED]
        return Reading(claimed, words[EDITS], tuple(self.under_way()) if words[BUSY] or words[BROKEN] else ())

    def is_untouched(self, reading: Reading) -> bool:
        """Whether nothing was being written when the reader began, or was begun since."""
        claimed, edits, writing = reading
        return not writing and self._words[CLAIMED] == claimed and self._words[EDITS] == edits and not edits & 1

    def is_edited(self, reading: Reading) -> bool:
        """Whether frames were changed in place since the reader began, or while it did."""
        return bool(reading.edits & 1) or self._words[EDITS] != reading.edits

    def touched(self, places: NDArray[np.int64], reading: Reading) -> NDArray[np.bool_]:
        """Which places `[...]` are not to be trusted, as a mask `[...]`.

        Args:
            places: columns from 0 to `capacity`.
            reading: what `begin_reading` returned before the frames there were taken.
        """
        last = self._words[CLAIMED] - 1
        return reading.touched(last - (last - places) % self.capacity)

    def whole(self) -> slice | NDArray[np.int64]:
        """Where columns lie that hold something and are not being written, in the order of the places.

        Nobody begins to write, nor to change frames, while the lock is held: then it stays so.

        Returns:
            One piece if they are one, else each of them, `[n]`.
        """
        oldest, claimed = self.window  # before the writes: those of all columns before `claimed` are seen, or are published
        if not any(start < claimed and start + columns > oldest for start, columns in self.under_way()):
            return slice(0, claimed - oldest)
        filled = self.filled(oldest, claimed)
        places = np.sort(np.arange(oldest, claimed)[filled] % self.capacity)
        if not len(places):
            return slice(0, 0)
        first, last = int(places[0]), int(places[-1])
        return slice(first, last + 1) if last - first < len(places) else places

    def filled(self, start: int, end: int, *lead: int) -> NDArray[np.bool_]:
        """Which of the columns from `start` to `end` hold something, `[*lead, n]`: their writer has published them."""
        filled = np.empty((*lead, end - start), np.bool_)
        filled.fill(True)  # a quarter of what np.ones takes
        for first, columns in self.under_way():
            filled[..., max(0, first - start) : max(0, first + columns - start)] = False
        return filled
