"""`WriterTable`: one entry for each write in progress, with its process and columns.

An entry outlives its writer; the writer is alive if a process with its pid and start time exists.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

from reap.data.storages.ring.control import BIRTH, BUSY, COUNT, NOBODY, PID, START, Control
from reap.system.waits import described


class WriterTable:
    """The entries of a ring's writers; changed with the ring's lock held.

    Args:
        control: holds the entries.
    """

    def __init__(self, control: Control) -> None:
        self._entries, self._words = control.writers, control.words

    def entries(self) -> list[tuple[int, int, int]]:
        """Index, first column and number of columns of each entry in use."""
        entries = self._entries
        used = np.flatnonzero(entries[:, COUNT])
        return [(int(entry), int(entries[entry, START]), int(entries[entry, COUNT])) for entry in used]

    def free(self) -> int | None:
        """A free entry; None if all are in use."""
        if not self._words[BUSY]:
            return 0
        free = np.flatnonzero(self._entries[:, COUNT] == 0)
        return int(free[0]) if len(free) else None

    def enter(self, entry: int, start: int, columns: int) -> None:
        """Fill an entry: this process writes `columns` columns from `start` on."""
        pid = os.getpid()
        self._entries[entry] = pid, _born(pid), start, columns
        self._words[BUSY] += 1

    def leave(self, entry: int) -> None:
        """Free an entry."""
        self._entries[entry, COUNT] = 0
        self._words[BUSY] -= 1

    def columns(self, entry: int) -> tuple[int, int]:
        """First column and number of columns of an entry."""
        _, _, start, columns = self._entries[entry].tolist()
        return start, columns

    def is_own(self, entry: int, start: int, columns: int) -> bool:
        """Whether it says that this process writes these columns."""
        pid, _, *found = self._entries[entry].tolist()
        return (pid, *found) == (os.getpid(), start, columns)

    def is_alive(self, entry: int) -> bool:
        """Whether its writer is alive and has not aborted the write."""
        pid, birth = map(int, self._entries[entry, [PID, BIRTH]])
        return pid != NOBODY and birth == _birth(pid)

    def described(self, entry: int) -> str:
        """A description of its writer, and its activity."""
        pid, _, _, columns = self._entries[entry].tolist()
        return f"{described(pid)}: it is in a write of {columns} columns to a replay buffer, which has come round to it"

    def __len__(self) -> int:
        return len(self._entries)


def _birth(pid: int) -> int:
    """The start time of a process, in the system's ticks; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


_born = cache(_birth)
"""The start time of this process, which changes after a fork."""
