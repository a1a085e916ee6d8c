"""`Schedule`: decides which worker records when, and which rollout is delivered next. It works over any group of workers."""

from __future__ import annotations

from typing import Protocol

import torch
from tensordict import TensorDictBase

from reap.collectors.delivery.buffer_writes import PendingWrites
from reap.collectors.handover import Recording
from reap.errors import WorkerError


class Schedule(Protocol):
    """Makes workers record.

    Attributes:
        shape: of a batch.
        frames: frames of a batch.
        writes: the workers' own writes to the replay buffer; None if they do not write.
        real_rows: the rows of a batch that are not padding; None if all are real.
        delivers_in_parts: whether each worker's part of a batch is delivered by itself.
    """

    shape: torch.Size
    frames: int
    writes: PendingWrites | None
    real_rows: torch.Tensor | None
    delivers_in_parts: bool

    def record(self) -> None:
        """Return once at least one rollout is recorded; after an interruption, call it again."""
        ...

    def settle(self) -> None:
        """Wait until no rollout and no write is in progress; recorded rollouts wait for delivery."""
        ...

    def batch(self, recording: Recording) -> TensorDictBase:
        """Take a rollout from the workers' slots."""
        ...

    def have_written(self, recording: Recording, writes: PendingWrites, most: int | None) -> None:
        """Make the workers write a rollout to the replay buffer, at most `most` frames, while they may record."""
        ...

    def recover(self, failure: WorkerError) -> None:
        """Handle a failure that occurred while workers wrote, or raise it."""
        ...

    def first_row(self, recording: Recording) -> int:
        """The number of a rollout's first row, counted across all workers."""
        ...

    def has_length(self) -> bool:
        """Whether all batches have the same number of frames."""
        ...


def finish_writes(schedule: Schedule) -> None:
    """Wait until no write of the workers to the replay buffer is in progress."""
    if schedule.writes is not None:
        schedule.writes.finish(schedule.recover)
