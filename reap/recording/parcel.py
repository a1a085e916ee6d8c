"""`Parcel`: a rollout in transit: the memory of its slot, in which large values that occur twice are sent once.

    root        o0 o1 o2 | o3 o4        an episode ends after o2
    next        o1 o2 x3 | o4 x5        x3, x5: not equal to the root of the next column
    a parcel    o0 o1 o2 o3 o4, x3, x5

Equal values are found by comparing bytes, not by flags. So the receiving slot has the same bits, whatever an env or a policy
stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from reap.keys import Key
from reap.recording.buffers import SMALL, Slot, after
from reap.recording.layout import Array, Layout, numpy_dtype
from reap.system.memory import Bytes


class Parcel(NamedTuple):
    """A rollout in transit.

    Attributes:
        runs: parts of the slot's memory, without values that follow from others; not copies.
        places: for each key under `"next"`, the places (row * columns + column) where it differs from the next column's root.
        values: the values at these places.
    """

    runs: Sequence[Bytes]
    places: Mapping[Key, Array]
    values: Mapping[Key, Array]

    @property
    def nbytes(self) -> int:
        """Number of bytes in all parts."""
        return sum(part.nbytes for part in (*self.runs, *self.places.values(), *self.values.values()))


class ParcelLayout:
    """Packs and unpacks slots of one layout.

    Args:
        layout: the layout of a slot, whose fields are `[rows, columns, *value]`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        large = [key for key in layout if _is_large(layout, key)]
        self._twins = {after(key): key for key in large if layout.get(after(key)) == layout[key]}
        parts = groupby(layout, key=lambda key: key in self._twins)
        self._runs = [list(keys) for is_twin, keys in parts if not is_twin]

    def pack(self, slot: Slot) -> Parcel:
        """Pack a rollout for sending; the parcel refers to the memory of its slot."""
        places: dict[Key, Array] = {}
        values: dict[Key, Array] = {}
        for following, key in self._twins.items():
            array = slot.by_row(following)
            places[following] = found = _differing(slot.by_row(key), array)
            values[following] = array.reshape(-1, *array.shape[2:])[found]
        return Parcel([slot.block.memory[self._layout.span(keys)] for keys in self._runs], places, values)

    def unpack(self, parcel: Parcel, rows: Mapping[Key, Array]) -> None:
        """Copy a rollout into its slot.

        Args:
            parcel: the rollout.
            rows: `[rows, columns, *value]` for each key.
        """
        for keys, memory in zip(self._runs, parcel.runs, strict=True):
            start = self._layout.offset(keys[0])
            for key in keys:
                rows[key][...] = _array(memory, self._layout, key, start)
        for following, key in self._twins.items():
            array = rows[following]
            array[:, :-1] = rows[key][:, 1:]
            row, column = np.divmod(parcel.places[following], array.shape[1])
            array[row, column] = parcel.values[following]


def _is_large(layout: Layout, key: Key) -> bool:
    """Whether a frame's value is large enough to be worth a comparison."""
    field = layout[key]
    return field.nbytes >= SMALL * max(1, field.shape[0] * field.shape[1])


def _array(memory: Bytes, layout: Layout, key: Key, start: int) -> Array:
    """A field in a piece of memory that starts `start` bytes into the layout."""
    field, offset = layout[key], layout.offset(key) - start
    return np.asarray(memory)[offset : offset + field.nbytes].view(numpy_dtype(field.dtype)).reshape(field.shape)


def _differing(root: Array, following: Array) -> Array:
    """Where a value of the next step differs from that of the next column, bit for bit; always includes the last column.

    Args:
        root: `[rows, columns, *value]`.
        following: the same, one step later.
    """
    rows, columns = root.shape[:2]
    differs = np.ones((rows, columns), bool)
    for row in range(rows):  # one after the other: the temporary array of a whole slot would not stay in the cache
        differs[row, :-1] = (_words(root[row, 1:]) != _words(following[row, :-1])).any(-1)
    return np.flatnonzero(differs)


def _words(values: Array) -> Array:
    """The bytes of each column as integers, of the widest type that divides them."""
    size = math.prod(values.shape[1:]) * values.itemsize
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), size)
    return data.view(f"u{next(width for width in (8, 4, 2, 1) if size % width == 0)}")
