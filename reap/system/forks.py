"""What the child of a fork gets: no thread but the one that forked, and copies of all objects, whatever others were doing.

before the fork   `ForkedLocks` are taken: nobody is in the middle of what they guard
in the parent     they are given back
in the child      too; those that could not be had are made new. Then `Forked` objects begin anew
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds that a fork waits for each lock."""


class References(Generic[T]):
    """Objects that are not kept alive. Nothing is called when they go: what a signal's handler raises would be lost there."""

    def __init__(self) -> None:
        self._references: list[ref[T]] = []
        self._room = 64

    def add(self, one: T) -> None:
        """Have this one too."""
        self._references.append(ref(one))
        if len(self._references) > self._room:
            self._references = [reference for reference in self._references if reference() is not None]
            self._room = 2 * len(self._references) + 64

    def alive(self) -> list[T]:
        """Those that there are still."""
        return [one for reference in self._references if (one := reference()) is not None]


class ForkedLocks:
    """Locks of one kind. A kind that is taken with another one held is to be made before that one."""

    def __init__(self) -> None:
        self._locks: References[Any] = References()
        self._fork = threading.local()
        # What is registered last is called first before a fork: the outer locks are taken before the inner ones.
        os.register_at_fork(before=self._take, after_in_parent=self._give_back, after_in_child=self._renew)

    def add(self, lock: Any) -> Any:
        """Let forks take this lock, one of `threading`'s; returns it."""
        self._locks.add(lock)
        return lock

    def _take(self) -> None:
        self._fork.taken = [lock for lock in self._locks.alive() if lock.acquire(timeout=PATIENCE)]

    def _give_back(self) -> None:
        for lock in self._fork.taken:
            lock.release()
        self._fork.taken = []

    def _renew(self) -> None:
        taken = {id(lock) for lock in self._fork.taken}
        self._give_back()
        for lock in self._locks.alive():
            if id(lock) not in taken:
                lock._at_fork_reinit()


class Forked(Generic[T]):
    """Objects that are no longer what they were in a child.

    Args:
        begin_anew: called with each of them there.
    """

    def __init__(self, begin_anew: Callable[[T], None]) -> None:
        self._objects: References[T] = References()
        self._begin_anew = begin_anew
        os.register_at_fork(after_in_child=self._begin_all)

    def add(self, one: T) -> None:
        """Begin this one anew in children."""
        self._objects.add(one)

    def _begin_all(self) -> None:
        for one in self._objects.alive():
            self._begin_anew(one)
