"""`Inbox`: commands that have reached a worker but have not been carried out yet.

    P1 C1 P2    a post replaces a waiting one of the same topic:    P2 C1

So a busy worker holds one version of the weights at most, and anything posted before a command is handled before it.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import Any

from reap.system.queues import next_of
from reap.workers.gloo.kinds import POST
from reap.workers.gloo.pair import Arrived
from reap.workers.messages import Received


class Inbox:
    """A queue of commands; one thread puts, another takes.

    A signal handler may call `close` at any point of the taking thread, so `close` takes no lock and leaves waiting commands
    alone, and `take` waits on a queue. A condition would miss a notification that comes between the check and the wait.
    """

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._topics: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False

    def put(self, arrived: Arrived) -> None:
        """Add a command."""
        is_post = arrived.kind == POST
        received = Received(arrived.encoded, wants_reply=not is_post)
        with self._lock:
            if is_post and arrived.topic in self._topics:
                self._waiting[self._topics.index(arrived.topic)] = received
            else:
                self._waiting.append(received)
                self._topics.append(arrived.topic if is_post else b"")
        self._bell.put(None)

    def take(self) -> Received | None:
        """Wait for the next command; None once it is closed."""
        while not self._is_closed:
            with self._lock:
                if self._waiting:
                    self._topics.popleft()
                    return self._waiting.popleft()
            next_of(self._bell)
        return None

    def close(self) -> None:
        """Tell the taking thread that no more commands will come."""
        self._is_closed = True
        self._bell.put(None)
