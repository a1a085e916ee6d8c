"""`ProcessLock`: excludes processes, and threads, that share a piece of memory; the kernel frees it when its owner is killed.

A semaphore in that memory would stay locked forever. If the owner is killed, the data it was changing are left as they are, so
code that uses this lock must write in an order that is consistent at every point.

    ProcessLock ──┐
    ProcessLock ──┴── Description: one for each piece of memory in a process; a lock for threads, and an open file

The kernel's lock belongs to that open file (F_OFD_SETLK), not to the process: it stays when other descriptors of the memory are
closed. A fork opens its own file, because the inherited one would share the locks of its parent.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from reap.system.endings import WeakValues, at_end
from reap.system.forks import Forked, ForkedLocks
from reap.system.interrupts import deferring_interrupts, interrupts_allowed
from reap.system.native import F_OFD_SETLK, F_UNLCK, F_WRLCK, fcntl, path_of
from reap.system.waits import Wait, described

_FLOCK = struct.Struct("hhqqi0q")
"""`struct flock`: kind, where its start counts from, start, length (0: all of it), process (0, as the kernel wants it here)."""
_TAKE, _FREE = (_FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0) for kind in (F_WRLCK, F_UNLCK))

_forked_locks = ForkedLocks()
_making = ForkedLocks().add(threading.Lock())
_forked: Forked[Description] = Forked(lambda description: description.restart())

_descriptions: WeakValues[tuple[int, int], Description] = WeakValues()
"""Descriptions by device and inode, because several objects in one process may map the same memory."""


class Description:
    """The share of this process in the lock on a piece of memory.

    Args:
        fd: a descriptor of the memory.

    Attributes:
        threads: the lock for the threads of this process.
        depth: the number of times its thread has acquired it.
        fd: the descriptor of a file that is open only for the lock.
    """

    def __init__(self, fd: int) -> None:
        self.threads: Any = _forked_locks.add(threading.RLock())
        self.depth = 0
        self.fd = _opened_again(fd)
        at_end(self, os.close, self.fd)
        _forked.add(self)

    def restart(self) -> None:
        """Reopen the file under the same descriptor number, in a fork."""
        own = _opened_again(self.fd)
        os.dup2(own, self.fd, inheritable=False)
        os.close(own)
        if not self.threads._is_owned():
            self.depth = 0  # of a thread that is not here

    def try_to_take(self) -> bool:
        """Take the lock if no other process has it; return whether it was free."""
        try:
            fcntl.fcntl(self.fd, F_OFD_SETLK, _TAKE)
        except BlockingIOError:
            return False
        return True

    def holder(self) -> str:
        """Text for the process that holds the lock."""
        status = os.fstat(self.fd)
        found = next(_holders(status.st_dev, status.st_ino), None)
        return "another process, which this user may not ask" if found is None else described(found)


def _description_of(fd: int) -> Description:
    status = os.fstat(fd)
    key = status.st_dev, status.st_ino
    with _making:
        found = _descriptions.get(key)
        if found is None:
            found = _descriptions.setdefault(key, Description(fd))
    return found


class ProcessLock:
    """A kernel lock on a descriptor, combined with a lock for the threads of this process.

    It is reentrant for a thread. Ctrl-C is deferred to the end of the `with` block, because other processes would wait forever
    for a lock that was left locked. A warning names the process for which a long wait is.

    Args:
        fd: a descriptor of the memory; it may be closed later, like others of that memory.

    Attributes:
        threads: the lock for threads only.
    """

    def __init__(self, fd: int) -> None:
        self._held = _description_of(fd)
        self.threads: Any = self._held.threads
        self._deferring: list[deferring_interrupts] = []

    def __enter__(self) -> None:
        deferring = deferring_interrupts()
        deferring.__enter__()
        try:
            if not self._is_free():
                self._wait()
        except BaseException:
            deferring.__exit__()
            raise
        self._deferring.append(deferring)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        deferring = self._deferring.pop()
        self._give_back()
        deferring.__exit__()

    def _is_free(self) -> bool:
        """Acquire both locks if they are free."""
        held = self._held
        if not held.threads.acquire(blocking=False):
            return False
        if not held.depth:
            try:
                fcntl.fcntl(held.fd, F_OFD_SETLK, _TAKE)
            except OSError:
                held.threads.release()
                return False
        held.depth += 1
        return True

    def _wait(self) -> None:
        """Wait for both locks; this thread has neither. Ctrl-C may interrupt the wait."""
        held = self._held
        try:
            with interrupts_allowed():
                held.threads.acquire()
                wait = Wait(lambda: f"{held.holder()}: it has the lock of memory that it shares with this process")
                while not held.try_to_take():
                    wait.rest()
        except BaseException:
            if held.threads._is_owned():
                fcntl.fcntl(held.fd, F_OFD_SETLK, _FREE)
                held.threads.release()
            raise
        held.depth = 1

    def _give_back(self) -> None:
        held = self._held
        held.depth -= 1
        try:
            if not held.depth:
                fcntl.fcntl(held.fd, F_OFD_SETLK, _FREE)
        finally:
            held.threads.release()


def _opened_again(fd: int) -> int:
    """A descriptor of another open file of the same memory."""
    return os.open(path_of(fd), os.O_RDWR | os.O_CLOEXEC)


def _holders(device: int, inode: int) -> Iterator[int]:
    """The processes of this user that hold a lock on a file, found in the kernel's information about their open files."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            status = link.stat()
            said = link.parent.parent / "fdinfo" / link.name
            if (status.st_dev, status.st_ino) == (device, inode) and "\nlock:" in said.read_text():
                yield int(link.parts[2])
