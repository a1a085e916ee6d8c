"""Messages between a group and its workers, as every carrier has them."""

from __future__ import annotations

import enum
from typing import Protocol


class MessageKind(enum.IntEnum):
    """Why a message was sent."""

    COMMAND = 0
    STARTED = 1
    REPLY = 2
    RAISED = 3


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
    def body(self) -> memoryview:
        """Its pickle."""
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
