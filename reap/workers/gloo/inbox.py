"""`Inbox`: commands that have reached a worker and were not carried out yet.

    P1 C1 P2    a post of the same topic takes the place of one that waits:    P2 C1

So a worker that is busy for long holds one version of the weights, and what was posted before a command is handled before it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from reap.workers.gloo.kinds import POST
from reap.workers.gloo.pair import Arrived
from reap.workers.messages import Received


class Inbox:
    """Commands in order; one thread puts, another takes."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._topics: deque[bytes] = deque()
        self._changed = threading.Condition(threading.RLock())  # reentrant: a signal's handler may close it
        self._is_closed = False

    def put(self, arrived: Arrived) -> None:
        """Keep a command."""
        is_post = arrived.kind == POST
        received = Received(arrived.encoded, wants_reply=not is_post)
        with self._changed:
            if is_post and arrived.topic in self._topics:
                self._waiting[self._topics.index(arrived.topic)] = received
            else:
                self._waiting.append(received)
                self._topics.append(arrived.topic if is_post else b"")
            self._changed.notify()

    def take(self) -> Received | None:
        """Wait for the next command; None once it is closed."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            self._topics.popleft()
            return self._waiting.popleft()

    def close(self) -> None:
        """Forget what waits; whoever takes is told that nothing comes any more."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._topics.clear()
            self._changed.notify()
