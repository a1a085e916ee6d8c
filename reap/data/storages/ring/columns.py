"""The places of the columns of a ring: column `c`, counted from the first ever written, is at place `c % capacity`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reap.data.storages.ring.control import CLAIMED, FLOOR
from reap.recording.layout import Array

Pieces = Sequence[tuple[int, int]]
"""Ranges of places, each from the first to the one after the last; two if columns wrap around the end."""


def window_of(words: memoryview[int], capacity: int) -> tuple[int, int]:
    """The first column that has not been overwritten, and the first that is not claimed, at one moment.

    Args:
        words: the words of a `Control`.
        capacity: number of columns.
    """
    claimed = words[CLAIMED]
    return min(claimed, max(words[FLOOR], claimed - capacity)), claimed


def pieces_of(start: int, stop: int, capacity: int) -> Pieces:
    """The places of the columns from `start` to `stop`."""
    first, columns = start % capacity, stop - start
    wrapped = first + columns - capacity
    return [(first, first + columns)] if wrapped <= 0 else [(first, capacity), (0, wrapped)]


def columns_of(array: Array, pieces: Pieces) -> Array:
    """Select columns of an array `[rows, columns, ...]`: a view if they are contiguous, else a copy."""
    parts = [array[:, first:end] for first, end in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
