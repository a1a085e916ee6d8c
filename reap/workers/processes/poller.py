"""`Poller`: one epoll for the channels and status pipes of all workers of a group, and a bell that ends a wait."""

from __future__ import annotations

import os
import select
import threading

from reap.workers.processes.worker_process import WorkerProcess


class Poller:
    """What a group waits with.

    Attributes:
        places: whose each descriptor is.
    """

    def __init__(self) -> None:
        self.places: dict[int, WorkerProcess] = {}
        self._epoll = select.epoll()
        self._lock = threading.RLock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that is readable when something has happened."""
        return self._epoll.fileno()

    def add(self, one: WorkerProcess) -> None:
        """Look at a worker's channel and status pipe."""
        for descriptor in (one.end.fileno(), one.status):
            self.places[descriptor] = one
            self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Look at it no more."""
        if self.places.pop(descriptor, None):
            self._epoll.unregister(descriptor)

    def send(self, one: WorkerProcess) -> bool:
        """Send more of a worker's commands; whether all is sent. A wait ends, too, when its socket takes more."""
        if one.end.fileno() not in self.places:
            return False
        try:
            is_sent = one.send()
        except ConnectionError:  # the worker is gone: its end says why
            return False
        if not is_sent or one.is_full:
            one.is_full = True
            self._epoll.modify(one.end.fileno(), select.EPOLLIN | (0 if is_sent else select.EPOLLOUT))
            one.is_full = not is_sent
        return is_sent

    def wait(self, timeout: float) -> list[int]:
        """Wait until something has happened; the descriptors, of nobody if the bell was rung."""
        return [descriptor for descriptor, _ in self._epoll.poll(timeout)]

    def ring(self) -> None:
        """End the wait of whoever waits, from any thread."""
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close the descriptors; those of workers are theirs."""
        with self._lock:
            self._epoll.close()
            os.close(self._bell)
            self._bell = -1
