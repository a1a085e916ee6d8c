"""`ActorChannel`: a worker's end of the line, in its actor, served by the trainer's calls.

    trainer                                     actor
      take(number, ...)   --- control --------->  commands, posts, requests, in order of number --> serve
      following(received) --- messages -------->  waits for a message that is not among those received  <--- serve

Ray does not order calls, so everything has a number. A message is kept until the trainer has asked for the next
one, which means that its bytes have been sent.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reap.system.memory import Bytes
from reap.workers import progress
from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.pickling import encode_apart
from reap.workers.progress import LEAVE, STOP, STOP_EARLY, Control, new_control


class Wish(enum.IntEnum):
    """Requests that are not commands; they are carried out on arrival."""

    STOP_EARLY = 10
    CLEAR = 11
    LEAVE = 12
    HANG_UP = 13


class Ending(enum.IntEnum):
    """Returned by `following`, in place of a message kind, when no more messages will come."""

    ENDED = 20
    LEFT = 21


class Fetched(NamedTuple):
    """The result of `following`: one object in Ray's store.

    Attributes:
        kind: a `MessageKind`, an `Ending`, or None for a mere count of posts.
        body: the pickle; of an `Ending`, the exit code.
        buffers: the memory to which the body refers.
        posts: number of posts that have arrived so far.
        seconds: transfer time of earlier messages.
    """

    kind: int | None
    body: Any
    buffers: Sequence[Bytes]
    posts: int
    seconds: float


def as_bytes(memory: Any) -> Bytes:
    """View memory as an array, which Ray moves without pickling."""
    return np.frombuffer(memory, np.uint8)


class ActorChannel:
    """The worker's end, see `reap.workers.serve.Channel`; the actor calls `take`, `following` and `finish`.

    Attributes:
        control: the worker's control ints.
    """

    def __init__(self) -> None:
        self.control: Control = new_control()
        self._changed = threading.Condition()
        self._number = 0
        self._early: dict[int, tuple[int, str, Encoded]] = {}
        self._commands: deque[tuple[str, Received]] = deque()
        self._is_cut = False
        self._posts = self._told = 0
        self._outgoing: tuple[MessageKind, Encoded] | None = None
        self._sent = self._fetched = 0
        self._began = self._seconds = 0.0
        self._exit_code: int | None = None

    # What the trainer calls

    def take(self, number: int, kind: int, name: str, encoded: Encoded) -> None:
        """Accept something the trainer sent; it is held back until everything sent before has arrived.

        Args:
            number: counted from 0.
            kind: COMMAND, POST or a `Wish`.
            name: the name of a posted command's type.
            encoded: the command.
        """
        with self._changed:
            self._early[number] = kind, name, encoded
            while self._number in self._early:
                self._act(*self._early.pop(self._number))
                self._number += 1
            self._changed.notify_all()

    def _act(self, kind: int, name: str, encoded: Encoded) -> None:
        if kind == MessageKind.COMMAND:
            self._commands.append(("", Received(encoded)))
        elif kind == MessageKind.POST:
            self._keep_latest(name, Received(encoded, wants_reply=False))
        elif kind == Wish.CLEAR:
            progress.clear(self.control)
        elif kind == Wish.HANG_UP:
            self._is_cut = True
            self.control[STOP] |= STOP_EARLY  # nobody wants the rest of what is under way
        else:
            self.control[STOP] |= LEAVE if kind == Wish.LEAVE else STOP_EARLY

    def _keep_latest(self, name: str, post: Received) -> None:
        """Replace a waiting post of the same type, so that commands sent after that one see the newer post."""
        self._posts += 1
        waiting = [place for place, (other, _) in enumerate(self._commands) if other == name]
        if waiting:
            self._commands[waiting[0]] = name, post
        else:
            self._commands.append((name, post))

    def leave(self) -> None:
        """Make the worker leave with its current column."""
        with self._changed:
            self.control[STOP] |= LEAVE
            self._changed.notify_all()

    def following(self, received: int) -> Fetched:
        """Wait for a message, for the end, or for an arrived post.

        Args:
            received: number of messages that the trainer has received.
        """
        with self._changed:
            if received > self._fetched:
                self._fetched, self._outgoing = received, None
                self._seconds += time.perf_counter() - self._began
                self._changed.notify_all()
            self._changed.wait_for(self._has_news)
            self._told = self._posts
            if self._outgoing is not None:
                kind, (body, buffers) = self._outgoing
                return Fetched(kind, body, [as_bytes(one) for one in buffers], self._told, self._seconds)
            if self._exit_code is None:
                return Fetched(None, b"", (), self._told, self._seconds)
            ending = Ending.LEFT if self._leaves else Ending.ENDED
            return Fetched(ending, self._exit_code, (), self._told, self._seconds)

    def _has_news(self) -> bool:
        return self._outgoing is not None or self._exit_code is not None or self._posts > self._told

    @property
    def has_ended(self) -> bool:
        """Whether the worker has ended."""
        return self._exit_code is not None

    def finish(self, exit_code: int) -> None:
        """Note that the worker has ended."""
        with self._changed:
            self._exit_code = exit_code
            self._changed.notify_all()

    # What `serve` calls

    @property
    def _leaves(self) -> bool:
        return bool(self.control[STOP] & LEAVE)

    def receive(self) -> Received | None:
        """The next command; None if the trainer has hung up, or the worker leaves."""
        with self._changed:
            self._changed.wait_for(lambda: self._commands or self._is_cut or self._leaves)
            return None if self._is_cut or self._leaves else self._commands.popleft()[1]

    def encode(self, reply: Any) -> Encoded:
        """Prepare a reply; its arrays are sent next to it."""
        return encode_apart(reply, "the reply")

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Offer a message to be fetched, once the previous one has been.

        Raises:
            BrokenPipeError: the trainer has hung up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._fetched == self._sent or self._is_cut)
            if self._is_cut:
                raise BrokenPipeError
            self._outgoing = kind, encoded
            self._sent += 1
            self._began = time.perf_counter()
            self._changed.notify_all()
