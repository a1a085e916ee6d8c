"""Control ints: four int32 through which a worker and its group communicate during a command.

    worker  --- PHASE, COLUMN, PUBLISHED --->  group     what it is doing, for errors, stall warnings and recovery
    worker  <-------------- STOP ------------  group     end the command under way early

Both sides share the ints if they share memory. Otherwise a worker has its own ints, and the group's requests arrive as
messages.
"""

from __future__ import annotations

from typing import NamedTuple

PHASE, COLUMN, STOP, PUBLISHED = range(4)
"""Indices: the phase, the current column, whether to stop after it, and the number of items published so far."""

STOP_EARLY, LEAVE = 1, 2
"""Values at `STOP`: end this command with the current column; do so, and accept no other command."""

CONTROL_INTS = 4

Control = memoryview


class Progress(NamedTuple):
    """The progress of a worker.

    Attributes:
        phase: the index of its current phase.
        column: its current column; -1 before the first.
        published: number of items that the current command has published so far.
    """

    phase: int
    column: int
    published: int


def new_control() -> Control:
    """The control ints of one worker in this process's own memory, before the first column."""
    control = memoryview(bytearray(4 * CONTROL_INTS)).cast("i")
    control[COLUMN] = -1
    return control


def progress_of(control: Control) -> Progress:
    """Read a worker's progress from its control ints."""
    return Progress(control[PHASE], control[COLUMN], control[PUBLISHED])


def clear(control: Control) -> None:
    """Called before a command that records columns: reset the column and any request to stop, unless the worker is leaving."""
    control[COLUMN], control[STOP] = -1, control[STOP] & LEAVE
