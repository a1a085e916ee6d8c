"""`CollectorAttributes`: what can be read of every collector."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from reap.collectors.options import CollectorOptions
from reap.workers.base import WorkerGroup


class CollectorAttributes:
    """Attributes of every collector, all of them read-only."""

    _options: CollectorOptions
    _group: WorkerGroup
    _frames_per_batch: int
    _closed: bool

    @property
    @abstractmethod
    def policy(self) -> Any:
        """The policy."""

    @property
    @abstractmethod
    def batch_size(self) -> torch.Size:
        """Shape of a batch."""

    @property
    def frames_per_batch(self) -> int:
        """Frames of a batch."""
        return self._frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """`frames_per_batch` as it was given, before rounding up."""
        return self._options.frames_per_batch

    @property
    def total_frames(self) -> int:
        """Frames to collect in all, as given; -1 if there is no end."""
        return -1 if self._options.budget is None else self._options.budget

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self._group.size

    @property
    def closed(self) -> bool:
        """Whether the collector is shut down."""
        return self._closed

    @property
    def storing_device(self) -> torch.device | None:
        """Where batches are delivered; None if they stay where they are recorded."""
        return self._options.storing_device
