"""`Memory`: memory for arriving values, reused once a value is no longer referenced.

    take(n) --> array --> a value that was unpickled over it --> dropped --> reused for the next

Several megabytes of fresh memory cost as much time as the transfer, because the kernel clears them page by page.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reap.system.endings import Numbered, numbered

Bytes = NDArray[np.uint8]

SMALL = 1 << 16
"""Below this number of bytes memory is allocated afresh, which costs little."""

KEPT = 3
"""Number of blocks kept for reuse: one arriving, one waiting, one being read."""


class Memory:
    """Memory blocks for threads that receive. They share it, so that it grows with the values that wait, not with the threads.

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
        self._lock = threading.Lock()

    def take(self, size: int) -> Bytes:
        """Memory of this size; it is not reused while the array, or anything made from its `data`, is referenced.

        Arrays made from the array itself do not keep it alive: NumPy makes them refer to its base.
        """
        if size < SMALL:
            return np.empty(size, np.uint8)
        with self._lock:
            while self._ended:
                del self._lent[self._ended.popleft().number]
            number = self._fitting(size)
            array = self._pieces[number][:size]
            self._lent[number] = numbered(array, number, self._ended.append)
        return array

    def _fitting(self, size: int) -> int:
        """The smallest free block that is large enough, or a new one."""
        free = sorted((len(piece), number) for number, piece in self._pieces.items() if number not in self._lent)
        for length, number in free:
            if length >= size:
                return number
        for _, number in free[: len(free) - KEPT + 1]:
            del self._pieces[number]
        self._number += 1
        self._pieces[self._number] = np.empty(size + size // 8, np.uint8)  # the next value may be somewhat longer
        return self._number
