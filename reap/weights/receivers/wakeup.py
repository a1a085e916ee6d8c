"""`Wakeup`: wakes a waiting process, and tells it when the waking process is gone."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import finalize

from reap.errors import ClosedError

MS = 1000


class Wakeup:
    """The waking end of a pipe; a full pipe counts as rung.

    Attributes:
        out: the descriptor for the waiting end.
        close: closes both descriptors; also called when this object is dropped.
    """

    def __init__(self) -> None:
        self.out, self._into = os.pipe()
        os.set_blocking(self._into, False)
        self.close = finalize(self, close_all, (self.out, self._into))

    def ring(self) -> None:
        """Wake the other end."""
        with suppress(BlockingIOError, BrokenPipeError):  # it has been rung often enough; or nobody listens any more
            os.write(self._into, b"\0")


def wait_for(bell: int, is_there: Callable[[], bool], timeout: float | None) -> bool:
    """Wait for something that is always announced by a ring.

    Args:
        bell: the descriptor of the waiting end.
        is_there: called after each ring.
        timeout: seconds; None for no limit.

    Returns:
        Whether it is there; False after the timeout.

    Raises:
        ClosedError: it is not there, and the other end is closed or its process is gone.
    """
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    deadline = None if timeout is None else time.monotonic() + timeout
    while poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * MS):
        is_gone = not os.read(bell, 1 << 16)
        if is_there():
            return True
        if is_gone:
            raise ClosedError("the sender of these weights has shut down, or is gone")
    return False


def close_all(fds: tuple[int, ...]) -> None:
    """Close these descriptors."""
    for fd in fds:
        os.close(fd)
