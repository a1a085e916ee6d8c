"""`RemoteGroup`: a group whose carrier reaches workers that share nothing with this process.

post(worker, command) --- carrier, in the background ---> worker     no reply; handled before commands requested later
                          (a waiting one is replaced by a newer one of its type)
replace(worker, ..., pause)   launched after the pause, by `ready` and `poll`
add(make_handler)             one more worker
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from reap.errors import WorkerDied, WorkerError
from reap.workers.base import Command, MakeHandler
from reap.workers.carrier import launch
from reap.workers.conversation import Conversation
from reap.workers.group import Group
from reap.workers.remote.carrier import RemoteCarrier, WorkerFacts


class RemoteGroup(Group):
    """A group of workers elsewhere; see `reap.workers.group.Group`."""

    carrier: RemoteCarrier[Any]

    @cached_property
    def _paused(self) -> dict[int, tuple[float, bytes]]:
        """Workers to be launched later: the times, and their specs."""
        return {}

    def post(self, worker: int, command: Command) -> None:
        """Send a command without a reply; see `RemoteCarrier.post`."""
        self.carrier.post(worker, command)

    def facts(self, worker: int) -> WorkerFacts:
        """The location and counts of a worker."""
        return self.carrier.facts(worker)

    def add(self, make_handlers: Sequence[MakeHandler]) -> list[int]:
        """Launch more workers; return their numbers."""
        with self._lock:
            self._check_open()
            first = self.size
            for worker, spec in enumerate(self._specs.written(make_handlers, first), first):
                self._conversations.append(Conversation())
                self.size += 1
                launch(self.carrier, worker, spec)
            return list(range(first, self.size))

    def replace(self, worker: int, make_handler: MakeHandler, pause: float = 0.0) -> None:
        """Launch another worker in a worker's place; see `Group.replace`.

        Args:
            worker: the worker's number.
            make_handler: makes its handler.
            pause: seconds before the launch, which `ready` or `poll` then makes.
        """
        [spec] = self._specs.written([make_handler], worker)
        with self._lock:
            self._vacate(worker)
            self._paused[worker] = time.monotonic() + pause, spec
            self._launch_due()
            self._failures.replaced(worker)

    def _launch_due(self) -> None:
        now = time.monotonic()
        for worker, (due, spec) in list(self._paused.items()):
            if due <= now:
                launch(self.carrier, worker, spec)
                del self._paused[worker]

    def _retire(self, worker: int, failure: WorkerError | None = None) -> None:
        self._paused.pop(worker, None)
        super()._retire(worker, failure)

    def _ended(self, worker: int) -> None:
        if worker not in self._failures.down:
            phase, place = self.describe(worker)
            report = ": ".join(filter(None, (place, self.carrier.ending(worker))))
            self._retire(worker, WorkerDied(worker, self.carrier.exit_code(worker), phase, report))

    def _wait(self, timeout: float) -> tuple[Sequence[int], Sequence[int]]:
        self._launch_due()
        if self._paused:
            left = max(0.0, min(due for due, _ in self._paused.values()) - time.monotonic())
            timeout = left if timeout < 0 else min(timeout, left)
        return super()._wait(timeout)
