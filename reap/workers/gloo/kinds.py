"""Kinds of messages between a line and a channel, in addition to those of `MessageKind`."""

from __future__ import annotations

import enum

from reap.workers.messages import MessageKind


class Wish(enum.IntEnum):
    """Requests that a worker acts on immediately, even during a command."""

    STOP_EARLY = 16
    CLEAR = 17


LEFT = 18
"""The last message of a worker that leaves: the number of the signal that told it to."""

COMMAND, POST = int(MessageKind.COMMAND), int(MessageKind.POST)
