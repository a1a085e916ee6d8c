"""`Bell`: a descriptor that becomes readable once it is rung, in this process or in another one that shares it."""

from __future__ import annotations

import os
from contextlib import suppress

from reap.system.endings import at_end


class Bell:
    """An event descriptor, or a pipe if the system lacks these.

    It may be rung and closed by different threads: a ring keeps the descriptor open until it is done.

    Args:
        descriptor: the descriptor of a bell from another process, which this object then owns; None makes a new bell.

    Example:
        >>> bell = Bell()
        >>> bell.ring()
        >>> bell.clear()
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._ends: _Ends | None = _new_ends() if descriptor is None else _Ends(descriptor, descriptor)

    def fileno(self) -> int:
        """The descriptor; -1 once the bell is closed."""
        ends = self._ends
        return -1 if ends is None else ends.out

    def ring(self) -> None:
        """Make it readable; does nothing if it is closed."""
        ends = self._ends
        try:
            if ends is not None:
                os.write(ends.into, ONE)
        except BlockingIOError:
            return  # it was rung very often: it is readable

    def clear(self) -> None:
        """Make it unreadable until it rings again."""
        ends = self._ends
        with suppress(BlockingIOError):
            while ends is not None and len(os.read(ends.out, MANY)) == MANY:
                pass

    def close(self) -> None:
        """Close the descriptor; also done when the bell is dropped."""
        self._ends = None


class _Ends:
    """Descriptors that are closed when this object is dropped."""

    __slots__ = ("__weakref__", "into", "out")

    def __init__(self, out: int, into: int) -> None:
        self.out, self.into = out, into
        for end in {out, into}:
            at_end(self, os.close, end)


def _new_ends() -> _Ends:
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return _Ends(descriptor, descriptor)
    if not hasattr(os, "set_blocking"):
        raise NotImplementedError("collecting in the background needs Python 3.12 on Windows; iterate over the collector")
    ends = _Ends(*os.pipe())
    for end in (ends.out, ends.into):
        os.set_blocking(end, False)
    return ends


ONE = (1).to_bytes(8, "little")
"""The value written to an event descriptor; a pipe accepts any bytes."""

MANY = 4096
"""Number of bytes read from a pipe at once."""
