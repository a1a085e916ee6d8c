"""`ExclusiveCall`: lets one rollout at a time be collected."""

from __future__ import annotations

from threading import Lock

from reap.errors import CallOrderError


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

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise CallOrderError(
                f"this {self._name} is collecting already: for another thread, or its own env or policy asked it to"
            )

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
