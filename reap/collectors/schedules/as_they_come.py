"""`AsTheyCome`: delivers one worker's rollout at a time, in order of arrival; workers record while the training loop works.

    worker w    |-- rollout --|-- rollout --|-- rollout --|
                     Collect <-'  Done: the next one starts before this one is delivered

A worker has at most one rollout in progress, so after a weight update it delivers at most one that was started before the
update.
"""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase

from reap.collectors.delivery.buffer_writes import PendingWrites
from reap.collectors.handover import Recording, RecordingState
from reap.collectors.parts import Parts
from reap.collectors.schedules.base import finish_writes
from reap.collectors.worker.commands import Collect, Done
from reap.errors import WorkerError


class AsTheyCome:
    """Delivers rollouts as they arrive; see `Schedule`.

    Args:
        parts: of the collector; each worker has slots of its own.
    """

    def __init__(self, parts: Parts) -> None:
        infos = parts.workers.infos
        self.shape = torch.Size((*infos[0].batch_shape, infos[0].columns))
        self.frames = max(info.frames for info in infos)
        self.real_rows: torch.Tensor | None = None
        self.delivers_in_parts = False
        self.writes: PendingWrites | None = None
        self._parts, self._workers, self._handover = parts, parts.workers, parts.handover
        self._group = self._workers.group
        if parts.queue is not None:
            parts.queue.expect(sum(info.rows for info in infos))

    def record(self) -> None:
        """Wait for a rollout, and let its worker record the next one; see `Schedule`."""
        self._parts.weights.refresh()
        self._handover.close_gap()
        while not self._handover.recorded:
            self._set_to_work()
            self._receive()
        if self.writes is None:
            # Before the delivery: the worker continues while this rollout is looked at.
            self._set_to_work()

    def settle(self) -> None:
        """Wait until no rollout and no write is in progress; see `Schedule`."""
        finish_writes(self)
        while self._handover.recording or self._workers.joining:
            self._receive()

    def _set_to_work(self) -> None:
        """Start rollouts on all idle workers, within the budget."""
        # The first that waits is delivered while its worker continues; where workers write, it has to be written before.
        recorded, recording = self._handover.recorded[self.writes is None :], self._handover.recording
        busy = {worker for one in (*recorded, *recording) for worker in one.workers}.union(self._workers.joining)
        idle = [worker for worker in range(self._group.size) if worker not in busy]
        late = [worker for worker in idle if not self._is_ahead(worker)]
        for worker in late if late or busy else idle:
            if self._is_wanted and not self._waits_for_warm_up:
                self._begin(worker)

    def _is_ahead(self, worker: int) -> bool:
        """Whether a worker's episodes wait for those of others, because rows take turns."""
        info, queue = self._workers.infos[worker], self._parts.queue
        if queue is None:
            return False
        first = self._workers.starts()[worker]
        return queue.is_ahead(range(first, first + info.rows), 2 * info.frames)

    @property
    def _is_wanted(self) -> bool:
        """Whether the budget allows another rollout."""
        budget = self._parts.options.budget
        return budget is None or self._parts.expected_frames < budget

    @property
    def _waits_for_warm_up(self) -> bool:
        """Whether rollouts with random actions are in progress; they come before the policy's."""
        return not self._parts.is_random and any(one.is_random for one in self._handover.recording)

    def _begin(self, worker: int) -> None:
        slots = self._workers.slots_of(worker)
        command = self._parts.command(worker, slots.take())
        self._group.clear(worker)
        recording = Recording({worker: command}, partial(slots.give_back, command.slot))
        try:
            while recording.state is RecordingState.IDLE and worker not in self._workers.joining:
                self._request(worker, command, recording)
        except BaseException:
            slots.give_back(command.slot)
            self._handover.lose([worker])
            raise
        if recording.state is RecordingState.IDLE:  # the worker has died; its successor begins once it has joined
            slots.give_back(command.slot)

    def _request(self, worker: int, command: Collect, recording: Recording) -> None:
        try:
            self._group.request(worker, command)
            self._handover.begin(recording)
        except WorkerError as failure:
            self._failed(failure)

    def _receive(self) -> None:
        """Wait for a rollout, a write, or a recoverable failure."""
        awaited = {worker for one in self._handover.recording for worker in one.commands}.union(self._workers.joining)
        writes = self.writes
        try:
            worker, done = self._group.ready(awaited if writes is None else {*awaited, *writes.workers})
            if worker in self._workers.joining:
                self._arrive(worker, self._workers.join(worker, done))
            elif writes is None or not writes.wrote(worker):
                self._arrive(worker, self._workers.complete(worker, done))
        except WorkerError as failure:
            self._failed(failure)

    def _failed(self, failure: WorkerError) -> None:
        if self.writes is None:
            self.recover(failure)
        else:
            self.writes.failed(failure, self.recover)

    def recover(self, failure: WorkerError) -> None:
        """Handle a worker's failure, or raise it."""
        recording = self._handover.recording_of(failure.worker)
        command = None if recording is None else recording.commands[failure.worker]
        self._arrive(failure.worker, self._workers.recover(failure, command))

    def _arrive(self, worker: int, done: Done | None) -> None:
        """Register a worker's complete rollout, if there is one."""
        if done is None:
            return
        recording = self._handover.recording_of(worker)
        assert recording is not None
        recording.dones = {worker: done}
        self._parts.arrive(recording)

    def batch(self, recording: Recording) -> TensorDictBase:
        """Take a rollout from its worker's slot; see `Schedule`."""
        ((worker, done),) = recording.dones.items()
        return self._workers.slots_of(worker).deliver(done.slot)

    def have_written(self, recording: Recording, writes: PendingWrites, most: int | None) -> None:
        """Make a worker write its rollout, then record the next one; see `Schedule`."""
        ((worker, done),) = recording.dones.items()
        writes.add(worker, done, most)
        self._handover.handed_out()
        writes.carry_out(self.recover)
        self._set_to_work()

    def first_row(self, recording: Recording) -> int:
        """The number of a rollout's first row, counted across all workers."""
        (worker,) = recording.dones
        return self._workers.starts()[worker]

    def has_length(self) -> bool:
        """Whether all workers deliver the same number of frames."""
        return len({info.frames for info in self._workers.infos}) == 1
