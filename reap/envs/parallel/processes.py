"""The processes of a `ParallelEnv`, and the commands that go through their channels."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import finalize

from reap.envs.gymnasium.registry import registry_entries
from reap.envs.parallel.board import LEAVE, Link
from reap.envs.parallel.child import (
    Ask,
    Connect,
    DescribeEnvs,
    Detach,
    EnvFacts,
    EnvPhase,
    MapSlot,
    Move,
    Moved,
    Serve,
    Share,
    make_process,
)
from reap.envs.row_stepper import Rows
from reap.errors import ClosedError, OptionError, SpecMismatch, WorkerError, in_own_words
from reap.recording.buffers import Slot, Stage
from reap.system.endings import Numbered, numbered
from reap.system.interrupts import deferring_interrupts, interrupts_allowed
from reap.workers.pickling import blaming
from reap.workers.processes.group import ProcessGroup
from reap.workers.stall import StallWatch

Asked = list[tuple[int, Rows | None]]
"""Processes, and some of the rows of each, counted from its first (None: all)."""


class Processes:
    """Processes that hold envs, and the commands that go through their channels.

    Args:
        shares: the envs of each process.
        stall_after: seconds after which a warning names awaited processes that have made no progress; None for never.

    Attributes:
        facts: the facts that each process reports about its envs.
        link: their boards.
    """

    def __init__(self, shares: Sequence[Share], stall_after: float | None) -> None:
        with blaming(_given(shares)):
            self._group = ProcessGroup(
                [partial(make_process, share) for share in shares],
                phases=[phase.name.lower() for phase in EnvPhase],
                name="ParallelEnv",
                setup=[registry_entries()],
                stall_after=stall_after,
            )
        self._stall = StallWatch(stall_after, self._group.progress)
        self._every = range(len(shares))
        self._is_serving = False
        self._attachments: dict[int, Numbered[Stage | Slot]] = {}
        self._count = 0
        self._dropped: list[Numbered[Stage | Slot]] = []
        try:
            self.facts: list[EnvFacts] = self._gather(DescribeEnvs())
            self.link = self._connected()
        except BaseException:
            self._group.stop(0)
            raise
        # Before the group's own end: a process that is at its board does not see that its channel was closed.
        self._release = finalize(self, self.link.release)

    def _connected(self) -> Link:
        rows = [facts.rows for facts in self.facts]
        # Not self.check: that cycle would leave a dropped env to the garbage collector.
        describe = self._group.describe
        link = Link(rows, self._group.fileno(), partial(self._group.poll, ()), self._stall, describe)
        try:
            for process in self._every:
                self._group.request(process, Connect(rows, process), fds=link.descriptors_for(process))
            self._replies()
            link.keep_own()
        except BaseException:
            link.release()
            raise
        return link

    # Commands and replies

    def _reply(self, process: int) -> Any:
        return self._group.ready({process})[1]

    def _replies(self) -> list[Any]:
        return [self._reply(process) for process in self._every]

    def _gather(self, command: Any) -> list[Any]:
        # Errors of options and envs are raised with the text of an env in this process.
        with in_own_words(OptionError, SpecMismatch):
            for process in self._every:
                self._group.request(process, command)
            return self._replies()

    def check(self) -> None:
        """Raise the error of a process that failed.

        Raises:
            WorkerError: one failed.
            ClosedError: they were stopped, or one failed before.
        """
        self._group.poll(())

    def serve(self) -> None:
        """Make the processes answer their boards."""
        if not self._is_serving:
            with self.failing():
                for process in self._every:
                    self._group.request(process, Serve())
                self._is_serving = True

    def _leave(self) -> None:
        """Make the processes answer their channels."""
        self.check()
        if self._is_serving:
            for process in self._every:
                with interrupts_allowed():
                    self.link.finish(process)
            for process in self._every:
                self.link.ask(process, LEAVE)
            self._is_serving = False
            self._replies()

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of the envs of each process; return the results."""
        with self.failing():
            self._leave()
            return self._gather(Ask(name, arguments))

    def ask_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a method of the envs of each process, with separate arguments for each."""
        with self.failing():
            self._leave()
            for process, own in zip(self._every, arguments, strict=True):
                self._group.request(process, Ask(name, own))
            self._replies()

    def ask_along(self, name: str, first: Any, *arguments: Any) -> Any:
        """Call a method of the envs of each process in turn, each with the previous one's result."""
        with self.failing():
            self._leave()
            for process in self._every:
                self._group.request(process, Ask(name, (first, *arguments)))
                first = self._reply(process)
        return first

    def describe(self) -> None:
        """Get the facts about the envs from the processes again."""
        with self.failing():
            self._leave()
            self.facts = self._gather(DescribeEnvs())

    def move(self, asked: Asked, command: int, t: int, bound: tuple[int, int]) -> list[Moved]:
        """Step or reset rows through the channels."""
        with self.failing():
            for process, rows in asked:
                self._group.request(process, Move(command, rows, t, *bound))
            return [self._reply(process) for process, _ in asked]

    @contextmanager
    def failing(self) -> Generator[None]:
        """Close everything after a failure that ended the processes; Ctrl-C interrupts only waits for them."""
        with deferring_interrupts():
            try:
                yield
            except BaseException:
                if not self._is_serving:  # else the replies are those to `Serve`
                    self._group.abandon(self._every)
                try:
                    self.check()
                except (WorkerError, ClosedError):
                    self._release()
                raise

    # Memory

    def attach(self, stage: Stage, slot: Slot) -> tuple[int, int]:
        """The numbers of a stage and a slot, which the processes have mapped.

        Raises:
            OptionError: they are in this process's private memory.
        """
        # Others are added while these are taken out, by whatever thread drops them.
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        if dropped:
            with self.failing():
                self._leave()
                self._gather(Detach([own.number for own in dropped]))
            self._attachments = {place: own for place, own in self._attachments.items() if own() is not None}
        return self._attached(stage, None), self._attached(slot, slot.columns)

    def _attached(self, memory: Stage | Slot, columns: int | None) -> int:
        known = self._attachments.get(id(memory))
        if known is not None and known() is memory:
            return known.number
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
                self._group.request(process, MapSlot(index, fields, rows, first_row, columns), fds=[block.fd])
                first_row += facts.rows
            self._attachments[id(memory)] = numbered(memory, index, self._dropped.append)
            self._replies()
        return index

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        self._release()
        self._group.stop()


def _given(shares: Sequence[Share]) -> Iterator[tuple[str, Any]]:
    """The name and value of the user's argument."""
    for share in shares:
        yield from (("create_env_fn", factory) for factory in share.factories)
        yield from (("create_env_kwargs", own) for own in share.kwargs)
