"""`Schedule`: who records when, and which rollout is delivered next. It works over any group of workers."""

from __future__ import annotations

from typing import Protocol

import torch
from tensordict import TensorDictBase

from reap.collectors.delivery.buffer_writes import PendingWrites
from reap.collectors.handover import Recording
from reap.errors import WorkerError


class Schedule(Protocol):
    """Has workers record.

    Attributes:
        shape: of a batch.
        frames: frames of a batch.
        writes: what workers write to the replay buffer themselves; None where they do not.
        real_rows: the rows of a batch that belong to a worker; None if all do.
        delivers_in_parts: whether each worker's part of a batch is delivered by itself.
    """

    shape: torch.Size
    frames: int
    writes: PendingWrites | None
    real_rows: torch.Tensor | None
    delivers_in_parts: bool

    def record(self) -> None:
        """Have at least one rollout recorded; who is interrupted calls it again."""
        ...

    def settle(self) -> None:
        """Have no rollout and no write under way; rollouts that were recorded wait for delivery."""
        ...

    def batch(self, recording: Recording) -> TensorDictBase:
        """Take a rollout out of the workers' slots."""
        ...

    def have_written(self, recording: Recording, writes: PendingWrites, most: int | None) -> None:
        """Have the workers write a rollout to the replay buffer, `most` frames of it, while they may record the next one."""
        ...

    def recover(self, failure: WorkerError) -> None:
        """Take a failure that came while workers wrote, or raise it."""
        ...

    def first_row(self, recording: Recording) -> int:
        """Where the rows of a rollout begin among those of all workers."""
        ...

    def has_length(self) -> bool:
        """Whether all batches have equally many frames."""
        ...


def finish_writes(schedule: Schedule) -> None:
    """Have no write to the replay buffer under way that workers were told to make."""
    if schedule.writes is not None:
        schedule.writes.finish(schedule.recover)
