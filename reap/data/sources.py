"""`Sources`: those who fill a buffer in the background, and what they and its readers have to tell each other."""

from __future__ import annotations

from typing import Protocol
from weakref import ref

from reap.data.prefetch import is_ahead


class Source(Protocol):
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


class Sources:
    """The sources of a buffer, in the process in which it is read; none of them is kept alive."""

    def __init__(self) -> None:
        self._held: list[ref[Source]] = []

    def add(self, source: Source) -> None:
        """Have one more, unless it is here."""
        if not any(held is source for held in self._alive()):
            self._held.append(ref(source, self._held.remove))

    def check(self) -> None:
        """Raise what ended one of them, unless that was raised before.

        Not where one of them asks, which it would end too, nor where samples are made ahead, which may be dropped unseen.
        """
        if not self._held or is_ahead():
            return
        sources = self._alive()
        if not any(source.is_this_thread for source in sources):
            for source in sources:
                source.raise_error()

    def note_sampled(self, frames: int) -> None:
        """Tell them of a sample of so many frames."""
        for source in self._alive():
            source.note_sampled(frames)

    def _alive(self) -> list[Source]:
        return [source for held in self._held.copy() if (source := held()) is not None]

    def __reduce__(self) -> tuple[type[Sources], tuple[()]]:
        return Sources, ()
