"""Kinds of messages between a line and a channel, in addition to those of `MessageKind`."""

from __future__ import annotations

import enum

from reap.workers.messages import MessageKind


class Wish(enum.IntEnum):
    """Requests that a worker acts on immediately, even during a command."""

    STOP_EARLY = 16
    CLEAR = 17


COMMAND, POST = int(MessageKind.COMMAND), int(MessageKind.POST)
