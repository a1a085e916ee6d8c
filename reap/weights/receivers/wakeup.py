"""`Wakeup`: wakes a process that waits, and tells it when the process that rings is gone."""

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
    """The end that rings: a pipe, which counts as rung however full it is.

    Attributes:
        out: the descriptor for the end that waits.
        close: gives both descriptors back; done too when the bell is dropped.
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
    """Wait until something is there that is always followed by a ring.

    Args:
        bell: the descriptor of the end that waits.
        is_there: asked after each ring.
        timeout: seconds; endless if None.

    Returns:
        Whether it is there; False if the time is over.

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
