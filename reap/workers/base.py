"""`WorkerGroup`: the interface between a collector and its workers; independent of reinforcement learning.

        collector                      WorkerGroup                        handlers, one per worker
            | request(worker, command)     |                                   |
            |----------------------------->|---------- carries ---------------->| handle(command)
            | ready(among) -> worker, reply|                                   |
            |<-----------------------------|<---------- carries ----------------| reply

A handler may be in this process (`reap.workers.inline`), in a child process (`reap.workers.processes`) or on another machine;
the collector cannot tell the difference.
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
    """A command for any handler: call a method of the handler's object, and reply with the result.

    Attributes:
        harmless: class attribute, allowed on any command: the worker continues after an exception raised by this command.
            An exception from any other command ends the group.
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
        """Release the handler's resources."""
        ...


MakeHandler = Callable[[int, Control], Handler]
"""Makes a worker's handler, in the worker, from its number and its control ints (`reap.workers.progress`)."""


class WorkerGroup(Protocol):
    """A group of workers that receive commands and send replies.

    Attributes:
        size: number of workers.
    """

    size: int

    def request(self, worker: int, command: Command) -> None:
        """Send a command to a worker; `ready` returns its reply."""
        ...

    def enqueue(self, worker: int, command: Command) -> None:
        """Like `request`, but without waiting: anything that cannot be sent now is sent by `ready` or `poll`."""
        ...

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """Wait until one of these workers has replied; the earliest reply comes first."""
        ...

    def poll(self, among: Collection[int]) -> tuple[int, Reply] | None:
        """Like `ready`, but without waiting: None if none of these workers has replied."""
        ...

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies to all requests made to these workers so far, including replies still to come."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to process, for callers that also wait for other events."""
        ...

    def progress(self, worker: int) -> Progress | None:
        """A worker's progress; None if it is not visible from here."""
        ...

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        ...

    def clear(self, worker: int) -> None:
        """Called before a command that records columns: reset the column, and cancel a pending `stop_early`."""
        ...

    def clear_published(self, worker: int) -> None:
        """Called before a command that publishes: reset the count of published items."""
        ...

    def failures(self) -> list[WorkerError]:
        """The failure of each worker that is down and waits to be replaced, whether raised already or not."""
        ...

    def failures_only_of(self, worker: int) -> AbstractContextManager[None]:
        """Hold back failures of other workers inside the `with` block; they are raised later."""
        ...

    def expect_end(self, worker: int) -> None:
        """Note that a worker has announced its end: `ready` waits for that, and it is raised as a failure."""
        ...

    def replace(self, worker: int, make_handler: MakeHandler) -> None:
        """Start another worker in a worker's place; replies of the old one are dropped."""
        ...

    def withdraw(self, failure: WorkerError) -> None:
        """End the replacement of a failed worker; the original failure is raised again."""
        ...

    def ensure_own(self) -> None:
        """Raise ClosedError in a fork of the workers' process, which cannot use them."""
        ...

    def stop(self, timeout: float | None = None) -> None:
        """Close all handlers and release the workers; a second call does nothing."""
        ...
