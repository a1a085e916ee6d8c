"""The processes of a `ParallelEnv` as the caller sees them: one face for a step loop, over the rows of all of them.

    bind      descriptors of a stage or slot that the processes have not seen go to them, once
    send      command, column and rows on each process's board (`parallel_board`), its bell rung
    receive   waits for all that were asked, or for the failure of any

Envs that return objects (strings, graphs) are asked through the channel instead, and the objects come with the reply.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

from reap.buffers import Slot, Stage, after
from reap.envs.base import Rows
from reap.envs.parallel_board import COLUMN, ENDED, LEAVE, LISTS, SLOT, STAGE, Link, write_rows
from reap.envs.parallel_child import (
    RESET,
    STEP,
    Ask,
    Attach,
    Connect,
    Describe,
    Detach,
    EnvFacts,
    Move,
    Moved,
    Phase,
    Serve,
    Share,
    make_process,
)
from reap.envs.registry import registry_entries
from reap.envs.serial import rows_of_groups
from reap.errors import ClosedError, OptionError, SpecMismatch, WorkerError, WorkerRaised, in_own_words
from reap.workers.process import ProcessGroup

Asked = list[tuple[int, Rows | None]]
"""Processes, and some of the rows of each, counted from its first (None: all)."""


class Processes:
    """Processes that hold envs, and what they are asked through their channels.

    Args:
        shares: the envs of each process.

    Attributes:
        facts: what each process tells of its envs.
        link: their boards.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        phases = [phase.name.lower() for phase in Phase]
        makers = [partial(make_process, share) for share in shares]
        self._group = ProcessGroup(makers, phases=phases, name="ParallelEnv", setup=[registry_entries()], control_ints=1)
        self._every = range(len(shares))
        self._awaited: set[int] = set()
        self._is_serving = False
        self._indices: WeakKeyDictionary[Stage | Slot, int] = WeakKeyDictionary()
        self._count = 0
        self._dropped: list[int] = []
        try:
            self.facts: list[EnvFacts] = self._gather(Describe())
            self.link = self._connected()
        except BaseException:
            self._group.stop(0)
            raise
        # Before the group's own end: a process that is at its board does not see that its channel was closed.
        self._release = finalize(self, self.link.release)

    def _connected(self) -> Link:
        rows = [facts.rows for facts in self.facts]
        # Not self.check: what is dropped must not wait for the garbage collector.
        link = Link(rows, self._group.fileno(), partial(self._group.poll, ()))
        try:
            for process in self._every:
                self._request(process, Connect(rows, process), fds=link.descriptors_for(process))
            self._replies()
            link.keep_own()
        except BaseException:
            link.release()
            raise
        return link

    # Commands and replies

    def _request(self, process: int, command: Any, fds: Sequence[int] = ()) -> None:
        if process in self._awaited:  # another's error has cut the last command short
            with suppress(WorkerRaised):
                self._reply(process)
        self._group.request(process, command, fds)
        self._awaited.add(process)

    def _reply(self, process: int) -> Any:
        self._awaited.discard(process)
        return self._group.ready({process})[1]

    def _replies(self) -> list[Any]:
        return [self._reply(process) for process in self._every]

    def _gather(self, command: Any) -> list[Any]:
        # What is wrong with an option or an env is said as an env in this process says it.
        with in_own_words(OptionError, SpecMismatch):
            for process in self._every:
                self._request(process, command)
            return self._replies()

    def check(self) -> None:
        """Raise what has become of processes that failed.

        Raises:
            WorkerError: one failed.
            ClosedError: they were stopped, or one failed before.
        """
        self._group.poll(())

    def serve(self) -> None:
        """Let the processes answer their boards."""
        if not self._is_serving:
            with self.failing():
                for process in self._every:
                    self._request(process, Serve())
            self._is_serving = True

    def _leave(self) -> None:
        """Let them answer their channels."""
        self.check()
        if self._is_serving:
            self.link.begin()
            for process in self._every:
                self.link.ask(process, LEAVE)
            self._replies()
            self._is_serving = False

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """What a method of the envs of each process returns."""
        with self.failing():
            self._leave()
            return self._gather(Ask(name, arguments))

    def ask_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method of the envs of each process with arguments of its own."""
        with self.failing():
            self._leave()
            for process, own in zip(self._every, arguments, strict=True):
                self._request(process, Ask(name, own))
            self._replies()

    def ask_along(self, name: str, first: Any, *arguments: Any) -> Any:
        """Call a method of the envs of one process after the other, each with what the one before returned."""
        with self.failing():
            self._leave()
            for process in self._every:
                self._request(process, Ask(name, (first, *arguments)))
                first = self._reply(process)
        return first

    def describe(self) -> None:
        """Ask the processes again what they tell of their envs."""
        with self.failing():
            self._leave()
            self.facts = self._gather(Describe())

    def move(self, asked: Asked, command: int, t: int, bound: tuple[int, int]) -> list[Moved]:
        """Step or reset rows through the channels."""
        with self.failing():
            for process, rows in asked:
                self._request(process, Move(command, rows, t, *bound))
            return [self._reply(process) for process, _ in asked]

    @contextmanager
    def failing(self) -> Generator[None]:
        """Leave nothing open after a failure that ended the processes, or after Ctrl-C: nobody knows then where they are."""
        try:
            yield
        except Exception:
            try:
                self.check()
            except (WorkerError, ClosedError):
                self._release()
            raise
        except BaseException:
            self.close()
            raise

    # Memory

    def attach(self, stage: Stage, slot: Slot) -> tuple[int, int]:
        """The numbers of a stage and a slot, which the processes have mapped.

        Raises:
            OptionError: they lie in memory of this process.
        """
        # Others are added while these are taken out, by whatever thread drops them.
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        if dropped:
            with self.failing():
                self._leave()
                self._gather(Detach(dropped))
        return self._attached(stage, None), self._attached(slot, slot.columns)

    def _attached(self, memory: Stage | Slot, columns: int | None) -> int:
        known = self._indices.get(memory)
        if known is not None:
            return known
        block = memory.block
        if block.fd is None:
            raise OptionError(
                "ParallelEnv: its processes write stage and slot, so that both need memory that can be shared: make them "
                "with make_block=env.make_block"
            )
        fields = {key: field for key, field in memory.fields.items() if field.is_object or key in block.layout}
        lengths = [field.shape[0] for field in block.layout.values()]
        rows = lengths[0] if lengths else memory.first_row + memory.rows
        index = self._count
        self._count += 1
        with self.failing():
            self._leave()
            first_row = memory.first_row
            for process, facts in enumerate(self.facts):
                self._request(process, Attach(index, fields, rows, first_row, columns), fds=[block.fd])
                first_row += facts.rows
            self._replies()
        self._indices[memory] = index
        finalize(memory, self._dropped.append, index).atexit = False
        return index

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        self._release()
        self._group.stop()


class Carrier(Protocol):
    """How commands of a step loop get to processes."""

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following commands are about."""
        ...

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Give a command."""
        ...

    def receive(self) -> list[tuple[int, Rows]]:
        """Wait until it is carried out; the processes in which rows ended, and those rows."""
        ...


class ByBoard:
    """Commands on boards.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes, self._link = processes, processes.link
        self._answers = [LISTS + facts.rows for facts in processes.facts]
        self._asked: Asked = []

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following commands are about."""
        indices = self._processes.attach(stage, slot)
        self._link.begin()
        for board in self._link.boards:
            board[STAGE], board[SLOT] = indices

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Write the command on boards, and ring."""
        link = self._link
        if not link.is_open:
            self._processes.check()
        self._processes.serve()
        link.begin()
        self._asked = asked
        for process, rows in asked:
            board = link.boards[process]
            board[COLUMN] = t
            write_rows(board, rows)
            link.ask(process, command)

    def receive(self) -> list[tuple[int, Rows]]:
        """Wait for all that were asked, then read which rows ended."""
        link, ended = self._link, list[tuple[int, Rows]]()
        for process, _ in self._asked:
            board, start = link.boards[process], self._answers[process]
            link.wait(board)
            count = board[ENDED]
            if count:
                ended.append((process, board[start : start + count].tolist()))
        return ended


