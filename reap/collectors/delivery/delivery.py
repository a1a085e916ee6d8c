"""`Delivery`: takes a batch from the supply to the user, or to the replay buffer."""

from __future__ import annotations

from typing import Any

from reap.collectors.delivery.steps import delivery_steps, in_parts, take
from reap.collectors.handover import Handover
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.schedules.base import Schedule


class Delivery:
    """The steps between a batch and the user: mark, split, postproc, device, replay buffer.

    Args:
        options: the collector's; they choose the steps.
        schedule: the collector's.
        handover: notified when a batch has been handed out.

    Attributes:
        steps: the steps; without any, batches are handed out as they are.
    """

    def __init__(self, options: CollectorOptions, schedule: Schedule, handover: Handover) -> None:
        steps = delivery_steps(options)
        self.steps = (in_parts(steps),) if schedule.delivers_in_parts else steps
        self._schedule, self._handover, self._buffer = schedule, handover, options.replay_buffer

    def hand_out(self, batch: Any) -> Any:
        """Apply the steps to a batch and return what the user gets."""
        # One without frames was written by the workers; a state may say so too.
        is_written = self._schedule.writes is not None and not batch.batch_size.numel()
        delivered = None if is_written else take(self.steps, batch, self._buffer)
        self._handover.handed_out()
        return delivered
