"""Kinds of messages that pass between a line and a channel, beside those of `MessageKind`."""

from __future__ import annotations

import enum

from reap.workers.messages import MessageKind


class Wish(enum.IntEnum):
    """What a worker does as soon as it is told, whatever it is at."""

    STOP_EARLY = 16
    CLEAR = 17


COMMAND, POST = int(MessageKind.COMMAND), int(MessageKind.POST)
