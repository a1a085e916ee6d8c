"""`ExclusiveCall`: lets one rollout at a time be collected."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from reap.errors import CallOrderError


@dataclass
class Turn:
    """Somebody's turn."""

    is_over: bool = False


class ExclusiveCall:
    """A context that one caller at a time may enter: rows that two threads step at once would be in no order.

    Args:
        name: the collector's class, for the error.

    Raises:
        CallOrderError: another call is under way.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._turn = Turn(is_over=True)

    def begin(self, turn: Turn) -> None:
        """Begin a turn, which ends when its owner says so: in a `finally`, whatever moment Ctrl-C comes in."""
        with self._lock:
            if not self._turn.is_over:
                raise CallOrderError(
                    f"this {self._name} is collecting already: for another thread, or its own env or policy asked it to"
                )
            self._turn = turn
