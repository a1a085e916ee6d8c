"""`Poller`: one epoll for the sockets and status pipes of a group's processes, and a bell that ends a wait."""

from __future__ import annotations

import os
import select
import socket
import threading

from reap.workers.carrier import Events
from reap.workers.processes.channel import Outgoing
from reap.workers.processes.worker_process import WorkerProcess


class Poller:
    """Waits until a worker has sent something or has ended."""

    def __init__(self) -> None:
        self._channels: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._epoll = select.epoll()
        self._lock = threading.RLock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that is readable when something has happened."""
        return self._epoll.fileno()

    def add(self, process: WorkerProcess) -> None:
        """Wait for a process too."""
        for places, descriptor in ((self._channels, process.end.fileno()), (self._statuses, process.status)):
            places[descriptor] = process.number
            self._epoll.register(descriptor, select.EPOLLIN)

    def has(self, end: socket.socket) -> bool:
        """Whether a process is waited for that has this socket."""
        return end.fileno() in self._channels

    def remove_channel(self, process: WorkerProcess) -> None:
        """Wait for the end of a process only."""
        self._remove(self._channels, process.end.fileno())

    def remove(self, process: WorkerProcess) -> None:
        """Do not wait for a process any more."""
        self.remove_channel(process)
        self._remove(self._statuses, process.status)

    def _remove(self, places: dict[int, int], descriptor: int) -> None:
        if places.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def send(self, process: WorkerProcess, outgoing: Outgoing) -> bool:
        """Send more of a command; whether all is sent. If not, a wait also ends when the socket takes more."""
        if not self.has(process.end):
            return False
        try:
            is_sent = outgoing.send(process.end)
        except ConnectionError:  # the worker is gone: its end says why
            return False
        if not is_sent or process.is_full:
            process.is_full = True
            self._epoll.modify(process.end.fileno(), select.EPOLLIN | (0 if is_sent else select.EPOLLOUT))
            process.is_full = not is_sent
        return is_sent

    def wait(self, timeout: float) -> Events:
        """Wait until something has happened, or the bell was rung."""
        arrived: list[int] = []
        ended: list[int] = []
        for descriptor, _ in self._epoll.poll(timeout):
            if descriptor in self._channels:
                arrived.append(self._channels[descriptor])
            elif descriptor in self._statuses:
                ended.append(self._statuses[descriptor])
        return Events(arrived, ended)

    def ring(self) -> None:
        """End the wait of whoever waits, from any thread."""
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Close the epoll and the bell; the descriptors of processes are theirs."""
        with self._lock:
            self._epoll.close()
            os.close(self._bell)
            self._bell = -1
