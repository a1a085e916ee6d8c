"""`GlooChannel`: a worker's end of the line to its group; see `reap.workers.serve.Channel`.

    thread "receive"    wishes ---> control, at once
                        commands and posts ---> Inbox ---> receive
    thread "send"       send ---> Outbox ---> pair

A rollout is sent while the next one is recorded in other memory: `send` waits until the previous message has left, then
returns without waiting for its own.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from reap.workers import progress
from reap.workers.gloo.inbox import Inbox
from reap.workers.gloo.kinds import LEFT, Wish
from reap.workers.gloo.memory import Memory
from reap.workers.gloo.outbox import Outbox
from reap.workers.gloo.pair import Pair
from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.pickling import encode_apart
from reap.workers.progress import LEAVE, STOP, STOP_EARLY, Control

LINGER = 2.0
"""Seconds for the group to read the last message and hang up: if the process ended earlier, the kernel might drop it."""


class GlooChannel:
    """The worker's end of the line.

    Args:
        pair: the connection to the group's process.
        control: the worker's control ints.
    """

    def __init__(self, pair: Pair, control: Control) -> None:
        self._pair, self._control = pair, control
        self._inbox, self._outbox = Inbox(), Outbox()
        self._is_cut_off = threading.Event()
        self._left_by = 0
        lives = {"receive": self._receive_all, "send": self._send_all}
        self._threads = [threading.Thread(target=life, name=f"reap-{name}", daemon=True) for name, life in lives.items()]
        for thread in self._threads:
            thread.start()

    @property
    def is_cut_off(self) -> bool:
        """Whether the group is gone."""
        return self._is_cut_off.is_set()

    def receive(self) -> Received | None:
        """The next command; None if the group is gone, or after `leave`."""
        return self._inbox.take()

    def encode(self, reply: Any) -> Encoded:
        """Prepare a reply, whose arrays are sent without a copy."""
        return encode_apart(reply, "the reply")

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Send a message in the background; returns once the previous one has left."""
        self._outbox.flush()
        self._outbox.put(kind, encoded)

    def leave(self, number: int = 0) -> None:
        """End the current command with its current column, and accept no other.

        Args:
            number: of the signal that told this worker to leave, of which `close` tells the group; 0 if none did.
        """
        self._left_by = self._left_by or number
        self._control[STOP] |= LEAVE
        self._inbox.close()

    def close(self) -> None:
        """Announce that no message will follow, and wait until the last one has been read; the process ends next."""
        with contextlib.suppress(ConnectionError):
            if self._left_by:
                self._outbox.put(LEFT, Encoded(b"%d" % self._left_by))
            self._outbox.flush()
            self._pair.finish()
            self._is_cut_off.wait(LINGER)
        self._pair.hang_up()
        for thread in self._threads:
            thread.join(LINGER)
        if not any(thread.is_alive() for thread in self._threads):
            self._pair.close()

    def _send_all(self) -> None:
        self._outbox.run(self._pair)

    def _receive_all(self) -> None:
        memory = Memory()
        try:
            while True:
                arrived = self._pair.receive(memory)
                if arrived.kind == Wish.STOP_EARLY:
                    self._control[STOP] |= STOP_EARLY
                elif arrived.kind == Wish.CLEAR:
                    progress.clear(self._control)
                else:
                    self._inbox.put(arrived)
                del arrived
        except ConnectionError:
            self._is_cut_off.set()
            self._outbox.close()
            self.leave()
