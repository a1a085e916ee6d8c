"""`ProcessLock`: excludes processes, and threads, that share a piece of memory; the kernel frees it when its owner is killed.

A semaphore in that memory would stay taken for ever. What the owner was changing is then as it left it: whoever uses this lock
writes in an order that leaves nothing half done.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from types import TracebackType
from typing import Any

from reap.endings import WeakValues
from reap.forks import ForkedLocks
from reap.shield import interruptible, uninterrupted

_forked = ForkedLocks()

_locks: WeakValues[tuple[int, int], Any] = WeakValues()
"""The lock of threads for each piece of shared memory, by device and inode: several objects of one process may map one."""


class ProcessLock:
    """An `fcntl` record lock on a descriptor, and with it a lock for the threads of this process.

    Ctrl-C waits for the end of the body: a lock that it left taken would have other processes wait for ever.

    The record lock belongs to the process, so that closing any descriptor of the same memory would free it: do that with
    `threads` held.

    Args:
        fd: descriptor of the memory.

    Attributes:
        threads: the lock for threads alone.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self.threads: Any = _locks.setdefault((status.st_dev, status.st_ino), _forked.add(threading.RLock()))
        self._shields: list[uninterrupted] = []

    def __enter__(self) -> None:
        shield = uninterrupted()
        shield.__enter__()
        try:
            if not self._is_free():
                self._wait()
        except BaseException:
            shield.__exit__()
            raise
        self._shields.append(shield)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shield = self._shields.pop()
        self._give_back()
        shield.__exit__()

    def _is_free(self) -> bool:
        """Take both locks, if nobody has them."""
        if not self.threads.acquire(blocking=False):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.threads.release()
            return False
        return True

    def _wait(self) -> None:
        """Wait for both locks; Ctrl-C may come meanwhile."""
        try:
            with interruptible():
                self.threads.acquire()
                _lock(self._fd)
        except BaseException:
            if self.threads._is_owned():
                self._give_back()
            raise

    def _give_back(self) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        finally:
            self.threads.release()


def _lock(fd: int) -> None:
    """Wait for the record lock."""
    while True:
        try:
            return fcntl.lockf(fd, fcntl.LOCK_EX)
        except OSError as error:
            # The kernel looks at processes: two with two threads each may seem to wait for each other.
            if error.errno != errno.EDEADLK:
                raise
            os.sched_yield()
