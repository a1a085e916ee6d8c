"""In which order replies become batches."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from reap.errors import CallOrderError
from reap.workers.base import Command, Reply, WorkerGroup


def gather_all(group: WorkerGroup, command: Command) -> list[Reply]:
    """Send a command to all workers; wait for all replies, in the order of the workers."""
    return scatter(group, [command] * group.size)


def scatter(group: WorkerGroup, commands: Sequence[Command]) -> list[Reply]:
    """Send each worker its own command; wait for all replies, in the order of the workers."""
    for worker, command in enumerate(commands):
        group.request(worker, command)
    replies: dict[int, Reply] = {}
    waiting = set(range(group.size))
    while waiting:
        worker, replies[worker] = group.ready(waiting)
        waiting.discard(worker)
    return [replies[worker] for worker in range(group.size)]


class Alone:
    """Lets one rollout at a time be collected: rows that two threads step at once would be in no order.

    Args:
        name: the collector's class, for the error.
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
