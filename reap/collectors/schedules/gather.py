"""`Gather`: sends one command to each worker and collects the replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from reap.collectors.workers.base import Workers
from reap.errors import WorkerError
from reap.workers.base import Command, Reply


class Gather:
    """Commands sent to workers, and their replies; an interrupted wait can be resumed.

    Args:
        workers: the workers.
        commands: one for each worker, by its number.
        needed: number of replies after which the other workers are told to stop early; 0 if they have been told already.

    Attributes:
        replies: the replies so far, by worker.
    """

    def __init__(self, workers: Workers, commands: Mapping[int, Command], *, needed: int) -> None:
        self.replies: dict[int, Reply] = {}
        self._workers, self._group, self._needed = workers, workers.group, needed
        self._commands = commands
        self._unsent = deque(commands)
        self._waiting: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Whether a worker has been asked or has replied."""
        return bool(self._waiting or self.replies)

    def wait(self) -> None:
        """Wait until all replies are in."""
        while self._unsent or self._waiting:
            try:
                while self._unsent:
                    worker = self._unsent[0]
                    self._group.request(worker, self._commands[worker])
                    self._waiting.add(self._unsent.popleft())
                worker, reply = self._group.ready(self._waiting)
                done = self._workers.complete(worker, reply)
                if done is not None:
                    self._take(worker, done)
            except WorkerError as failure:
                self._recover(failure)

    def _recover(self, failure: WorkerError) -> None:
        worker = failure.worker
        is_waited_for = worker in self._waiting
        reply = self._workers.recover(failure, self._commands[worker] if is_waited_for else None)
        if reply is not None:
            self._take(worker, reply)
        elif is_waited_for and len(self.replies) >= self._needed:
            self._group.stop_early(worker)  # the one that was told is gone

    def _take(self, worker: int, reply: Reply) -> None:
        self.replies[worker] = reply
        self._waiting.discard(worker)
        if len(self.replies) == self._needed:
            for late in self._waiting:
                self._group.stop_early(late)
