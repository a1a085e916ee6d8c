"""`Filling`: fills a replay buffer in the background, rollout by rollout, until the budget is used up."""

from __future__ import annotations

from collections.abc import Callable

from reap.collectors.delivery.delivery import Delivery
from reap.collectors.delivery.supply import Supply
from reap.collectors.delivery.throttle import Throttle
from reap.collectors.parts import Parts
from reap.collectors.schedules.base import Schedule, finish_writes


class Filling:
    """Fills a replay buffer.

    Args:
        parts: the collector's.
        schedule: the collector's.
        supply: provides batches.
        delivery: writes batches.
        throttle: says when to wait for the learner.
    """

    def __init__(self, parts: Parts, schedule: Schedule, supply: Supply, delivery: Delivery, throttle: Throttle) -> None:
        self._options, self._meter, self._workers = parts.options, parts.meter, parts.workers
        self._schedule, self._supply, self._delivery, self._throttle = schedule, supply, delivery, throttle
        self.is_abandoned: Callable[[], bool] = bool
        """Whether the current step is no longer wanted."""

    def step(self) -> bool:
        """Collect and write one batch, unless the throttle says wait; return whether there is more to do."""
        if self._frames_left >= self._least_frames and self._throttle.holds(self._meter.frames):
            self._workers.group.poll(())  # it raises a failure
            return True
        batch = self._supply.next(self._limit)
        if self.is_abandoned():
            return False
        if batch is None:
            finish_writes(self._schedule)
            return self._frames_left >= self._least_frames  # a write may have failed
        self._delivery.hand_out(batch)
        return True

    def _limit(self) -> int:
        """Number of frames of the next rollout that may be written without exceeding `total_frames`."""
        left = self._frames_left
        return 0 if left < self._least_frames or self.is_abandoned() else left

    @property
    def _frames_left(self) -> int:
        budget = self._options.budget
        return self._schedule.frames if budget is None else budget - self._meter.frames

    @property
    def _least_frames(self) -> int:
        """Number of frames in the smallest writable piece of a batch: one column."""
        if self._schedule.writes is None:
            return self._schedule.shape[:-1].numel()
        return min(info.rows for info in self._workers.infos)
