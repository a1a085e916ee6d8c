"""`RebuildNext` stores observations once: those under `"next"` are rebuilt from the root of the following frame.

    column        c      c+1     c+2 | c+3          columns c to c+2 are one write
    root          o0     o1      o2  | o3
    next          o1     END     o3  |              END: the last observation of an episode
    stored        -      slot    slot until o3 is written
                                                    slot: in a `SideStore`, since END is not o2, and no frame follows o2 yet

Only bytes are compared, not flags: a value that differs from the root of the following frame has a slot. The following frame
was written later, so it is overwritten later: the source of a rebuilt value lives as long as its frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reap.data.storages.bits import Mask, carried, differing
from reap.data.storages.frame_store import FrameStore
from reap.data.storages.items import Leaves
from reap.data.storages.leaf import indexable
from reap.data.storages.next_values.side_store import Places, SideStore, Sparse
from reap.data.storages.next_values.store import StoreNext
from reap.data.storages.ring.ring import Claim
from reap.keys import Key
from reap.recording.buffers import after
from reap.recording.layout import Field

SMALLEST = 9
"""Smallest value in bytes that is rebuilt: the tables of the side store take 8 for each frame."""


class RebuildNext(StoreNext):
    """Rebuilds values under `"next"` from the root of the following frame, if it has the key with the same shape and dtype.

    Attributes:
        roots: the key of the root, for each key that is rebuilt.
        side: the values that cannot be rebuilt; None before the first write, and if no key is rebuilt.
    """

    def __init__(self) -> None:
        self.roots: dict[Key, Key] = {}
        self.side: SideStore | None = None

    def fresh(self) -> RebuildNext:
        """An equal object for a storage that is still empty."""
        return RebuildNext()

    def stored_fields(self, fields: Mapping[Key, Field]) -> Mapping[Key, Field]:
        """All fields except those that are rebuilt."""
        self.roots = {after(key): key for key in carried(fields) if fields[key].nbytes >= SMALLEST}
        return {key: field for key, field in fields.items() if key not in self.roots}

    def allocate(self, fields: Mapping[Key, Field], places: int, make: Callable[[int], Sparse]) -> None:
        """Allocate the side store; see `StoreNext`."""
        if self.roots:
            self.side = SideStore({key: fields[key] for key in self.roots}, places, make)

    @property
    def nbytes(self) -> int:
        """Number of bytes in the side store."""
        return self.side.nbytes if self.side else 0

    # ------------------------------------------------------------------ writing

    def prepare(self, storage: FrameStore, leaves: Leaves, skipped: int) -> Mask:
        """Which frames `[rows, columns]` need a slot; see `StoreNext`."""
        rows, dims = storage.rows, storage.ndim
        columns = next(iter(leaves.values())).shape[dims - 1]
        mask = np.zeros((rows, columns), np.bool_)
        for key, root in self.roots.items():
            ours, roots = leaves[key].flatten(0, dims - 1), leaves[root].flatten(0, dims - 1)
            mask.reshape(-1)[:-1] |= differing(ours[:-1], roots[1:])
        mask[:, -1:] = True
        if self.side is not None:
            with storage.control.lock:
                self.side.reserve(int(mask[:, skipped:].sum()))
        return mask[:, skipped:]

    def write(self, storage: FrameStore, leaves: Leaves, claim: Claim, prepared: Mask) -> None:
        """Give slots to frames that need one, and free earlier ones that can be rebuilt now; see `StoreNext`."""
        side, capacity = self.side, storage.ring.capacity
        if side is None or not claim.columns:
            return
        columns = (claim.start + np.arange(claim.columns)) % capacity
        places = np.arange(storage.rows)[:, None] * capacity + columns
        with storage.control.lock:
            side.give_back(places.reshape(-1))
            slots = side.take(places[prepared])
        rows, at = prepared.nonzero()
        for key in self.roots:
            skipped = leaves[key].shape[storage.ndim - 1] - claim.columns
            flat = torch.from_numpy(rows * (skipped + claim.columns) + skipped + at)
            side.set(key, slots, leaves[key].flatten(0, storage.ndim - 1).index_select(0, flat.to(storage.device)))
        with storage.control.lock:
            self._join(storage, side, claim.start)

    def _join(self, storage: FrameStore, side: SideStore, start: int) -> None:
        """Free the slots of frames before a column whose values equal the roots in that column; with the lock held."""
        ring = storage.ring
        if start - 1 < ring.oldest or not ring.filled(start - 1, start).all():
            return
        first = np.arange(storage.rows) * ring.capacity
        places, following = first + (start - 1) % ring.capacity, first + start % ring.capacity
        slots = side.slots(places)
        held = slots >= 0
        if not held.any():
            return
        places, following, slots = places[held], torch.from_numpy(following[held]).to(storage.device), slots[held]
        same = np.ones(len(slots), np.bool_)
        for key, root in self.roots.items():
            same &= ~differing(side.get(key, slots), storage.leaf(root).index_select(0, following).to("cpu"))
        side.give_back(places[same])

    @contextmanager
    def editing(self, storage: FrameStore, places: Tensor, leaves: Leaves) -> Generator[None]:
        """Give slots to frames whose value changes, and to those before a frame whose root changes; see `StoreNext`."""
        side, capacity = self.side, storage.ring.capacity
        if side is None:
            yield
            return
        side.reserve(2 * len(places))
        changed = np.zeros(len(places), np.bool_)
        for root in self.roots.values():
            changed |= differing(storage.leaf(root)[places], leaves[root])
        at = places.numpy()
        before = np.unique(_moved(at[changed], -1, capacity))
        before = before[side.slots(before) < 0]
        self._keep(side, before, self._values(storage, side, torch.from_numpy(before)))
        yield
        differs = np.zeros(len(places), np.bool_)
        following = torch.from_numpy(_moved(at, 1, capacity))
        for key, root in self.roots.items():
            differs |= differing(leaves[key], storage.leaf(root)[following])
        held = differs | (side.slots(at) >= 0)
        self._keep(side, at[held], {key: leaves[key][torch.from_numpy(held)] for key in self.roots})

    def _keep(self, side: SideStore, places: Places, values: Mapping[Key, Tensor]) -> None:
        """Put values `[n, *item]` into the slots of these places, allocating missing ones; with the lock held."""
        side.take(np.unique(places[side.slots(places) < 0]))
        slots = side.slots(places)
        for key, value in values.items():
            side.set(key, slots, value)

    # ------------------------------------------------------------------ reading

    def complete(self, storage: FrameStore, places: Tensor, leaves: Leaves) -> Leaves:
        """Add the values under `"next"` to values taken from these places; see `StoreNext`."""
        if self.side is None:
            return leaves
        complete = leaves | self._values(storage, self.side, places)
        return {key: complete[key] for key in storage.keys}

    def _values(self, storage: FrameStore, side: SideStore, places: Tensor) -> dict[Key, Tensor]:
        """The values that are not stored, `[B, *item]`.

        If a slot was reassigned to another frame in the meantime, its value is read again.
        """
        at = places.cpu().numpy()
        following = torch.from_numpy(_moved(at, 1, storage.ring.capacity)).to(places.device)
        while True:
            slots = side.slots(at)
            values = {key: storage.leaf(root).index_select(0, following) for key, root in self.roots.items()}
            if len(held := (slots >= 0).nonzero()[0]):
                rows = torch.from_numpy(held).to(places.device)
                for key, value in values.items():
                    indexable(value).index_copy_(0, rows, indexable(side.get(key, slots[held]).to(places.device)))
            if (side.slots(at) == slots).all():
                return values

    def contents(self, storage: FrameStore, columns: int) -> dict[Key, Tensor]:
        """Copies of the values that are not stored, `[*rows, columns, *item]`; see `StoreNext`."""
        if self.side is None:
            return {}
        places = torch.arange(storage.rows * storage.ring.capacity).view(storage.rows, -1)[:, :columns]
        values = self._values(storage, self.side, places.reshape(-1))
        return {key: value.unflatten(0, (*storage.row_shape, columns)) for key, value in values.items()}

    def at(self, storage: FrameStore, index: Any) -> Any:
        """A copy of the frames at an index; see `StoreNext`."""
        return storage.copied(index)

    # ------------------------------------------------------------------ moving

    def load(self, storage: FrameStore, frames: Mapping[Key, Tensor], prepared: Mask, claimed: int) -> None:
        """Load the frames of another storage; see `StoreNext`. With the lock held."""
        if self.side is None:
            return
        self.side.empty()
        columns, capacity = prepared.shape[1], storage.ring.capacity
        prepared[:, (claimed - 1) % capacity : (claimed - 1) % capacity + 1] = True
        rows, at = prepared.nonzero()
        flat = torch.from_numpy(rows * columns + at)
        values = {key: frames[key].flatten(0, storage.ndim - 1)[flat] for key in self.roots}
        self._keep(self.side, rows * capacity + at, values)

    def copy_from(self, other: RebuildNext) -> None:
        """Load the side store of another such object."""
        if self.side is not None and other.side is not None:
            self.side.copy_from(other.side)


def _moved(places: Places, by: int, capacity: int) -> Places:
    """The places `by` columns later in the same rows."""
    columns = places % capacity
    return places - columns + (columns + by) % capacity
