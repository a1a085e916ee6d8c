"""Messages between a group and its workers, as every carrier has them."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class MessageKind(enum.IntEnum):
    """Why a message was sent."""

    COMMAND = 0
    STARTED = 1
    REPLY = 2
    RAISED = 3
    POST = 4


class Encoded(NamedTuple):
    """A value as it travels.

    Attributes:
        body: its pickle.
        buffers: memory that the pickle refers to, in order; carriers move it without a copy where they can.
    """

    body: Any
    buffers: Sequence[Any] = ()

    def load(self) -> Any:
        """The value."""
        return pickle.loads(self.body, buffers=self.buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(memoryview(part).nbytes for part in (self.body, *self.buffers))


class Received(NamedTuple):
    """A command as it reaches a worker.

    Attributes:
        encoded: the command.
        descriptors: that came with it; the worker's to close.
        wants_reply: False for a command that was posted.
    """

    encoded: Encoded
    descriptors: Sequence[int] = ()
    wants_reply: bool = True


class Message(Protocol):
    """A message from a worker.

    Attributes:
        order: messages are numbered in the order in which they arrived.
        is_taken: whether the user has it.
    """

    order: int
    is_taken: bool

    @property
    def kind(self) -> MessageKind:
        """Why it was sent."""
        ...

    @property
    def encoded(self) -> Encoded:
        """The value that it brings; a report of an exception (`reap.workers.reports`) is its body."""
        ...


class Outgoing(Protocol):
    """A command on its way to a worker."""

    @property
    def has_begun(self) -> bool:
        """Whether some of it has left: from then on it cannot be taken back."""
        ...

    @property
    def is_sent(self) -> bool:
        """Whether all of it has left."""
        ...
