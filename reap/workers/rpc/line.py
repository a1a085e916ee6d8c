"""`Line`: the trainer's end of the line to one worker. The worker calls, and the answers carry messages to it.

    worker (RPC)                                        Line                                       carrier
      enter(key, visitor)  ------------------------------>  its identity
      fetch(key) -> Future ------------------------------>  waits for messages
                 <-- [wish, command, post, command] ------      <------------------------------ put, wish, hang_up
      took(key)            ------------------------------>  a post was handled: the next may be sent
      deliver(key, message) ----------------------------->  arrived, ring                 ----> wait, receive
      leave(key, signal)   ------------------------------>  the worker leaves: the waiting call is answered

A worker has one post at a time; a post waiting here is replaced by a newer one of its type, and holds back everything sent
after it. Requests (`wish`) overtake everything.
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
    """Kinds of items that are sent to a worker."""

    COMMAND = 0
    POST = 1
    STOP_EARLY = 2


class Item(NamedTuple):
    """An item for a worker, in transit.

    Attributes:
        told: its kind.
        round: number of times that the worker's column had been reset before; see `reap.workers.rpc.channel.Wishes`.
        parts: the command, or the post.
    """

    told: int
    round: int
    parts: Tensors = ()


@dataclass(eq=False)
class Waiting:
    """An item being sent to a worker; see `reap.workers.messages.Outgoing`.

    Attributes:
        item: the item.
        topic: the type of a post; None for a command.
        is_sent: whether it was passed to the line, so that it cannot be withdrawn.
    """

    parts: Tensors
    topic: type | None = None
    round: int = 0
    is_sent: bool = False

    @property
    def has_begun(self) -> bool:
        """The same as `is_sent`, since it is sent in one piece."""
        return self.is_sent


class Visitor(NamedTuple):
    """The identity of a caller.

    Attributes:
        pid: its process id.
        host: the name of its machine.
        address: the address of its agent.
        versions: of packages that must be equal in both processes.
    """

    pid: int
    host: str
    address: Address
    versions: Mapping[str, str]


class Line:
    """The conversation between a carrier and one worker.

    Args:
        key: authenticates the worker; unique to this line.
        ring: called when something has arrived, or the worker has called for the first time.

    Attributes:
        arrived: messages that have not been accepted yet.
        visitor: the identity of the worker; None before it has called.
        received_bytes: number of bytes received.
        received_seconds: time the worker spent sending them.
        waiting: commands that the worker has not fetched.
        left_by: the signal that told the worker to leave; 0 if none is known.
    """

    def __init__(self, key: str, ring: Callable[[], Any]) -> None:
        self.arrived: deque[ArrivedMessage] = deque()
        self.visitor: Visitor | None = None
        self.received_bytes, self.received_seconds = 0, 0.0
        self.left_by = 0
        self._key, self._ring = key, ring
        self._lock = threading.RLock()
        self._call: torch.futures.Future[Any] | None = None
        self._wishes: deque[Item] = deque()
        self.waiting: deque[Waiting] = deque()
        self._round = 0
        self._has_post = self._hangs_up = False
        _lines[key] = self

    # The carrier's

    def put(self, command: Waiting) -> None:
        """Send the worker a command."""
        with deferring_interrupts():
            with self._lock:
                command.is_sent, command.round = True, self._round
                self.waiting.append(command)
            self._answer()

    def post(self, post: Waiting) -> None:
        """Send the worker a post, which replaces a waiting one of its type; callable from any thread."""
        with deferring_interrupts():
            with self._lock:
                places = [place for place, waiting in enumerate(self.waiting) if waiting.topic is post.topic]
                if places:
                    self.waiting[places[0]] = post
                else:
                    self.waiting.append(post)
            self._answer()

    def stop_early(self) -> None:
        """Make the worker end its current command with the current column."""
        with self._lock:
            self._wishes.append(Item(Told.STOP_EARLY, self._round))
        self._answer()

    def clear(self) -> None:
        """Reset the worker's column for the next command, and cancel earlier requests."""
        self._round += 1

    def hang_up(self) -> None:
        """Tell the worker that no more commands will come."""
        self._hangs_up = True
        self._answer()

    def cut(self) -> None:
        """Forget the worker; all its later calls are answered with the end of commands."""
        _lines.pop(self._key, None)
        self.waiting.clear()

    # The worker's, in threads of RPC

    def enter(self, visitor: Visitor) -> None:
        """Handle the worker's first call.

        Raises:
            OptionError: its versions differ; the group raises this too.
        """
        self.visitor = visitor
        try:
            refuse_other_versions(visitor.versions, visitor.host)
        except OptionError as error:
            self.fail(error)
            raise
        self._ring()

    def fail(self, error: Exception) -> None:
        """Make the group raise this exception, because the worker will not start."""
        report = reports.write(error, reports.AT_START, is_harmless=False)
        self.arrived.append(ArrivedMessage(MessageKind.RAISED, Encoded(report)))
        self._ring()

    def fetch(self, call: torch.futures.Future[Any]) -> None:
        """Handle a call that waits for items."""
        self._call = call
        self._answer()

    def took(self) -> None:
        """Note that the worker has handled a post."""
        with self._lock:
            self._has_post = False
        self._answer()

    def deliver(self, kind: MessageKind, seconds: float, parts: Sequence[torch.Tensor]) -> None:
        """Handle a message from the worker.

        Args:
            kind: the kind of message.
            seconds: transfer time of the previous message.
            parts: its value.
        """
        self.received_bytes += nbytes(parts)
        self.received_seconds += seconds
        self.arrived.append(ArrivedMessage(kind, unwrapped(parts)))
        self._ring()

    def _answer(self) -> None:
        """Answer the waiting call if there are items to send."""
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
        while self.waiting and not (self._has_post and self.waiting[0].topic):
            waiting = self.waiting.popleft()
            self._has_post = self._has_post or waiting.topic is not None
            items.append(Item(Told.POST if waiting.topic else Told.COMMAND, waiting.round, waiting.parts))
        return [tuple(item) for item in items]


_lines: dict[str, Line] = {}
"""The lines of this process, by key."""


# What workers call


def enter(key: str, visitor: tuple[Any, ...]) -> None:
    """Announce a worker to its line."""
    if line := _lines.get(key):
        line.enter(Visitor(*visitor))


@rpc.functions.async_execution
def fetch(key: str) -> torch.futures.Future[Any]:
    """Wait for items: a list, or None if no more will come."""
    call: torch.futures.Future[Any] = torch.futures.Future()
    if line := _lines.get(key):
        line.fetch(call)
    else:
        call.set_result(None)
    return call


def took(key: str) -> None:
    """Report that a post was handled."""
    if line := _lines.get(key):
        line.took()


def deliver(key: str, kind: int, seconds: float, *parts: torch.Tensor) -> None:
    """Send a message."""
    if line := _lines.get(key):
        line.deliver(MessageKind(kind), seconds, parts)


def leave(key: str, number: int) -> None:
    """Stop fetching.

    Args:
        key: the worker's.
        number: of the signal that told it to leave; 0 if none did.
    """
    if line := _lines.get(key):
        line.left_by = number
        line.hang_up()
