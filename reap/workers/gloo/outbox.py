"""`Outbox`: messages that wait until they have left; a thread of its own sends them, one after the other.

put, replace ---> waiting ---> thread: pair.send ---> gone
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from reap.workers.gloo.pair import Pair
from reap.workers.messages import Encoded


@dataclass(eq=False)
class Waiting:
    """A message that has not left.

    Attributes:
        kind: a number that both sides understand.
        encoded: the value that it brings.
        topic: what it is about; nothing where none replaces it.
    """

    kind: int
    encoded: Encoded
    topic: bytes = b""


class Outbox:
    """Messages on their way to the other side of a pair; for any threads."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closed = self._is_sending = False

    def put(self, kind: int, encoded: Encoded, topic: bytes = b"") -> None:
        """Have a message sent after all others, or in the place of one of the same topic; not once it is closed."""
        with self._changed:
            if self._is_closed:
                return
            before = next((one for one in self._waiting if topic and one.topic == topic), None)
            if before is None:
                self._waiting.append(Waiting(kind, encoded, topic))
            else:
                before.encoded = encoded
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all messages have left.

        Raises:
            ConnectionError: they cannot leave any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self._waiting or self._is_sending))
            if self._is_closed:
                raise ConnectionError("the connection has ended")

    def run(self, pair: Pair) -> None:
        """Send messages until `close`, or until the other side is gone: the life of the thread that sends."""
        while (message := self._next()) is not None:
            try:
                pair.send(message.kind, message.topic, message.encoded)
            except ConnectionError:
                self.close()
            del message  # what it holds may be large, and the next one may come late

    def _next(self) -> Any:
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            if self._is_closed:
                return None
            self._is_sending = True
            return self._waiting.popleft()

    def close(self) -> None:
        """Forget what waits, and let go whoever waits."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
