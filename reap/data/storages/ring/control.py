"""`Control`: the numbers that coordinate readers and writers of a buffer, in memory of one process or shared by several.

    words      claimed | written | floor | streams | busy | edits | ... (see the places below)
    writers    one entry for each write in progress: the process and its columns
    origins    for each column, the stream that wrote it, and whether a write started there; or that its write was aborted
    schema     the schema of the first writer's data, for the same layout in all processes

Words are read without a lock: one aligned word each. They are written with the lock held.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reap.errors import SpecMismatch
from reap.keys import Key
from reap.recording.layout import Block, Field, Layout
from reap.system.forks import Forked, ForkedLocks
from reap.system.handles import Handle
from reap.system.locks import ProcessLock

CLAIMED, WRITTEN, FLOOR, STREAMS, BUSY, EDITS, SCHEMA_SIZE, TRANSFORMS, BROKEN, RESERVED = range(10)
"""Indices of the words: columns claimed so far; frames written so far; the first column that counts; streams so far; entries in
use; twice the number of in-place changes, odd during one; bytes of the schema; the first write's decision about transforms;
aborted writes without an entry; number of columns for which disk space is reserved."""

WORDS = 16

HOLE = -1
"""The origin of a column whose write was aborted."""

REPLACEMENT = 1 << 32
"""Added to the count of in-place changes by one that replaces frames by others."""

REPLACED = 1 << 30
"""Set in the origin of a frame that replaced another. After the columns of the first row, the table has this
bit for the places of the others."""

WRITERS = 256
"""Maximum number of concurrent writes."""

ORIGIN_BYTES = 4
"""Number of bytes noted for each column."""

PID, BIRTH, START, COUNT = range(4)
"""Fields of a writer's entry: its process, the start time of that, its first column, and the number of columns; 0 if free."""

NOBODY = -1
"""The process of an entry whose writer gave up."""

SCHEMA_BYTES = 1 << 18

_forked = ForkedLocks()

_private: Forked[Control] = Forked(lambda control: control.abandon())

_WORDS, _WRITERS, _SCHEMA, _ORIGINS = ("words",), ("writers",), ("schema",), ("origins",)


