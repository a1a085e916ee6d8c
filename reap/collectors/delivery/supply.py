"""`Supply`: gives the next batch of a collector, of rollouts or of whole episodes, within the budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors.delivery.buffer_writes import PendingWrites
from reap.collectors.delivery.cut import cut
from reap.collectors.delivery.episodes import EpisodeQueue, next_episodes
from reap.collectors.delivery.exclusive import ExclusiveCall
from reap.collectors.delivery.steps import mark_truncated
from reap.collectors.handover import Recording
from reap.collectors.parts import Parts
from reap.collectors.schedules.base import Schedule
from reap.collectors.worker.results import valid_frames
from reap.errors import OptionError
from reap.system.interrupts import deferring_interrupts

Limit = Callable[[], int | None]
"""Maximum number of frames to deliver from the next rollout: None for all, 0 if no rollout is to follow."""

WRITTEN = TensorDict({"collector": {"mask": torch.zeros(0, dtype=torch.bool)}}, batch_size=[0])
"""Placeholder for a batch that the workers have written to the replay buffer themselves."""


class Supply:
    """Requests rollouts, one call at a time, and makes batches from them.

    Args:
        name: the collector's class, for errors.
        parts: of the collector.
        schedule: makes workers record.
        hands_out: whether batches go to the user as they are; otherwise delivery steps follow.
        marks: whether the last frame of each row is marked truncated.

    Attributes:
        queue: holds whole episodes, with `trajs_per_batch`.
        recorded_by: returns the `rollout()` of a collector subclass that overrides it; it is then called for each rollout.
    """

    def __init__(self, name: str, parts: Parts, schedule: Schedule, *, hands_out: bool, marks: bool) -> None:
        self.queue = parts.queue
        self.recorded_by: Callable[[], Callable[[], TensorDictBase] | None] | None = None
        self._parts, self._schedule, self._handover, self._meter = parts, schedule, parts.handover, parts.meter
        self._hands_out, self._marks = hands_out, marks
        self._exclusive = ExclusiveCall(name)
        self._last: Recording | None = None

    def next(self, limit: Limit | None = None) -> Any:
        """The next batch, or None. A batch that is complete when Ctrl-C arrives is returned by the next call.

        Args:
            limit: returns how many frames of each rollout to deliver; None: whole rollouts until the budget is used up.
        """
        handover, limit = self._handover, self._whole if limit is None else limit
        if handover.ready is None:
            with deferring_interrupts():
                handover.ready = self._within(limit) if self.queue is None else self._episodes(self.queue, limit)
                if self._hands_out:
                    handover.handed_out()
        batch, handover.ready = handover.ready, None
        return batch

    def rollout(self) -> TensorDictBase:
        """A rollout as recorded, which goes neither to the episode queue nor to the replay buffer."""
        handover, writes = self._handover, self._schedule.writes
        if writes is not None and writes.are_elsewhere:
            raise OptionError("rollout: the workers keep what they record, and write it to the replay buffer; call next()")
        if handover.ready is None or handover.ready is WRITTEN or self.queue is not None:
            with deferring_interrupts():
                with self._exclusive:
                    batch = self._timed(None, None)
                if self.queue is not None:
                    return batch
                handover.ready = batch
                if self._parts.options.replay_buffer is None:
                    handover.handed_out()
        batch, handover.ready = handover.ready, None
        return batch

    def _whole(self) -> int | None:
        budget = self._parts.options.budget
        return 0 if budget is not None and self._meter.frames >= budget else None

    def _episodes(self, queue: EpisodeQueue, limit: Limit) -> TensorDictBase | None:
        return next_episodes(queue, partial(self._rows_within, limit), self._first_row, self._meter.discard)

    def _rows_within(self, limit: Limit) -> Any:
        """A rollout without its padding rows, which hold no episodes."""
        batch, rows = self._within(limit), self._schedule.real_rows
        return batch if batch is None or rows is None else batch.reshape(-1, batch.shape[-1])[rows]

    def _first_row(self) -> int:
        self._handover.handed_out()  # the queue has it now
        assert self._last is not None
        return self._schedule.first_row(self._last)

    def _within(self, limit: Limit) -> Any:
        """A rollout, cut to the limit; None if the limit is 0."""
        most = limit()
        if most == 0:
            return None
        own = None if self.recorded_by is None else self.recorded_by()
        if own is not None:
            return self._of_class(own, most)
        with self._exclusive:
            return self._timed(most, self._schedule.writes)

    def _of_class(self, rollout: Callable[[], TensorDictBase], most: int | None) -> TensorDictBase:
        """The result of the collector's own `rollout()`; its frames are counted here if that call recorded nothing itself."""
        before = self._meter.frames
        try:
            batch = rollout()
        except BaseException:
            self._handover.lose(range(self._parts.workers.group.size))  # what it may have been given is not delivered
            raise
        if self._meter.frames == before:
            self._meter.frames += valid_frames(batch)
            self._meter.batches += 1
        if most is None or valid_frames(batch) <= most:
            return batch
        batch, surplus = cut(batch, most)
        self._meter.take_back(surplus)
        return mark_truncated(batch) if self._marks else batch

    def _timed(self, most: int | None, writes: PendingWrites | None) -> TensorDictBase:
        self._meter.enter()
        try:
            if writes is not None and writes.are_left and most is None:
                writes.finish(self._schedule.recover)  # what Ctrl-C interrupted
                batch = WRITTEN
            else:
                self._schedule.record()
                if writes is not None and self._handover.recorded[0].batch is None:
                    batch = self._written(writes, most)
                else:
                    batch = self._taken() if most is None else self._cut(most)
        finally:
            self._meter.leave()
        self._meter.batches += 1
        return batch

    def drop_elsewhere(self) -> None:
        """Drop rollouts that only the workers have, who would have written them to the replay buffer."""
        if self._schedule.writes is not None and self._schedule.writes.are_elsewhere:
            lost = {worker for one in self._handover.recorded if one.batch is None for worker in one.workers}
            if lost:
                self._handover.lose(lost)

    def state(self) -> dict[str, Any]:
        """The batches and episodes waiting to be handed out, as tensors, numbers, lists and dicts. Call it between rollouts."""
        for one in self._handover.recorded:
            if one.batch is None:
                # A copy: a slot that is lent before its turn would make the worker need another.
                one.batch = self._schedule.batch(one).clone()
        return self._handover.state()

    def _taken(self) -> TensorDictBase:
        recording = self._last = self._handover.take()
        self._count(recording)
        return self._schedule.batch(recording) if recording.batch is None else recording.batch

    def _count(self, recording: Recording) -> None:
        for worker, done in recording.dones.items():
            self._parts.count(worker, done)

    def _cut(self, most: int) -> TensorDictBase:
        batch, surplus = cut(self._taken(), most)
        self._meter.take_back(surplus)
        return mark_truncated(batch) if self._marks else batch

    def _written(self, writes: PendingWrites, most: int | None) -> TensorDictBase:
        recording = self._handover.take()
        self._count(recording)
        self._schedule.have_written(recording, writes, most)
        if most is None:
            writes.finish(self._schedule.recover)
        return WRITTEN
