"""Locks and objects that survive a fork. The child gets only the forking thread, and copies of all objects in mid-use.

before the fork   `ForkedLocks` are taken, so no thread is inside a section that they guard
in the parent     they are released
in the child      likewise; locks that could not be taken are replaced. Then `Forked` objects are restarted
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import ref

from reap.system.endings import KeptReferences
from reap.system.native import at_fork

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds that a fork waits for each lock."""


class References(Generic[T]):
    """Objects that are not kept alive. No callback runs when one is freed: a signal handler's exception would be lost in it."""

    def __init__(self) -> None:
        self._references: KeptReferences[ref[T]] = KeptReferences()
        self._number = count()

    def add(self, one: T) -> None:
        """Add an object."""
        self._references.keep(next(self._number), ref(one))

    def alive(self) -> list[T]:
        """The objects that still exist."""
        return [one for reference in list(self._references.values()) if (one := reference()) is not None]


class ForkedLocks:
    """Locks of one kind. A kind that is acquired while another is held must be created before that one."""

    def __init__(self) -> None:
        self._locks: References[Any] = References()
        self._fork = threading.local()
        # The callback registered last is called first before a fork: the outer locks are taken before the inner ones.
        at_fork(before=self._take, after_in_parent=self._give_back, after_in_child=self._renew)

    def add(self, lock: Any) -> Any:
        """Make forks acquire this `threading` lock; return it."""
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
    """Objects that must be restarted in a child.

    Args:
        restart: called with each of them in the child.
    """

    def __init__(self, restart: Callable[[T], None]) -> None:
        self._objects: References[T] = References()
        self._restart = restart
        at_fork(after_in_child=self._begin_all)

    def add(self, one: T) -> None:
        """Restart this object in children."""
        self._objects.add(one)

    def _begin_all(self) -> None:
        for one in self._objects.alive():
            self._restart(one)
