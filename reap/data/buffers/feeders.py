"""`Feeders`: those who fill a buffer in the background, and what they and its readers have to tell each other."""

from __future__ import annotations

from typing import Protocol
from weakref import ref

from reap.data.buffers.prefetch import is_ahead


class BufferFeeder(Protocol):
    """Somebody who fills a buffer in the background."""

    @property
    def is_this_thread(self) -> bool:
        """Whether it does so in the thread that asks."""
        ...

    def raise_error(self) -> None:
        """Raise, once, what ended that."""
        ...

    def note_sampled(self, frames: int) -> None:
        """Take notice that so many frames were sampled."""
        ...


class Feeders:
    """The feeders of a buffer, in the process in which it is read; none of them is kept alive."""

    def __init__(self) -> None:
        self._held: list[ref[BufferFeeder]] = []

    def add(self, feeder: BufferFeeder) -> None:
        """Have one more, unless it is here."""
        if not any(held is feeder for held in self._alive()):
            self._held.append(ref(feeder, self._held.remove))

    def check(self) -> None:
        """Raise what ended one of them, unless that was raised before.

        Not where one of them asks, which it would end too, nor where samples are made ahead, which may be dropped unseen.
        """
        if not self._held or is_ahead():
            return
        feeders = self._alive()
        if not any(feeder.is_this_thread for feeder in feeders):
            for feeder in feeders:
                feeder.raise_error()

    def note_sampled(self, frames: int) -> None:
        """Tell them of a sample of so many frames."""
        for feeder in self._alive():
            feeder.note_sampled(frames)

    def _alive(self) -> list[BufferFeeder]:
        return [feeder for held in self._held.copy() if (feeder := held()) is not None]

    def __reduce__(self) -> tuple[type[Feeders], tuple[()]]:
        return Feeders, ()
