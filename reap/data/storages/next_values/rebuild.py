"""`RebuildNext` stores observations once and rebuilds those under `"next"` from the frame after; `StoreNext` stores all.

    column        c      c+1     c+2 | c+3          written as one piece: c to c+2
    root          o0     o1      o2  | o3
    next          o1     END     o3  |              END: the last observation of an episode
    stored        -      slot    slot until o3 is written behind it
                                                    slot: in a `SideStore`, for END is not o2, and behind o2 lies nothing yet

Bytes decide, no flags: a value that is not that of the root behind it has a slot. The frame behind was written later, so it is
overwritten later: what a frame is rebuilt from stays as long as the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reap.data.storages.bits import Mask, carried, differing
from reap.data.storages.items import Leaves
from reap.data.storages.leaf import indexable
from reap.data.storages.next_values.side_store import Places, SideStore, Sparse
from reap.data.storages.ring.ring import Claim
from reap.keys import Key
from reap.recording.buffers import after
from reap.recording.layout import Field

if TYPE_CHECKING:
    from reap.data.storages.tensors import TensorStorage

SMALLEST = 9
"""Bytes of a value from which on it is worth it: the tables of the side store take 8 for each frame."""


class StoreNext:
    """All values are stored as they come."""

    def anew(self) -> StoreNext:
        """The same for a storage that holds nothing yet."""
        return StoreNext()

    def stored(self, fields: Mapping[Key, Field]) -> Mapping[Key, Field]:
        """The fields that are stored."""
        return fields

    def place(self, fields: Mapping[Key, Field], places: int, make: Callable[[int], Sparse]) -> None:
        """Take memory for what is kept beside.

        Args:
            fields: shape and dtype of all values.
            places: frames at the most.
            make: makes memory.
        """

    @property
    def nbytes(self) -> int:
        """Bytes that are kept beside."""
        return 0

    def ends(self, storage: TensorStorage, leaves: Leaves, skipped: int) -> Any:
        """What must be known of data before they are written.

        Args:
            storage: where to.
            leaves: `[*rows, columns, *item]`.
            skipped: first columns that are left out.

        Raises:
            MemoryError: there is no room for what must be kept beside.
        """

    def write(self, storage: TensorStorage, leaves: Leaves, claim: Claim, ends: Any) -> None:
        """Keep beside what cannot be rebuilt, after all else was written to claimed columns."""

    def taken(self, storage: TensorStorage, places: Tensor, leaves: Leaves) -> Leaves:
        """What is stored of frames at these places, made complete."""
        return leaves

    def edited(self, storage: TensorStorage, places: Tensor, leaves: Leaves) -> AbstractContextManager[None]:
        """In the body, what is stored at these places is changed to these values `[B, *item]`."""
        return nullcontext()

    def contents(self, storage: TensorStorage, columns: int) -> dict[Key, Tensor]:
        """The values that are not stored, `[*rows, columns, *item]`."""
        return {}

    def at(self, storage: TensorStorage, index: Any) -> Any:
        """What lies at an index of any kind that a tensor takes."""
        return storage.viewed(index)

    def load(self, storage: TensorStorage, frames: Mapping[Key, Tensor], ends: Any, claimed: int) -> None:
        """Hold frames of another storage, after what is stored of them was copied.

        Args:
            storage: that which loads.
            frames: `[*rows, columns, *item]` under each key, by place.
            ends: what `ends` said of them.
            claimed: columns that were claimed there.
        """

    def copy_from(self, other: Any) -> None:
        """Hold what is kept beside by another."""


class RebuildNext(StoreNext):
    """Values under `"next"` are rebuilt from the root of the frame behind, where there are such of the same shape and dtype."""

    def __init__(self) -> None:
        self.roots: dict[Key, Key] = {}
        self._side: SideStore | None = None

    def anew(self) -> RebuildNext:
        """The same for a storage that holds nothing yet."""
        return RebuildNext()

    def stored(self, fields: Mapping[Key, Field]) -> Mapping[Key, Field]:
        """The fields that are stored: all but those that are rebuilt."""
        self.roots = {after(key): key for key in carried(fields) if fields[key].nbytes >= SMALLEST}
        return {key: field for key, field in fields.items() if key not in self.roots}

    def place(self, fields: Mapping[Key, Field], places: int, make: Callable[[int], Sparse]) -> None:
        """Take memory for the side store; see `StoreNext`."""
        if self.roots:
            self._side = SideStore({key: fields[key] for key in self.roots}, places, make)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept beside."""
        return self._side.nbytes if self._side else 0

    # ------------------------------------------------------------------ writing

    def ends(self, storage: TensorStorage, leaves: Leaves, skipped: int) -> Mask:
        """Which frames `[rows, columns]` need a slot; see `StoreNext`."""
        rows, dims = storage.rows, storage.ndim
        columns = next(iter(leaves.values())).shape[dims - 1]
        mask = np.zeros((rows, columns), np.bool_)
        for key, root in self.roots.items():
            ours, behind = leaves[key].flatten(0, dims - 1), leaves[root].flatten(0, dims - 1)
            mask.reshape(-1)[:-1] |= differing(ours[:-1], behind[1:])
        mask[:, -1:] = True
        if self._side is not None:
            with storage.control.lock:
                self._side.reserve(int(mask[:, skipped:].sum()))
        return mask[:, skipped:]

    def write(self, storage: TensorStorage, leaves: Leaves, claim: Claim, ends: Mask) -> None:
        """Give slots to the frames that need one, and the last of the write before its slot back; see `StoreNext`."""
        side, capacity = self._side, storage.ring.capacity
        if side is None or not claim.columns:
            return
        columns = (claim.start + np.arange(claim.columns)) % capacity
        places = np.arange(storage.rows)[:, None] * capacity + columns
        with storage.control.lock:
            side.give_back(places.reshape(-1))
            slots = side.take(places[ends])
        rows, at = ends.nonzero()
        for key in self.roots:
            skipped = leaves[key].shape[storage.ndim - 1] - claim.columns
            flat = torch.from_numpy(rows * (skipped + claim.columns) + skipped + at)
            side.set(key, slots, leaves[key].flatten(0, storage.ndim - 1).index_select(0, flat.to(storage.device)))
        with storage.control.lock:
            self._join(storage, side, claim.start)

    def _join(self, storage: TensorStorage, side: SideStore, start: int) -> None:
        """Rebuild the frames before a column from those in it, where they are the same; with the lock held."""
        ring = storage.ring
        if start - 1 < ring.oldest or not ring.filled(start - 1, start).all():
            return
        first = np.arange(storage.rows) * ring.capacity
        places, behind = first + (start - 1) % ring.capacity, first + start % ring.capacity
        slots = side.slots(places)
        held = slots >= 0
        if not held.any():
            return
        places, behind, slots = places[held], torch.from_numpy(behind[held]).to(storage.device), slots[held]
        same = np.ones(len(slots), np.bool_)
        for key, root in self.roots.items():
            same &= ~differing(side.get(key, slots), storage.leaf(root).index_select(0, behind).to("cpu"))
        side.give_back(places[same])

    @contextmanager
    def edited(self, storage: TensorStorage, places: Tensor, leaves: Leaves) -> Generator[None]:
        """Give slots to frames whose own value changes, and to those before one whose root changes; see `StoreNext`."""
        side, capacity = self._side, storage.ring.capacity
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
        behind = torch.from_numpy(_moved(at, 1, capacity))
        for key, root in self.roots.items():
            differs |= differing(leaves[key], storage.leaf(root)[behind])
        held = differs | (side.slots(at) >= 0)
        self._keep(side, at[held], {key: leaves[key][torch.from_numpy(held)] for key in self.roots})

    def _keep(self, side: SideStore, places: Places, values: Mapping[Key, Tensor]) -> None:
        """Have values `[n, *item]` in slots of these places; with the lock held."""
        side.take(np.unique(places[side.slots(places) < 0]))
        slots = side.slots(places)
        for key, value in values.items():
            side.set(key, slots, value)

    # ------------------------------------------------------------------ reading

    def taken(self, storage: TensorStorage, places: Tensor, leaves: Leaves) -> Leaves:
        """What is stored of frames at these places, and their values under `"next"`; see `StoreNext`."""
        if self._side is None:
            return leaves
        complete = leaves | self._values(storage, self._side, places)
        return {key: complete[key] for key in storage.keys}

    def _values(self, storage: TensorStorage, side: SideStore, places: Tensor) -> dict[Key, Tensor]:
        """The values that are not stored, `[B, *item]`.

        A slot may be given back meanwhile, and be another frame's: the value is taken again then.
        """
        at = places.cpu().numpy()
        behind = torch.from_numpy(_moved(at, 1, storage.ring.capacity)).to(places.device)
        while True:
            slots = side.slots(at)
            values = {key: storage.leaf(root).index_select(0, behind) for key, root in self.roots.items()}
            if len(held := (slots >= 0).nonzero()[0]):
                rows = torch.from_numpy(held).to(places.device)
                for key, value in values.items():
                    indexable(value).index_copy_(0, rows, indexable(side.get(key, slots[held]).to(places.device)))
            if (side.slots(at) == slots).all():
                return values

    def contents(self, storage: TensorStorage, columns: int) -> dict[Key, Tensor]:
        """Copies of the values that are not stored, `[*rows, columns, *item]`; see `StoreNext`."""
        if self._side is None:
            return {}
        places = torch.arange(storage.rows * storage.ring.capacity).view(storage.rows, -1)[:, :columns]
        values = self._values(storage, self._side, places.reshape(-1))
        return {key: value.unflatten(0, (*storage.row_shape, columns)) for key, value in values.items()}

    def at(self, storage: TensorStorage, index: Any) -> Any:
        """A copy of what lies at an index; see `StoreNext`."""
        return storage.copied(index)

    # ------------------------------------------------------------------ moving

    def load(self, storage: TensorStorage, frames: Mapping[Key, Tensor], ends: Mask, claimed: int) -> None:
        """Hold frames of another storage; see `StoreNext`. With the lock held."""
        if self._side is None:
            return
        self._side.empty()
        columns, capacity = ends.shape[1], storage.ring.capacity
        ends[:, (claimed - 1) % capacity : (claimed - 1) % capacity + 1] = True
        rows, at = ends.nonzero()
        flat = torch.from_numpy(rows * columns + at)
        values = {key: frames[key].flatten(0, storage.ndim - 1)[flat] for key in self.roots}
        self._keep(self._side, rows * capacity + at, values)

    def copy_from(self, other: RebuildNext) -> None:
        """Hold what is kept beside by another."""
        if self._side is not None and other._side is not None:
            self._side.copy_from(other._side)


def _moved(places: Places, by: int, capacity: int) -> Places:
    """The places so many columns further on, in the same rows."""
    columns = places % capacity
    return places - columns + (columns + by) % capacity
