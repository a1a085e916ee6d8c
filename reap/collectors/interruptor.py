"""`Interruptor`: a switch that ends rollouts early."""

from __future__ import annotations

from threading import Event


class Interruptor:
    """Tells collectors to stop with their next column; can be set from any thread.

    Example:
        >>> interruptor = Interruptor()
        >>> interruptor.stop_collection()
        >>> interruptor.collection_stopped()
        True
    """

    def __init__(self) -> None:
        self._stopped = Event()

    def start_collection(self) -> None:
        """Let rollouts run to their end."""
        self._stopped.clear()

    def stop_collection(self) -> None:
        """End rollouts with their next column."""
        self._stopped.set()

    def collection_stopped(self) -> bool:
        """Whether rollouts are to end."""
        return self._stopped.is_set()
