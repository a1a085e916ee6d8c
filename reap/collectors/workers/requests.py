"""Requests to the workers of a group between rollouts, with their replies."""

from __future__ import annotations

from collections.abc import Sequence

from reap.collectors.worker.commands import DescribeWorker, WorkerInfo
from reap.errors import ClosedError, WorkerRaised
from reap.workers.base import Command, Reply, WorkerGroup


def gather_all(group: WorkerGroup, command: Command) -> list[Reply]:
    """Send a command to all workers; wait for all replies, in the order of the workers."""
    return scatter(group, [command] * group.size)


def described(group: WorkerGroup, count: int) -> dict[int, WorkerInfo]:
    """Ask all workers for their descriptions, and wait until `count` have replied; the other replies come later."""
    waiting, found = set(range(group.size)), dict[int, WorkerInfo]()
    for worker in range(group.size):
        group.enqueue(worker, DescribeWorker())
    while len(found) < count:
        worker, found[worker] = group.ready(waiting)
        waiting.discard(worker)
    return found


def scatter(group: WorkerGroup, commands: Sequence[Command]) -> list[Reply]:
    """Send each worker its own command; wait for all replies, in the order of the workers.

    After an exception that ends no worker, the others' replies are still awaited; after Ctrl-C they are dropped on arrival. So
    none is left over for a later command.
    """
    try:
        for worker, command in enumerate(commands):
            group.request(worker, command)
        return _replies(group)
    except BaseException:
        group.abandon(range(group.size))
        raise


def _replies(group: WorkerGroup) -> list[Reply]:
    replies: dict[int, Reply] = {}
    failures: list[WorkerRaised] = []
    waiting = set(range(group.size))
    while waiting:
        try:
            worker, replies[worker] = group.ready(waiting)
        except WorkerRaised as failure:
            failures.append(failure)
            worker = failure.worker
        except ClosedError:  # the failure was one that ends all workers
            if failures:
                break
            raise
        waiting.discard(worker)
    if failures:
        raise min(failures, key=lambda failure: failure.worker)
    return [replies[worker] for worker in range(group.size)]


def ask_one(group: WorkerGroup, worker: int, command: Command) -> Reply:
    """Send a command to one worker and wait for its reply, which is dropped if Ctrl-C comes before it."""
    try:
        group.request(worker, command)
        return group.ready([worker])[1]
    except BaseException:
        group.abandon([worker])
        raise
