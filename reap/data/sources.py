"""`Sources`: those who fill a buffer in the background, and what they and its readers have to tell each other."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet


class Source(Protocol):
    """Somebody who fills a buffer in the background."""

    def raise_error(self) -> None:
        """Raise, once, what ended that."""
        ...

    def note_sampled(self, frames: int) -> None:
        """Take notice that so many frames were sampled."""
        ...


class Sources:
    """The sources of a buffer, in the process in which it is read; none of them is kept alive."""

    def __init__(self) -> None:
        self._held: WeakSet[Source] = WeakSet()

    def add(self, source: Source) -> None:
        """Have one more."""
        self._held.add(source)

    def check(self) -> None:
        """Raise what ended one of them, unless that was raised before."""
        for source in tuple(self._held):
            source.raise_error()

    def note_sampled(self, frames: int) -> None:
        """Tell them of a sample of so many frames."""
        for source in tuple(self._held):
            source.note_sampled(frames)

    def __reduce__(self) -> tuple[type[Sources], tuple[()]]:
        return Sources, ()
