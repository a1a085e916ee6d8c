"""What a worker and its group tell each other while a command is under way: four int32, each with its place.

    worker  --- PHASE, COLUMN, PUBLISHED --->  group     what it is doing, for errors, stall warnings and recovery
    worker  <-------------- STOP ------------  group     end the command under way early

Both sides share the ints where they share memory. Elsewhere a worker has ints of its own, and the group's wishes arrive as
messages.
"""

from __future__ import annotations

from typing import NamedTuple

PHASE, COLUMN, STOP, PUBLISHED = range(4)
"""Places: the index of the phase, the column under way, whether to stop after it, and items published so far."""

STOP_EARLY, LEAVE = 1, 2
"""At `STOP`: end this command with the column under way; do so, and take no other command."""

CONTROL_INTS = 4

Control = memoryview


class Progress(NamedTuple):
    """How far a worker has come.

    Attributes:
        phase: index of the phase that it is in.
        column: the column under way; -1 before the first.
        published: items that the command under way has published so far.
    """

    phase: int
    column: int
    published: int


def new_control() -> Control:
    """Ints of one worker in memory of this process; no column has been reached."""
    control = memoryview(bytearray(4 * CONTROL_INTS)).cast("i")
    control[COLUMN] = -1
    return control


def progress_of(control: Control) -> Progress:
    """What a worker has written to its ints."""
    return Progress(control[PHASE], control[COLUMN], control[PUBLISHED])


def clear(control: Control) -> None:
    """Before a command that goes through columns: none has been reached, and all are to be, unless the worker leaves."""
    control[COLUMN], control[STOP] = -1, control[STOP] & LEAVE
