"""The seam between a collector and what works for it; it knows nothing of reinforcement learning.

        collector                      WorkerGroup                        handlers, one per worker
            | request(worker, command)     |                                   |
            |----------------------------->|---------- carries ---------------->| handle(command)
            | ready(among) -> worker, reply|                                   |
            |<-----------------------------|<---------- carries ----------------| reply

A handler may sit in this process, in a child process or on another machine; a collector does not know which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from reap.errors import ClosedError

Command = Any
Reply = Any


@dataclass(frozen=True)
class Call:
    """A command for any handler: call a method of what it works on, and reply with what that returns.

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


class WorkerGroup(Protocol):
    """Workers that commands go to and replies come from.

    Attributes:
        size: number of workers.
    """

    size: int

    def request(self, worker: int, command: Command) -> None:
        """Send a command to a worker; its reply comes out of `ready`."""
        ...

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """Wait until one of these workers has replied; the earliest reply comes first."""
        ...

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies to what these workers were asked so far, those too that have not come yet."""
        ...

    def stop(self, timeout: float | None = None) -> None:
        """Close all handlers and release the workers; a second call does nothing."""
        ...


class InlineGroup:
    """Handlers in this process: a request is carried out at once, and its exception goes to the caller as it is."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.size = len(handlers)
        self._handlers = tuple(handlers)
        self._replies: deque[tuple[int, Reply]] = deque()
        self._stopped = False

    def request(self, worker: int, command: Command) -> None:
        """Carry out the command."""
        if self._stopped:
            raise ClosedError("these workers are stopped")
        from reap.system.interrupts import interrupts_allowed

        with interrupts_allowed():
            reply = self._handlers[worker].handle(command)
        self._replies.append((worker, reply))

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """The earliest reply of these workers."""
        for index, (worker, _) in enumerate(self._replies):
            if worker in among:
                reply = self._replies[index]
                del self._replies[index]
                return reply
        raise RuntimeError(f"no request is under way to workers {sorted(among)}")

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies of these workers."""
        self._replies = deque(reply for reply in self._replies if reply[0] not in workers)

    def stop_early(self, worker):
        pass

    def clear(self, worker):
        pass

    def clear_published(self, worker):
        pass

    def poll(self, among):
        return None

    def failures(self):
        return []

    def ensure_own(self):
        pass

    def fileno(self):
        import os

        if not hasattr(self, "_fd"):
            self._fd = os.eventfd(0)
        return self._fd

    def stop(self, timeout: float | None = None) -> None:
        """Close the handlers."""
        if not self._stopped:
            self._stopped = True
            for handler in self._handlers:
                handler.close()
