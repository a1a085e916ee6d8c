"""`Bell`: a descriptor that is readable once somebody has rung, in this process."""

from __future__ import annotations

import os
from contextlib import suppress

from reap.system.endings import at_end


class Bell:
    """An event descriptor; a pipe, where the system has no such descriptors.

    Example:
        >>> bell = Bell()
        >>> bell.ring()
        >>> bell.clear()
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._out = self._into = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        elif not hasattr(os, "set_blocking"):
            raise NotImplementedError("collecting in the background needs Python 3.12 on Windows; iterate over the collector")
        else:
            self._out, self._into = os.pipe()
            for end in (self._out, self._into):
                os.set_blocking(end, False)
        for end in {self._out, self._into}:
            at_end(self, os.close, end)

    def fileno(self) -> int:
        """The descriptor."""
        return self._out

    def ring(self) -> None:
        """Make it readable."""
        with suppress(BlockingIOError):  # it was rung very often: it is readable
            os.write(self._into, ONE)

    def clear(self) -> None:
        """Make it unreadable until it rings again."""
        with suppress(BlockingIOError):
            while len(os.read(self._out, MANY)) == MANY:
                pass


ONE = (1).to_bytes(8, "little")
"""What an event descriptor counts; a pipe takes any bytes."""

MANY = 4096
"""Bytes that are taken out of a pipe at once."""
