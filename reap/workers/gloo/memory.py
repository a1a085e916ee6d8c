"""`Memory`: where arriving values are put, used again when nobody holds a value any more.

    take(n) --> array --> a value that was unpickled over it --> dropped --> the same memory, for the next

Fresh memory of some megabytes costs as much time as the transfer: the kernel has to clear it page by page.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reap.system.endings import Numbered, numbered

Bytes = NDArray[np.uint8]

SMALL = 1 << 16
"""Bytes below which memory is fresh each time: it costs little."""

KEPT = 3
"""Pieces that are kept for the next value: one arrives, one waits, one is read."""


class Memory:
    """Pieces of memory for one thread that receives.

    Example:
        >>> memory = Memory()
        >>> array = memory.take(1 << 20)
        >>> address = array.ctypes.data
        >>> del array
        >>> memory.take(1 << 20).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._pieces: dict[int, Bytes] = {}
        self._lent: dict[int, Numbered[Any]] = {}
        self._ended: deque[Any] = deque()  # filled wherever an array is dropped
        self._number = 0

    def take(self, size: int) -> Bytes:
        """Memory of this size; it is not used again while the array, or what is made over its `data`, is held.

        Arrays made over the array itself do not hold it: numpy has them refer to what it refers to.
        """
        if size < SMALL:
            return np.empty(size, np.uint8)
        while self._ended:
            del self._lent[self._ended.popleft().number]
        number = self._fitting(size)
        array = self._pieces[number][:size]
        self._lent[number] = numbered(array, number, self._ended.append)
        return array

    def _fitting(self, size: int) -> int:
        """The smallest piece that is free and large enough, or a new one."""
        free = sorted((len(piece), number) for number, piece in self._pieces.items() if number not in self._lent)
        for length, number in free:
            if length >= size:
                return number
        for _, number in free[: len(free) - KEPT + 1]:
            del self._pieces[number]
        self._number += 1
        self._pieces[self._number] = np.empty(size + size // 8, np.uint8)  # the next value may be somewhat longer
        return self._number
