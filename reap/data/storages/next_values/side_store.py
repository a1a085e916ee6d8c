"""`SideStore`: additional values of a few frames, in slots whose memory is allocated on use.

    slots      for each place, the number of its slot plus one; 0 for none
    returned   a stack of freed slots; they are reused first, so that little memory is touched
    counts     slots ever used | height of the stack | slots for which there is memory
    values     [places, *item] under each key

All of it can be in shared memory. It is changed with the ring's lock held, in an order that at worst loses slots when a
process is killed midway; lost slots are found again when no others are left.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.leaf import indexable
from reap.keys import Key
from reap.recording.layout import Block, Field, Layout, private_memory
from reap.system.disk import reserve
from reap.system.endings import at_end
from reap.system.memory import Bytes, readable

Places = NDArray[np.int64]

TAKEN, RETURNED, RESERVED = range(3)

RESERVE_BYTES = 16 << 20
"""Number of bytes reserved at a time."""

_COUNTS, _SLOTS, _STACK = ("counts",), ("slots",), ("returned",)


class Sparse:
    """Zeroed memory whose pages are allocated when written.

    Args:
        nbytes: its size.
        left: returns the number of bytes still available, and a description of what sets that bound.
        fd: the descriptor of the file or shared memory that contains it; None for memory of this process.
        start: its offset there.
    """

    def __init__(self, nbytes: int, left: Callable[[], tuple[float, str]], fd: int | None = None, start: int = 0) -> None:
        self._left, self._start = left, start
        self._fd = None if fd is None else os.dup(fd)
        if self._fd is None:
            self.memory: Bytes = private_memory(nbytes)
            return
        at_end(self, os.close, self._fd)
        if os.fstat(self._fd).st_size < start + nbytes:
            os.ftruncate(self._fd, start + nbytes)
        mapping: Any = mmap.mmap(self._fd, nbytes, offset=start)
        self.memory = np.frombuffer(mapping, np.uint8)

    def take(self, start: int, nbytes: int) -> None:
        """Reserve memory for a part of it.

        Raises:
            MemoryError: there is not enough memory.
            DiskFull: there is not enough disk space.
        """
        left, bound = self._left()
        if nbytes > left:
            raise MemoryError(
                f"replay buffer: observations_once: {readable(nbytes)} more are needed for values under 'next' that are not "
                f"those of the following frame, {bound} has {readable(left)} left. Few frames should need it: ends of episodes "
                "and of writes. After MultiStep all do, and rows that are flattened into one dimension step by step: take "
                "observations_once=False or ndim=2 there, or a smaller max_size"
            )
        if self._fd is not None:
            reserve(self._fd, self._start + start, nbytes, "replay buffer: observations_once: values under 'next'")


class SideStore:
    """Values of those frames that have a slot.

    Args:
        fields: shape and dtype of the values.
        places: maximum number of frames.
        make: makes the memory.

    Attributes:
        counts: number of slots ever used, height of the stack, and number of slots for which there is memory.
    """

    def __init__(self, fields: Mapping[Key, Field], places: int, make: Callable[[int], Sparse]) -> None:
        tables = {
            _COUNTS: Field((3,), torch.int64),
            _SLOTS: Field((places,), torch.int32),
            _STACK: Field((places,), torch.int32),
        }
        layout = Layout({**tables, **{key: field.lead(places) for key, field in fields.items()}})
        self._sparse = make(layout.nbytes)
        block = Block(layout, self._sparse.memory)
        self._fields, self._layout, self._places = dict(fields), layout, places
        self.counts: NDArray[np.int64] = block.array(_COUNTS)
        self._slots: NDArray[np.int32] = block.array(_SLOTS)
        self._stack: NDArray[np.int32] = block.array(_STACK)
        self._item = sum(field.nbytes for field in fields.values())
        self._values: dict[Key, Tensor] = {key: block.tensor(key) for key in fields}
        if not self.counts[RESERVED]:
            self._sparse.take(0, self.tables_nbytes)

    @property
    def tables_nbytes(self) -> int:
        """Number of bytes of everything but the values."""
        return self._layout.offset(next(iter(self._fields)))

    @property
    def nbytes(self) -> int:
        """Number of bytes ever written: the tables, and the slots ever used."""
        return self.tables_nbytes + int(self.counts[TAKEN]) * self._item

    def slots(self, places: Places) -> NDArray[np.int32]:
        """The slots of places `[n]`; -1 for those without."""
        return self._slots[places] - 1

    def get(self, key: Key, slots: NDArray[np.int32]) -> Tensor:
        """Copies of the values in slots, `[n, *item]`."""
        return self._values[key].index_select(0, torch.from_numpy(slots))

    def set(self, key: Key, slots: NDArray[np.int32], values: Tensor) -> None:
        """Put values `[n, *item]` into slots."""
        indexable(self._values[key]).index_copy_(0, torch.from_numpy(slots).long(), indexable(values.to("cpu")))

    def reserve(self, count: int) -> None:
        """Reserve memory for `count` more slots; with the lock held.

        Raises:
            MemoryError: there is none.
        """
        taken, returned, reserved = map(int, self.counts)
        missing = count - returned - (reserved - taken)
        step = min(max(missing, RESERVE_BYTES // self._item), self._places - reserved)
        if missing <= 0 or step <= 0:
            return
        for key, field in self._fields.items():
            self._sparse.take(self._layout.offset(key) + reserved * field.nbytes, step * field.nbytes)
        self.counts[RESERVED] = reserved + step

    def take(self, places: Places) -> NDArray[np.int32]:
        """Allocate slots for places that have none, `[n]`; with the lock held.

        Raises:
            MemoryError: there is not enough memory.
        """
        count = len(places)
        if count > self.counts[RETURNED] + self._places - self.counts[TAKEN]:
            self._find_lost()
        self.reserve(count)
        taken, returned = int(self.counts[TAKEN]), int(self.counts[RETURNED])
        again = min(count, returned)
        fresh = np.arange(taken, taken + count - again, dtype=np.int32)
        slots = np.concatenate([self._stack[returned - again : returned], fresh])
        self.counts[:2] = taken + count - again, returned - again
        self._slots[places] = slots + 1
        return slots

    def give_back(self, places: Places) -> None:
        """Free the slots of places; with the lock held."""
        slots = self.slots(places)
        slots = slots[slots >= 0]
        if not len(slots):
            return
        self._slots[places] = 0
        returned = int(self.counts[RETURNED])
        self._stack[returned : returned + len(slots)] = slots
        self.counts[RETURNED] = returned + len(slots)

    def empty(self) -> None:
        """Free all slots; with the lock held."""
        self.give_back(np.arange(self._places))

    def _find_lost(self) -> None:
        """Free all slots that belong to no place: some were lost with a killed process."""
        unused = np.ones(self._places, np.bool_)
        unused[self._slots[self._slots > 0] - 1] = False
        lost = np.flatnonzero(unused)[::-1]
        self._stack[: len(lost)] = lost
        self.counts[:2] = self._places, len(lost)

    def copy_from(self, other: SideStore) -> None:
        """Copy another store of the same fields."""
        taken = int(other.counts[TAKEN])
        self.reserve(taken)
        self.counts[:2] = other.counts[:2]
        self._slots[:] = other._slots
        self._stack[:] = other._stack
        for key, values in self._values.items():
            values[:taken] = other._values[key][:taken]

    def __getstate__(self) -> dict[str, Any]:
        taken, returned = map(int, self.counts[:2])
        return {
            "fields": self._fields,
            "places": self._places,
            "left": self._sparse._left,  # pyright: ignore[reportPrivateUsage]
            "slots": self._slots.copy(),
            "stack": self._stack[:returned].copy(),
            "values": {key: values[:taken].clone() for key, values in self._values.items()},
            "taken": taken,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        left = state["left"]
        SideStore.__init__(self, state["fields"], state["places"], lambda nbytes: Sparse(nbytes, left))
        self.reserve(state["taken"])
        self._slots[:] = state["slots"]
        self._stack[: len(state["stack"])] = state["stack"]
        self.counts[:2] = state["taken"], len(state["stack"])
        for key, values in self._values.items():
            values[: state["taken"]] = state["values"][key]
