"""`Feeders`: the background threads that fill a buffer, and the messages between them and its readers."""

from __future__ import annotations

from typing import Protocol
from weakref import ref

from reap.data.buffers.prefetch import is_ahead


class BufferFeeder(Protocol):
    """Fills a buffer in the background."""

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is the one that fills the buffer."""
        ...

    def raise_error(self) -> None:
        """Raise the error that ended it, once."""
        ...

    def note_sampled(self, frames: int) -> None:
        """Note that this number of frames was sampled."""
        ...


class Feeders:
    """The feeders of a buffer, in the process that reads it; they are not kept alive."""

    def __init__(self) -> None:
        self._held: list[ref[BufferFeeder]] = []

    def add(self, feeder: BufferFeeder) -> None:
        """Add a feeder, unless already added."""
        if not any(held is feeder for held in self._alive()):
            self._held.append(ref(feeder, self._held.remove))

    def check(self) -> None:
        """Raise the error that ended one of them, unless it was raised before.

        Does nothing in a feeder's own thread, which the error would end too, or in a thread that makes samples ahead, which may
        be dropped unseen.
        """
        if not self._held or is_ahead():
            return
        feeders = self._alive()
        if not any(feeder.is_this_thread for feeder in feeders):
            for feeder in feeders:
                feeder.raise_error()

    def note_sampled(self, frames: int) -> None:
        """Tell them that this number of frames was sampled."""
        for feeder in self._alive():
            feeder.note_sampled(frames)

    def _alive(self) -> list[BufferFeeder]:
        return [feeder for held in self._held.copy() if (feeder := held()) is not None]

    def __reduce__(self) -> tuple[type[Feeders], tuple[()]]:
        return Feeders, ()
