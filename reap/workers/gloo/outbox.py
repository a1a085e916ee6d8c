"""`Outbox`: messages waiting to be sent by a separate thread, one after the other.

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
    """A message that has not been sent yet.

    Attributes:
        kind: a number that both sides understand.
        encoded: its value.
        topic: a newer message of the same topic replaces it; empty if none does.
    """

    kind: int
    encoded: Encoded
    topic: bytes = b""


class Outbox:
    """Messages to be sent to the other side of a pair; usable from any thread.

    Attributes:
        waiting: those of which nothing has been sent.
    """

    def __init__(self) -> None:
        self.waiting: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closed = self._is_sending = False

    def put(self, kind: int, encoded: Encoded, topic: bytes = b"") -> None:
        """Queue a message after all others, or in place of one of the same topic; does nothing once closed."""
        with self._changed:
            if self._is_closed:
                return
            before = next((one for one in self.waiting if topic and one.topic == topic), None)
            if before is None:
                self.waiting.append(Waiting(kind, encoded, topic))
            else:
                before.encoded = encoded
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all messages have been sent.

        Raises:
            ConnectionError: they can no longer be sent.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self.waiting or self._is_sending))
            if self._is_closed:
                raise ConnectionError("the connection has ended")

    def run(self, pair: Pair) -> None:
        """Send messages until `close`, or until the other side is gone; the main function of the sending thread."""
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
            self._changed.wait_for(lambda: self._is_closed or self.waiting)
            if self._is_closed:
                return None
            self._is_sending = True
            return self.waiting.popleft()

    def close(self) -> None:
        """Drop waiting messages, and release waiting threads."""
        with self._changed:
            self._is_closed = True
            self.waiting.clear()
            self._changed.notify_all()
