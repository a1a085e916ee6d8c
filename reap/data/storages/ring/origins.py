"""`Origins`: the stream that wrote each column, the starts of writes, and frames that replaced others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reap.data.storages.ring.columns import Pieces, columns_of
from reap.data.storages.ring.control import EDITS, REPLACED, REPLACEMENT, Control


class Origins:
    """The origins of the columns of a ring.

    Args:
        control: the shared counters and tables.
        capacity: number of columns.
    """

    def __init__(self, control: Control, capacity: int) -> None:
        self._control, self._words, self._capacity = control, control.words, capacity

    def of(self, pieces: Pieces) -> NDArray[np.int32]:
        """The origins of these columns, `[n]`; see `Control`."""
        return columns_of(self._control.origins[None], pieces)[0]

    def replaced(self, pieces: Pieces, rows: int) -> NDArray[np.bool_] | None:
        """Which frames of these columns replaced others, `[rows, n]`; None if none did."""
        if self._words[EDITS] < REPLACEMENT:
            return None
        marks = columns_of(self._control.origins[: rows * self._capacity].reshape(rows, -1), pieces) & REPLACED
        return marks != 0 if marks.any() else None

    def note(self, first: int, end: int, origins: Any, rows: int) -> None:
        """Set the origins of the columns that are written to these places."""
        self._control.origins[first:end] = origins
        if rows > 1 and self._words[EDITS] >= REPLACEMENT:
            self._control.origins[self._capacity : rows * self._capacity].reshape(rows - 1, -1)[:, first:end] = 0

    def mark_replaced(self, places: NDArray[np.int64]) -> None:
        """Note that the frames at these places replace others."""
        self._control.origins[places] |= REPLACED
