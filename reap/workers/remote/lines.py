"""`LineCarrier`: the common part of carriers to workers elsewhere: a line to each worker, whose threads ring a bell at events.

thread of a line --- arrived.append(message), ring ---> wait -> workers that sent or ended ---> receive, accept
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Generic, Protocol, TypeVar

from reap.errors import OptionError
from reap.system.bell import Bell
from reap.workers.carrier import Events
from reap.workers.messages import Encoded, MessageKind


@dataclass(eq=False)
class ArrivedMessage:
    """A message from a worker; see `reap.workers.messages.Message`."""

    kind: MessageKind
    encoded: Encoded
    order: int = 0
    is_taken: bool = False


@dataclass(eq=False)
class WholeCommand:
    """A command sent in one piece, in the background; see `reap.workers.messages.Outgoing`."""

    encoded: Encoded
    is_sent: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether it is being sent."""
        return self.is_sent


class Line(Protocol):
    """The line to one worker.

    Attributes:
        is_released: whether the carrier has released the worker.
    """

    is_released: bool

    @property
    def arrived(self) -> deque[ArrivedMessage]:
        """Messages that have not been accepted yet."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether no more messages will arrive."""
        ...


L = TypeVar("L", bound=Line)


class LineCarrier(Generic[L]):
    """The part of a `reap.workers.remote.carrier.RemoteCarrier` that does not depend on the engine.

    Attributes:
        lines: the line to each worker that has been launched.
    """

    def __init__(self) -> None:
        self.lines: dict[int, L] = {}
        self._bell = Bell()
        self._is_woken = False

    def receive(self, worker: int) -> ArrivedMessage | None:
        """The next message of a worker, if one has arrived."""
        line = self.lines[worker]
        return line.arrived[0] if line.arrived and not line.is_released else None

    def accept(self, worker: int) -> None:
        """Move on to the next message."""
        self.lines[worker].arrived.popleft()

    def release(self, worker: int) -> None:
        """Stop reporting events of a worker."""
        self.lines[worker].is_released = True

    def wait(self, timeout: float) -> Events:
        """Wait for events: workers that have sent something, and workers that have ended; see `Carrier`."""
        poll = select.poll()  # takes any descriptor: `select` ends at 1,023, and every worker has some
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout < 0 else 1000 * timeout)
        self._bell.clear()
        watched = {worker: line for worker, line in self.lines.items() if not line.is_released}
        ended = [worker for worker, line in watched.items() if line.has_ended]  # first: its messages came before
        arrived = [worker for worker, line in watched.items() if line.arrived]
        if ended or arrived or self._is_woken:
            self._bell.ring()
        return Events(arrived, ended)

    def wake(self) -> None:
        """Make the current wait, and every later one, return at once."""
        self._is_woken = True
        self._bell.ring()

    def fileno(self) -> int:
        """A descriptor that is readable when there is an event."""
        return self._bell.fileno()


def told_to_leave(number: int) -> str:
    """The end of a worker that a signal told to leave, as text; empty for 0, which is no signal.

    Example:
        >>> told_to_leave(15), told_to_leave(0)
        ('told to leave, by SIGTERM', '')
    """
    return f"told to leave, by {Signals(number).name}" if number else ""


def refuse_descriptors(fds: Sequence[int], way: str = "") -> None:
    """Raise OptionError for descriptors, which cannot be sent to another machine.

    Args:
        fds: the descriptors.
        way: text that says by which way they would be sent.
    """
    if fds:
        raise OptionError(f"fds: expected none, got {len(fds)}: descriptors do not travel{way}")
