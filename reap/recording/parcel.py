"""`Parcel`: a rollout as it travels: the memory of its slot, where large values that are in it twice are sent once.

    root        o0 o1 o2 | o3 o4        an episode ends after o2
    next        o1 o2 x3 | o4 x5        x3, x5: all that is not in the root of the column after
    a parcel    o0 o1 o2 o3 o4, x3, x5

Equal values are found by their bytes, not by flags: whatever an env or a policy stores, the slot that it lands in has the same
bits.
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
    """A rollout as it travels.

    Attributes:
        runs: pieces of the slot's memory, without the values that follow from others; they are the slot's own, not copies.
        places: by the key of a value of the next step: where it is not that of the next column, as row * columns + column.
        values: the values there.
    """

    runs: Sequence[Bytes]
    places: Mapping[Key, Array]
    values: Mapping[Key, Array]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in (*self.runs, *self.places.values(), *self.values.values()))


class ParcelLayout:
    """How the slots of a layout are sent.

    Args:
        layout: of a slot: each field is `[rows, columns, *value]`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        large = [key for key in layout if _is_large(layout, key)]
        self._twins = {after(key): key for key in large if layout.get(after(key)) == layout[key]}
        parts = groupby(layout, key=lambda key: key in self._twins)
        self._runs = [list(keys) for is_twin, keys in parts if not is_twin]

    def pack(self, slot: Slot) -> Parcel:
        """A rollout, for the way; it refers to the memory of its slot."""
        places: dict[Key, Array] = {}
        values: dict[Key, Array] = {}
        for following, key in self._twins.items():
            array = slot.by_row(following)
            places[following] = found = _differing(slot.by_row(key), array)
            values[following] = array.reshape(-1, *array.shape[2:])[found]
        return Parcel([slot.block.memory[self._layout.span(keys)] for keys in self._runs], places, values)

    def unpack(self, parcel: Parcel, rows: Mapping[Key, Array]) -> None:
        """Copy a rollout to its place.

        Args:
            parcel: the rollout.
            rows: `[rows, columns, *value]` under each key.
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
    """Whether a frame's value is worth a comparison."""
    field = layout[key]
    return field.nbytes >= SMALL * max(1, field.shape[0] * field.shape[1])


def _array(memory: Bytes, layout: Layout, key: Key, start: int) -> Array:
    """A field in a piece of memory that begins `start` bytes into the layout."""
    field, offset = layout[key], layout.offset(key) - start
    return np.asarray(memory)[offset : offset + field.nbytes].view(numpy_dtype(field.dtype)).reshape(field.shape)


def _differing(root: Array, following: Array) -> Array:
    """Where a value of the next step is not that of the next column, bit for bit; the last column always.

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
    """The bytes of each column as integers, the widest that divide them."""
    size = math.prod(values.shape[1:]) * values.itemsize
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), size)
    return data.view(f"u{next(width for width in (8, 4, 2, 1) if size % width == 0)}")
