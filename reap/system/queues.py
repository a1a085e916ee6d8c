"""`next_of`: waits for the next item of a queue, in the thread that has to handle signals."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

LOOK = 0.5
"""Seconds at the most until a signal is handled that came when a wait began."""

T = TypeVar("T")


def next_of(queue: SimpleQueue[T]) -> T:
    """Wait for the next item of a queue.

    Python handles a signal when its main thread is in Python. A signal that comes as this thread begins to wait in C, or that
    the kernel gives to another thread, does not end the wait: it would be handled once there is an item, which may never come.
    So the wait is done in slices.

    Example:
        >>> queue = SimpleQueue()
        >>> queue.put("item")
        >>> next_of(queue)
        'item'
    """
    while True:
        with suppress(Empty):
            return queue.get(timeout=LOOK)
