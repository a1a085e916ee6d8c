"""`Line`: the trainer's end of the line to one worker. The worker calls, and what it is told is the answer.

    worker (RPC)                                        Line                                       carrier
      enter(key, visitor)  ------------------------------>  who it is
      fetch(key) -> Future ------------------------------>  waits for something to say
                 <-- [wish, command, post, command] ------      <------------------------------ put, wish, hang_up
      took(key)            ------------------------------>  a post was handled: the next may go
      deliver(key, message) ----------------------------->  arrived, ring                 ----> wait, receive
      leave(key)           ------------------------------>  nothing comes any more: the call that waits is answered

One post at a time is at a worker; the one that waits here is replaced by a newer one of its type, and what was sent after it
waits with it. Wishes pass everything.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed import rpc

from reap.errors import OptionError
from reap.system.interrupts import deferring_interrupts
from reap.workers import reports
from reap.workers.messages import Encoded, MessageKind
from reap.workers.remote.lines import ArrivedMessage
from reap.workers.remote.versions import refuse_other_versions
from reap.workers.rpc.agent import Address
from reap.workers.rpc.tensors import Tensors, nbytes, unwrapped


class Told(enum.IntEnum):
    """What a worker is told."""

    COMMAND = 0
    POST = 1
    STOP_EARLY = 2


class Item(NamedTuple):
    """One thing that a worker is told, as it travels.

    Attributes:
        told: what it is.
        round: how often the worker's column had been forgotten before; see `reap.workers.rpc.channel.Wishes`.
        parts: the command, or the post.
    """

    told: int
    round: int
    parts: Tensors = ()


@dataclass(eq=False)
class Waiting:
    """An item on its way to a worker; see `reap.workers.messages.Outgoing`.

    Attributes:
        item: as it travels.
        topic: the type of what is posted; None for a command.
        is_sent: whether it was handed to the line: it cannot be taken back then.
    """

    parts: Tensors
    topic: type | None = None
    round: int = 0
    is_sent: bool = False

    @property
    def has_begun(self) -> bool:
        """As `is_sent`: it goes in one piece."""
        return self.is_sent


class Visitor(NamedTuple):
    """Who has called.

    Attributes:
        pid: its process.
        host: the name of its machine.
        address: where it could be called.
        versions: of what both processes must have alike.
    """

    pid: int
    host: str
    address: Address
    versions: Mapping[str, str]


class Line:
    """Everything that is said between a carrier and one worker.

    Args:
        key: what the worker proves itself by; no other line has the same.
        ring: called when something has arrived, or the worker has called for the first time.

    Attributes:
        arrived: messages that were not accepted yet.
        visitor: who is at the other end; None before it has called.
        received_bytes: all that has arrived, in bytes.
        received_seconds: how long the worker waited for it to arrive.
    """

    def __init__(self, key: str, ring: Callable[[], Any]) -> None:
        self.arrived: deque[ArrivedMessage] = deque()
        self.visitor: Visitor | None = None
        self.received_bytes, self.received_seconds = 0, 0.0
        self._key, self._ring = key, ring
        self._lock = threading.RLock()
        self._call: torch.futures.Future[Any] | None = None
        self._wishes: deque[Item] = deque()
        self._waiting: deque[Waiting] = deque()
        self._round = 0
        self._has_post = self._hangs_up = False
        _lines[key] = self

    # The carrier's

    def put(self, command: Waiting) -> None:
        """Tell the worker a command."""
        with deferring_interrupts():
            with self._lock:
                command.is_sent, command.round = True, self._round
                self._waiting.append(command)
            self._answer()

    def post(self, post: Waiting) -> None:
        """Tell the worker something that it does not reply to, in place of what waits of its type; from any thread."""
        with deferring_interrupts():
            with self._lock:
                places = [place for place, waiting in enumerate(self._waiting) if waiting.topic is post.topic]
                if places:
                    self._waiting[places[0]] = post
                else:
                    self._waiting.append(post)
            self._answer()

    def stop_early(self) -> None:
        """Have the worker end the command under way with the column that it is at."""
        with self._lock:
            self._wishes.append(Item(Told.STOP_EARLY, self._round))
        self._answer()

    def clear(self) -> None:
        """Have the next command begin without a last column, and without wishes that were made before."""
        self._round += 1

    def hang_up(self) -> None:
        """Tell the worker that nothing comes any more."""
        self._hangs_up = True
        self._answer()

    def cut(self) -> None:
        """Know the worker no more; whatever it asks from now on, it is told that nothing comes any more."""
        _lines.pop(self._key, None)
        self._waiting.clear()

    # The worker's, in threads of RPC

    def enter(self, visitor: Visitor) -> None:
        """The worker is there.

        Raises:
            OptionError: with other versions; the group raises it too.
        """
        self.visitor = visitor
        try:
            refuse_other_versions(visitor.versions, visitor.host)
        except OptionError as error:
            self.fail(error)
            raise
        self._ring()

    def fail(self, error: Exception) -> None:
        """Have the group raise this: the worker will not start."""
        report = reports.write(error, reports.AT_START, is_harmless=False)
        self.arrived.append(ArrivedMessage(MessageKind.RAISED, Encoded(report)))
        self._ring()

    def fetch(self, call: torch.futures.Future[Any]) -> None:
        """The worker waits for what there is to say."""
        self._call = call
        self._answer()

    def took(self) -> None:
        """The worker has handled a post."""
        with self._lock:
            self._has_post = False
        self._answer()

    def deliver(self, kind: MessageKind, seconds: float, parts: Sequence[torch.Tensor]) -> None:
        """The worker sends a message.

        Args:
            kind: why.
            seconds: how long the message before was on its way.
            parts: its value.
        """
        self.received_bytes += nbytes(parts)
        self.received_seconds += seconds
        self.arrived.append(ArrivedMessage(kind, unwrapped(parts)))
        self._ring()

    def _answer(self) -> None:
        """Answer the call that waits, if there is something to say."""
        with self._lock:
            call = self._call
            items = [] if call is None else self._next()
            if call is None or not (items or self._hangs_up):
                return
            self._call = None
        call.set_result(items or None)

    def _next(self) -> list[tuple[Any, ...]]:
        items: list[Item] = list(self._wishes)
        self._wishes.clear()
        while self._waiting and not (self._has_post and self._waiting[0].topic):
            waiting = self._waiting.popleft()
            self._has_post = self._has_post or waiting.topic is not None
            items.append(Item(Told.POST if waiting.topic else Told.COMMAND, waiting.round, waiting.parts))
        return [tuple(item) for item in items]


_lines: dict[str, Line] = {}
"""The lines of this process, by key."""


# What workers call


def enter(key: str, visitor: tuple[Any, ...]) -> None:
    """Say who one is."""
    if line := _lines.get(key):
        line.enter(Visitor(*visitor))


@rpc.functions.async_execution
def fetch(key: str) -> torch.futures.Future[Any]:
    """Wait for what there is to say: a list of items, or None if nothing comes any more."""
    call: torch.futures.Future[Any] = torch.futures.Future()
    if line := _lines.get(key):
        line.fetch(call)
    else:
        call.set_result(None)
    return call


def took(key: str) -> None:
    """Say that a post was handled."""
    if line := _lines.get(key):
        line.took()


def deliver(key: str, kind: int, seconds: float, *parts: torch.Tensor) -> None:
    """Send a message."""
    if line := _lines.get(key):
        line.deliver(MessageKind(kind), seconds, parts)


def leave(key: str) -> None:
    """Want nothing more."""
    if line := _lines.get(key):
        line.hang_up()
