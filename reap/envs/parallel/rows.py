"""The rows of a `ParallelEnv`'s processes for a step loop: one face over all of them, or one for each half.

    bind      sends descriptors of a stage or slot that the processes do not have yet
    send      command, column and rows on each process's board (`parallel_board`), its bell rung
    receive   waits for all addressed processes, or for the failure of any

Envs that return objects (strings, graphs) are called through the channel instead, and replies carry the objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from reap.envs.parallel.board import ENDED, LISTS, SLOT, STAGE
from reap.envs.parallel.child import RESET, STEP
from reap.envs.parallel.processes import Asked, Processes
from reap.envs.row_stepper import Rows
from reap.envs.serial import rows_of_groups
from reap.recording.buffers import Slot, Stage, after


class RowCarrier(Protocol):
    """Carries commands of a step loop to processes."""

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays for later commands."""
        ...

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Give a command."""
        ...

    def receive(self, command: int, asked: Asked, t: int) -> list[tuple[int, Rows]]:
        """Wait until the last command is finished; return the processes in which rows ended, and those rows."""
        ...


class ByBoard:
    """Commands on boards.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes, self._link = processes, processes.link
        self._answers = [LISTS + facts.rows for facts in processes.facts]

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays for later commands."""
        indices = self._processes.attach(stage, slot)
        for process, board in enumerate(self._link.boards):
            self._link.finish(process)
            board[STAGE], board[SLOT] = indices

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Write the command on boards, and ring."""
        link = self._link
        if not link.is_open:
            self._processes.check()
        self._processes.serve()
        for process, rows in asked:
            link.ask(process, command, t, rows)

    def receive(self, command: int, asked: Asked, t: int) -> list[tuple[int, Rows]]:
        """Wait for all addressed processes, then read which rows ended."""
        link, ended = self._link, list[tuple[int, Rows]]()
        for process, _ in asked:
            board, start = link.boards[process], self._answers[process]
            link.wait(process)
            count = board[ENDED]
            if count:
                ended.append((process, board[start : start + count].tolist()))
        return ended


class ByChannel:
    """Commands through channels, for envs with objects, which the replies carry.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._rows = [facts.rows for facts in processes.facts]
        self._starts = [sum(self._rows[:i]) for i in range(len(self._rows))]

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays for later commands."""
        self._indices = self._processes.attach(stage, slot)
        self._stage, self._slot = stage, slot

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Store the command; `receive` sends it and waits for the replies."""

    def receive(self, command: int, asked: Asked, t: int) -> list[tuple[int, Rows]]:
        """Send the command, and write the objects of the replies."""
        ended: list[tuple[int, Rows]] = []
        for (process, rows), moved in zip(asked, self._processes.move(asked, command, t, self._indices), strict=True):
            start = self._starts[process]
            chosen: Any = slice(start, start + self._rows[process]) if rows is None else [start + b for b in rows]
            for key, objects in moved.objects.items():
                array = self._stage.arrays[key] if command == RESET else self._slot.by_column(after(key))[t]
                array[chosen] = objects
            if moved.ended:
                ended.append((process, moved.ended))
        return ended


class ProcessRows:
    """The rows of processes, with their numbers in the whole batch, as an array face for a step loop.

    Args:
        carrier: carries commands to the processes.
        counts: rows of each process.
        processes: the processes that this face covers; None for all.
    """

    def __init__(self, carrier: RowCarrier, counts: Sequence[int], processes: range | None = None) -> None:
        self._carrier, self._counts = carrier, counts
        self._starts = [sum(counts[:i]) for i in range(len(counts))]
        self._stops = [start + count for start, count in zip(self._starts, counts, strict=True)]
        self._all: Asked = [(process, None) for process in processes or range(len(counts))]
        self._sent: tuple[Asked, int] = [], 0

    def halves(self) -> list[tuple[ProcessRows, range]]:
        """Faces of the first processes and of the others, with their rows, split as evenly as possible.

        One can be stepped while the other is busy.
        """
        count, rows = len(self._counts), self._stops[-1]
        middle = min(range(1, count), key=lambda process: abs(2 * self._starts[process] - rows))
        parts = [(range(middle), range(self._starts[middle])), (range(middle, count), range(self._starts[middle], rows))]
        return [(ProcessRows(self._carrier, self._counts, processes), own) for processes, own in parts]

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write, for both halves."""
        self._carrier.bind(stage, slot)

    def _split(self, rows: Rows | None) -> Asked:
        return self._all if rows is None else rows_of_groups(rows, self._starts, self._stops)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start new episodes in these rows, or in all."""
        asked = self._split(rows)
        self._carrier.send(RESET, asked, t)
        self._carrier.receive(RESET, asked, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Send the actions of column `t` to these rows."""
        asked = self._split(rows)
        self._sent = asked, t
        self._carrier.send(STEP, asked, t)

    def receive(self) -> Rows | None:
        """Wait until the results are written; return the rows whose episode ended."""
        found = self._carrier.receive(STEP, *self._sent)
        return [self._starts[process] + b for process, rows in found for b in rows] if found else None

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """`send`, then `receive`."""
        self.send(rows, t)
        return self.receive()
