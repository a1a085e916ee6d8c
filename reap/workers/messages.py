"""Messages between a group and its workers, the same for all carriers."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class MessageKind(enum.IntEnum):
    """The kind of a message."""

    COMMAND = 0
    STARTED = 1
    REPLY = 2
    RAISED = 3
    POST = 4


class Encoded(NamedTuple):
    """A pickled value in transit.

    Attributes:
        body: its pickle.
        buffers: memory that the pickle refers to, in order; carriers avoid copying it.
    """

    body: Any
    buffers: Sequence[Any] = ()

    def load(self) -> Any:
        """The value."""
        return pickle.loads(self.body, buffers=self.buffers)

    @property
    def nbytes(self) -> int:
        """Number of bytes in all parts."""
        return sum(memoryview(part).nbytes for part in (self.body, *self.buffers))


class Received(NamedTuple):
    """A command that has reached a worker.

    Attributes:
        encoded: the command.
        descriptors: file descriptors that came with it; the worker closes them.
        wants_reply: False for a command that was posted.
    """

    encoded: Encoded
    descriptors: Sequence[int] = ()
    wants_reply: bool = True


class Message(Protocol):
    """A message from a worker.

    Attributes:
        order: messages are numbered in the order in which they arrived.
        is_taken: whether it has been handed to the caller.
    """

    order: int
    is_taken: bool

    @property
    def kind(self) -> MessageKind:
        """The kind of message."""
        ...

    @property
    def encoded(self) -> Encoded:
        """Its value; a report of an exception (`reap.workers.reports`) is in its body."""
        ...


class Outgoing(Protocol):
    """A command on its way to a worker."""

    @property
    def has_begun(self) -> bool:
        """Whether some of it has been sent, so that it cannot be withdrawn."""
        ...

    @property
    def is_sent(self) -> bool:
        """Whether all of it has been sent."""
        ...
