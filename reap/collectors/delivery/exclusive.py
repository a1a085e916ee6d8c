"""`ExclusiveCall`: allows one rollout at a time to be collected."""

from __future__ import annotations

from threading import Lock

from reap.errors import CallOrderError


class ExclusiveCall:
    """A context that one caller at a time may enter: two threads stepping the same rows would mix up their order.

    Args:
        name: the collector's class, for the error.

    Raises:
        CallOrderError: another call is in progress.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise CallOrderError(f"this {self._name} is already collecting: for another thread, or for its own env or policy")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
