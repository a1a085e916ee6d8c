"""In which order replies become batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from reap.errors import CallOrderError, ClosedError, WorkerError, WorkerRaised
from reap.system.interrupts import deferring_interrupts
from reap.workers.base import Command, Reply, WorkerGroup

T = TypeVar("T")

Recover = Callable[[WorkerError, Command | None], Reply | None]


def gather_all(group: WorkerGroup, command: Command) -> list[Reply]:
    """Send a command to all workers; wait for all replies, in the order of the workers."""
    return scatter(group, [command] * group.size)


def scatter(group: WorkerGroup, commands: Sequence[Command]) -> list[Reply]:
    """Send each worker its own command; wait for all replies, in the order of the workers.

    After an exception that ends no worker the others' replies are waited for too, and after Ctrl-C they are dropped when they
    come: none is left for a later command.
    """
    try:
        for worker, command in enumerate(commands):
            group.request(worker, command)
        return _replies(group)
    except BaseException:
        group.abandon(range(group.size))
        raise


def _replies(group: WorkerGroup) -> list[Reply]:
    replies: dict[int, Reply] = {}
    failures: list[WorkerRaised] = []
    waiting = set(range(group.size))
    while waiting:
        try:
            worker, replies[worker] = group.ready(waiting)
        except WorkerRaised as failure:
            failures.append(failure)
            worker = failure.worker
        except ClosedError:  # the failure was one that ends all workers
            if failures:
                break
            raise
        waiting.discard(worker)
    if failures:
        raise min(failures, key=lambda failure: failure.worker)
    return [replies[worker] for worker in range(group.size)]


def ask_one(group: WorkerGroup, worker: int, command: Command) -> Reply:
    """Send a command to one worker and wait for its reply, which is dropped if Ctrl-C comes before it."""
    try:
        group.request(worker, command)
        return group.ready([worker])[1]
    except BaseException:
        group.abandon([worker])
        raise


class Gather:
    """Commands sent to all workers, and their replies as they come in; a wait that was interrupted can be taken up again.

    Args:
        group: the workers.
        commands: one for each.
        needed: replies after which the other workers are told to stop early; with 0 they were told before.
        stop_early: tells a worker.
        recover: is given a failure and the command that it interrupted, if any; replies to that command itself, or has the
            worker reply to it. Raises what cannot be mended.
        complete: is given each worker and its reply, and returns what counts as its reply.
        note: what the sender wants to remember.

    Attributes:
        replies: what came in so far, by worker.
        commands: one for each.
    """

    def __init__(
        self,
        group: WorkerGroup,
        commands: Sequence[Command],
        *,
        needed: int,
        stop_early: Callable[[int], None],
        recover: Recover,
        complete: Callable[[int, Reply], Reply],
        note: Any = None,
    ) -> None:
        self.replies: dict[int, Reply] = {}
        self.note = note
        self.commands = commands
        self._group, self._needed = group, needed
        self._stop_early, self._recover, self._complete = stop_early, recover, complete
        self._unsent = deque(range(group.size))
        self._waiting: set[int] = set()

    def wait(self) -> None:
        """Wait until all replies are in."""
        while self._unsent or self._waiting:
            with deferring_interrupts():
                self._go_on()

    def _go_on(self) -> None:
        try:
            self._send()
            worker, reply = self._group.ready(self._waiting)
            self._take(worker, self._complete(worker, reply))
        except WorkerError as failure:
            is_waited_for = failure.worker in self._waiting
            reply = self._recover(failure, self.commands[failure.worker] if is_waited_for else None)
            if reply is not None:
                self._take(failure.worker, reply)
            elif is_waited_for and len(self.replies) >= self._needed:
                self._stop_early(failure.worker)  # who was told is gone

    def _send(self) -> None:
        while self._unsent:
            worker = self._unsent[0]
            self._group.request(worker, self.commands[worker])
            self._waiting.add(self._unsent.popleft())

    def _take(self, worker: int, reply: Reply) -> None:
        self.replies[worker] = reply
        self._waiting.discard(worker)
        if len(self.replies) == self._needed:
            for late in self._waiting:
                self._stop_early(late)


@dataclass
class Turn:
    """Somebody's turn."""

    is_over: bool = False


class ExclusiveCall:
    """Lets one rollout at a time be collected: rows that two threads step at once would be in no order.

    Args:
        name: the collector's class, for the error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._turn = Turn(is_over=True)

    def run(self, make: Callable[[], T]) -> T:
        """What a call returns.

        Raises:
            CallOrderError: another one is under way.
        """
        turn = Turn()
        try:
            self._begin(turn)  # in here: Ctrl-C may come when it has begun
            return make()
        finally:
            turn.is_over = True

    def _begin(self, turn: Turn) -> None:
        with self._lock:
            if not self._turn.is_over:
                raise CallOrderError(
                    f"this {self._name} is collecting already: for another thread, or its own env or policy asked it to"
                )
            self._turn = turn