class ByChannel:
    """Commands through channels, for envs with objects: replies bring them.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._rows = [facts.rows for facts in processes.facts]
        self._starts = [sum(self._rows[:i]) for i in range(len(self._rows))]
        self._sent: tuple[int, Asked, int] = (0, [], 0)

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following commands are about."""
        self._indices = self._processes.attach(stage, slot)
        self._stage, self._slot = stage, slot

    def send(self, command: int, asked: Asked, t: int) -> None:
        """Keep the command: it goes out with `receive`, which waits for the replies."""
        self._sent = command, asked, t

    def receive(self) -> list[tuple[int, Rows]]:
        """Ask the processes, and write the objects of their replies."""
        command, asked, t = self._sent
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
    """The rows of all processes behind each other: the face for a step loop.

    Args:
        processes: the processes.
        by_channel: the envs return objects.
    """

    def __init__(self, processes: Processes, *, by_channel: bool) -> None:
        self._carrier: Carrier = ByChannel(processes) if by_channel else ByBoard(processes)
        counts = [facts.rows for facts in processes.facts]
        self._starts = [sum(counts[:i]) for i in range(len(counts))]
        self._stops = [start + count for start, count in zip(self._starts, counts, strict=True)]
        self._all: Asked = [(process, None) for process in range(len(counts))]

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        self._carrier.bind(stage, slot)

    def _split(self, rows: Rows | None) -> Asked:
        return self._all if rows is None else rows_of_groups(rows, self._starts, self._stops)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin new episodes in these rows, or in all."""
        self._carrier.send(RESET, self._split(rows), t)
        self._carrier.receive()

    def send(self, rows: Rows | None, t: int) -> None:
        """Give the actions of column `t` to these rows."""
        self._carrier.send(STEP, self._split(rows), t)

    def receive(self) -> Rows | None:
        """Wait until what followed is written; return the rows whose episode ended."""
        found = self._carrier.receive()
        return [self._starts[process] + b for process, rows in found for b in rows] if found else None

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """`send`, then `receive`."""
        self._carrier.send(STEP, self._split(rows), t)
        return self.receive()