class Control:
    """Words and tables about the columns of a buffer.

    Args:
        columns: maximum number of columns.
        make_block: makes their memory.

    Attributes:
        columns: maximum number of columns.
        words: see the indices above.
        writers: `int64[WRITERS, 4]`.
        origins: `int32[columns]`: twice the number of the stream, plus one if a write started there; see `REPLACED`; or HOLE.
        lock: excludes other writers.
        refusal: the reason why nothing can be written; empty if writes are allowed.
        tally: its first number counts the frames that this process publishes; None for no count.
    """

    refusal = ""
    tally: memoryview[int] | None = None

    def __init__(self, columns: int, make_block: Callable[[Layout], Block] = Block.private) -> None:
        fields: dict[Key, Field] = {
            _WORDS: Field((WORDS,), torch.int64),
            _WRITERS: Field((WRITERS, 4), torch.int64),
            _SCHEMA: Field((SCHEMA_BYTES,), torch.uint8),
            _ORIGINS: Field((columns,), torch.int32),
        }
        self.columns = self._in_block = columns
        self.block = block = make_block(Layout(fields))
        self.words: memoryview[int] = block.memory.data[: 8 * WORDS].cast("q")
        self.writers: NDArray[np.int64] = block.array(_WRITERS)
        self.origins: NDArray[np.int32] = block.array(_ORIGINS)
        self._schema: NDArray[np.uint8] = block.array(_SCHEMA)
        if block.fd is None:
            self.lock: Any = _forked.add(RLock())
            _private.add(self)
        else:
            self.lock = ProcessLock(block.fd)

    @property
    def is_shared(self) -> bool:
        """Whether other processes can map it."""
        return self.block.fd is not None

    def shared(self) -> Control:
        """The same in memory that other processes can map; itself if it already is."""
        if self.is_shared:
            return self
        twin = Control(self.columns, Block.shared)
        twin.block.memory[:] = self.block.memory
        return twin

    @property
    def schema(self) -> Any:
        """The schema that the first writer noted; None before the first write."""
        size = self.words[SCHEMA_SIZE]
        return pickle.loads(self._schema[:size].tobytes()) if size else None

    def note_schema(self, schema: Any) -> None:
        """Store the schema of the data for other processes; with the lock held.

        Raises:
            MemoryError: it is too long.
        """
        noted = pickle.dumps(schema)
        if len(noted) > SCHEMA_BYTES:
            raise MemoryError(f"the keys of a buffer: expected at most {SCHEMA_BYTES} bytes for their names, got {len(noted)}")
        self._schema[: len(noted)] = np.frombuffer(noted, np.uint8)
        self.words[SCHEMA_SIZE] = len(noted)

    def grow(self, columns: int) -> None:
        """Make room for more columns, in memory of this process; with the lock held."""
        origins = np.zeros(columns, np.int32)
        origins[: self.columns] = self.origins
        self.origins, self.columns = origins, columns

    def abandon(self) -> None:
        """Count unfinished writes as aborted, since no writer knows this copy."""
        self.writers[self.writers[:, COUNT] > 0, PID] = NOBODY

    def state(self, places: int) -> dict[str, Any]:
        """The numbers as plain data; with the lock held. Unfinished writes count as aborted.

        Args:
            places: number of places whose origin is kept.
        """
        words, writers = self.words, self.writers
        begun = writers[(writers[:, COUNT] > 0) & (writers[:, START] < words[CLAIMED])]
        return {
            "claimed": words[CLAIMED],
            "floor": words[FLOOR],
            "written": words[WRITTEN],
            "transforms": words[TRANSFORMS],
            "writing": begun[:, [START, COUNT]].tolist(),
            "origins": torch.from_numpy(self.origins[:places].copy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`; with the lock held.

        Streams are renumbered compactly, because numbers that were assigned here may still be in use.
        """
        words, given_out, origins = self.words, self.words[STREAMS], state["origins"].numpy()
        if len(origins) > self.columns:
            self.grow(len(origins))
        own = self.origins[: len(origins)]
        self.origins[len(origins) :] = 0
        streams, numbers = np.unique((origins & ~REPLACED) >> 1, return_inverse=True)
        np.add(2 * (given_out + numbers), origins & (1 | REPLACED), out=own, casting="unsafe")
        own[origins == HOLE] = HOLE
        words[EDITS] += REPLACEMENT * bool((origins[origins != HOLE] & REPLACED).any())
        words[BROKEN] += 1
        self.writers[:] = 0
        for entry, (start, count) in enumerate(state["writing"]):
            self.writers[entry] = NOBODY, 0, start, count
        words[BUSY] = len(state["writing"])
        words[STREAMS] = given_out + len(streams)
        words[FLOOR], words[WRITTEN], words[TRANSFORMS] = state["floor"], state["written"], state["transforms"]
        words[CLAIMED] = state["claimed"]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.block.fd is None:
            grown = self.origins if self.columns > self._in_block else None
            return _private_control, (self._in_block, self.block.memory.tobytes(), grown)
        return _attached_control, (self.columns, Handle.of(self.block.fd))


def checked_state(state: Mapping[str, Any], places: int, capacity: int) -> int:
    """Number of columns in use according to a `Control`'s state, which is checked completely.

    Args:
        state: its `state`.
        places: maximum number of origins.
        capacity: columns of the ring.

    Raises:
        SpecMismatch: not the state of a ring of this size.
    """
    claimed, floor, origins, writing = (state[name] for name in ("claimed", "floor", "origins", "writing"))
    numbers = [claimed, floor, state["written"], state["transforms"], *(number for write in writing for number in write)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise SpecMismatch(f"replay buffer: expected the counts of a ring, got {numbers}; nothing was changed")
    columns = claimed - max(floor, claimed - capacity)
    if not (floor <= claimed and (columns == capacity or floor % capacity == 0)):
        raise SpecMismatch(f"replay buffer: expected the counts of a ring, got {floor} to {claimed}; nothing was changed")
    is_table = origins.dtype == torch.int32 and origins.ndim == 1 and len(origins) <= places and (origins >= HOLE).all()
    fits = all(start < claimed and 0 < count <= capacity for start, count in writing)
    if not (is_table and fits and len(writing) <= WRITERS):
        raise SpecMismatch("replay buffer: expected the tables of a ring, got others; nothing was changed")
    return columns


def _private_control(columns: int, memory: bytes, grown: NDArray[np.int32] | None) -> Control:
    control = Control(columns)
    control.block.memory[:] = np.frombuffer(memory, np.uint8)
    if grown is not None:
        control.origins, control.columns = grown, len(grown)
    control.abandon()
    return control


def _attached_control(columns: int, handle: Handle) -> Control:
    return Control(columns, lambda layout: Block.shared(layout, handle.opened("replay buffer")))
