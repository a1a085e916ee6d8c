"""`Together`: one rollout of all workers at a time.

worker 0   |--- Collect ------- Done |           |--- Collect ...
worker 1   |--- Collect - Done       |           |--- Collect ...
                                     '- a batch -'
"""

from __future__ import annotations

from functools import partial
from math import ceil

from tensordict import TensorDictBase

from reap.collectors.delivery.arrangement import Arrangement
from reap.collectors.delivery.buffer_writes import PendingWrites
from reap.collectors.handover import Recording
from reap.collectors.parts import Parts
from reap.collectors.schedules.base import finish_writes
from reap.collectors.schedules.gather import Gather
from reap.errors import WorkerError


class Together:
    """Delivers one rollout of all workers per batch; see `Schedule`.

    Args:
        parts: of the collector.
        arrangement: how the workers' rollouts become one batch.
        threshold: share of workers that must finish before the others stop early; None waits for all.
    """

    def __init__(self, parts: Parts, arrangement: Arrangement, threshold: float | None = None) -> None:
        self.shape, self.frames = arrangement.shape, arrangement.frames
        self.real_rows, self.delivers_in_parts = arrangement.real_rows, arrangement.delivers_in_parts
        self.writes: PendingWrites | None = None
        self._parts, self._arrangement = parts, arrangement
        self._workers, self._handover = parts.workers, parts.handover
        count = self._workers.group.size
        self._needed = count if threshold is None else ceil(threshold * count)
        self._gather: Gather | None = None

    def record(self) -> None:
        """Record a rollout of all workers; see `Schedule`."""
        self._handover.close_gap()
        while not self._handover.recorded:
            if not self._handover.recording:
                self._begin()
            self._finish()

    def settle(self) -> None:
        """Wait until no rollout and no write is in progress; see `Schedule`."""
        finish_writes(self)
        if self._handover.recording:
            self._finish()

    def _begin(self) -> None:
        finish_writes(self)
        self._parts.weights.refresh()
        numbers = self._arrangement.take()
        commands = {w: self._parts.command(w, slot) for w, slot in enumerate(self._arrangement.by_worker(numbers))}
        for worker in commands:
            self._workers.group.clear(worker)
            if not self._needed:
                self._workers.group.stop_early(worker)
        self._gather = Gather(self._workers, commands, needed=self._needed)
        self._handover.begin(Recording(commands, partial(self._arrangement.give_back, numbers)))

    def _finish(self) -> None:
        """Wait for the rollout in progress."""
        (recording,), gather = self._handover.recording, self._gather
        assert gather is not None
        try:
            gather.wait()
        except BaseException:
            if not gather.has_begun:
                self._handover.break_off(recording)
            raise
        recording.dones = dict(sorted(gather.replies.items()))
        self._parts.arrive(recording)

    def batch(self, recording: Recording) -> TensorDictBase:
        """Take a rollout from the workers' slots; see `Schedule`."""
        return self._arrangement.deliver(recording.dones)

    def have_written(self, recording: Recording, writes: PendingWrites, most: int | None) -> None:
        """Make the workers write a rollout, one after the other; see `Schedule`."""
        for worker, done in recording.dones.items():
            frames = writes.add(worker, done, most)
            most = None if most is None else most - frames
        self._handover.handed_out()
        writes.carry_out(self.recover)

    def recover(self, failure: WorkerError) -> None:
        """Handle a failure that occurred while workers wrote, or raise it."""
        self._workers.recover(failure, None)

    def first_row(self, recording: Recording) -> int:
        """The number of a rollout's first row, counted across all workers."""
        return 0

    def has_length(self) -> bool:
        """Whether all batches have the same number of frames."""
        return True
