"""`next_of`: waits for the next item of a queue, in the thread that handles signals."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

LOOK = 0.5
"""Maximum number of seconds until a signal is handled that arrived at the start of a wait."""

T = TypeVar("T")


def next_of(queue: SimpleQueue[T]) -> T:
    """Wait for the next item of a queue.

    Python handles a signal when its main thread runs Python code. A signal that arrives just as this thread starts to wait in
    C, or that the kernel delivers to another thread, does not end the wait, so it would be handled only once there is an item,
    which may never come. So the wait is split into slices.

    Example:
        >>> queue = SimpleQueue()
        >>> queue.put("item")
        >>> next_of(queue)
        'item'
    """
    while True:
        with suppress(Empty):
            return queue.get(timeout=LOOK)
