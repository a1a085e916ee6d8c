"""`RemoteWorker`: a worker as its carrier sees it: the job that was started, and the line that it calls."""

from __future__ import annotations

import time
from collections import deque

from reap.workers.launchers.base import Job, described, tail
from reap.workers.progress import Progress, progress_of
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.remote.lines import ArrivedMessage
from reap.workers.rpc.agent import Address
from reap.workers.rpc.line import Line

NEWLINE = "\n"


class RemoteWorker:
    """A worker's job and line.

    Args:
        job: the worker's process.
        line: the line that it calls.
        called: the address that it was told to call.
        timeout: seconds within which it must call.
        before: location and counts of its predecessor.

    Attributes:
        job: as given.
        line: as given.
        is_released: whether the carrier has released it.
        is_lost: whether it can no longer be reached, although its process is not known to have ended.
        ending: the reason, as text.
    """

    def __init__(self, job: Job, line: Line, called: Address, timeout: float, before: WorkerFacts) -> None:
        self.job, self.line = job, line
        self.is_released = self.is_lost = False
        self.ending = ""
        self._called, self._timeout, self._before = called, timeout, before
        self._deadline = time.monotonic() + timeout

    @property
    def arrived(self) -> deque[ArrivedMessage]:
        """Messages that have not been accepted yet."""
        return self.line.arrived

    @property
    def has_ended(self) -> bool:
        """Whether no more messages will come."""
        return self.is_lost or self.job.has_ended

    @property
    def place(self) -> str:
        """Its location, for messages to people."""
        visitor = self.line.visitor
        if visitor is None or self.job.control is not None:
            return self.job.place
        return f"{self.job.place}, pid {visitor.pid} on {visitor.host}"

    @property
    def facts(self) -> WorkerFacts:
        """Its location, and counts that include its predecessors'."""
        line, before = self.line, self._before
        host = line.visitor.host if line.visitor else ""
        node = "" if self.job.control is not None else self.job.place
        seconds = before.transfer_seconds + line.received_seconds
        return WorkerFacts(host, node, before.bytes + line.received_bytes, seconds)

    @property
    def progress(self) -> Progress | None:
        """Its progress, if visible."""
        return None if self.job.control is None else progress_of(self.job.control)

    def give_up(self, error: Exception) -> None:
        """Make the group raise this exception, because no more messages will come."""
        self.is_lost = True
        self.line.fail(error)

    def lose(self, reason: str) -> None:
        """Note that it can no longer be reached."""
        self.ending = f"it can no longer be reached: {reason}"
        self.is_lost = True

    def missing(self) -> Exception | None:
        """Why the worker will not call, if known, or that it has not called in time."""
        if self.line.visitor is not None or self.is_lost:
            return None
        if self.job.has_ended:
            return ConnectionError(f"the worker's process has ended before it called {self._details()}")
        if time.monotonic() > self._deadline:
            return TimeoutError(f"the worker has not called within {self._timeout:.0f} s {self._details()}")
        return None

    def _details(self) -> str:
        only = (
            " That address is reached from this machine only. For others, set TP_SOCKET_IFNAME to the interface by which they "
            "reach it, before the first agent of this process starts."
        )
        log = tail(self.job.log)
        return (
            f"(the address that it was given: {self._called.url}; {described(self.job)})."
            f"{only if self._called.is_of_one_machine else ''}{f'{NEWLINE}The end of its log:{NEWLINE}{log}' if log else ''}"
        )
