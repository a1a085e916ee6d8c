"""The seam between a collector and its workers; it knows nothing of reinforcement learning.

        collector                      WorkerGroup                        handlers, one per worker
            | request(worker, command)     |                                   |
            |----------------------------->|---------- carries ---------------->| handle(command)
            | ready(among) -> worker, reply|                                   |
            |<-----------------------------|<---------- carries ----------------| reply

A handler may be in this process (`reap.workers.inline`), in a child process (`reap.workers.processes`) or on another machine;
a collector does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from reap.errors import WorkerError
from reap.workers.progress import Control, Progress

Command = Any
Reply = Any


@dataclass(frozen=True)
class Call:
    """A command for any handler: call a method of the object it works on, and reply with the result.

    Attributes:
        harmless: whether the worker goes on after an exception of this command; class attribute, any command may have
            one. An exception of another command ends the group.
    """

    harmless: ClassVar[bool] = True

    name: str
    arguments: tuple[Any, ...] = ()


class Handler(Protocol):
    """Carries out commands, one at a time."""

    def handle(self, command: Command) -> Reply:
        """Carry out a command and return the reply."""
        ...

    def close(self) -> None:
        """Release what the handler holds."""
        ...


MakeHandler = Callable[[int, Control], Handler]
"""Makes the handler of a worker, where it works: from the worker's number and its ints (`reap.workers.progress`)."""


class WorkerGroup(Protocol):
    """Workers that commands go to and replies come from.

    Attributes:
        size: number of workers.
    """

    size: int

    def request(self, worker: int, command: Command) -> None:
        """Send a command to a worker; its reply comes out of `ready`."""
        ...

    def enqueue(self, worker: int, command: Command) -> None:
        """As `request`, without waiting: what cannot be sent now is sent with `ready` or `poll`."""
        ...

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """Wait until one of these workers has replied; the earliest reply comes first."""
        ...

    def poll(self, among: Collection[int]) -> tuple[int, Reply] | None:
        """As `ready`, but without waiting: None if none of these workers has replied."""
        ...

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies to all requests made to these workers so far, including replies that have yet to come."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to take in, for callers that wait for other things too."""
        ...

    def progress(self, worker: int) -> Progress | None:
        """How far a worker has come; None if that cannot be seen from here."""
        ...

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end the command under way with the column that it is at."""
        ...

    def clear(self, worker: int) -> None:
        """Before a command that goes through columns: forget the last column, and what `stop_early` asked for."""
        ...

    def clear_published(self, worker: int) -> None:
        """Before a command that publishes: count from zero."""
        ...

    def failures(self) -> list[WorkerError]:
        """Why each worker that is down ended, raised already or not; these workers wait to be replaced."""
        ...

    def failures_only_of(self, worker: int) -> AbstractContextManager[None]:
        """In the body failures of other workers are not raised; they are raised later."""
        ...

    def expect_end(self, worker: int) -> None:
        """A worker has said that it leaves: `ready` waits for its end, which is raised as a failure."""
        ...

    def replace(self, worker: int, make_handler: MakeHandler) -> None:
        """Start another worker in a worker's place; replies of the one before are forgotten."""
        ...

    def withdraw(self, failure: WorkerError) -> None:
        """End the worker that was started in a failed worker's place; the failure is raised again."""
        ...

    def ensure_own(self) -> None:
        """Raise ClosedError if this process cannot use the workers: it is a fork of the one that has them."""
        ...

    def stop(self, timeout: float | None = None) -> None:
        """Close all handlers and release the workers; a second call does nothing."""
        ...
