"""In which order replies become batches."""

from __future__ import annotations

from collections.abc import Sequence

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
