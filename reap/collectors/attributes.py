"""`CollectorAttributes`: what can be read of every collector."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from reap.collectors.options.collector import CollectorOptions
from reap.policy.contents.held import Held
from reap.specs import Composite, Spec
from reap.weights.base import WeightUpdaterBase
from reap.workers.base import WorkerGroup


class CollectorAttributes:
    """Attributes of every collector, all of them read-only."""

    _options: CollectorOptions
    _group: WorkerGroup
    _frames_per_batch: int
    _closed: bool
    _version: int
    _held: Held
    _updater: WeightUpdaterBase | None

    @property
    @abstractmethod
    def policy(self) -> Any:
        """The policy."""

    @property
    @abstractmethod
    def batch_size(self) -> torch.Size:
        """Shape of a batch."""

    @abstractmethod
    def _spec(self, name: str) -> Any:
        """A spec of the env, or of the first worker's."""

    @property
    def observation_spec(self) -> Composite:
        """The env's observations; of several workers, the first one's, here and below."""
        return self._spec("observation_spec")

    @property
    def action_spec(self) -> Spec:
        """The env's actions."""
        return self._spec("action_spec")

    @property
    def reward_spec(self) -> Spec:
        """The env's rewards."""
        return self._spec("reward_spec")

    @property
    def done_spec(self) -> Spec:
        """The env's done flags."""
        return self._spec("done_spec")

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

    @property
    def policy_version(self) -> int:
        """Number of weight updates so far."""
        return self._version

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """What `update_policy_weights_` sends weights with; None for a policy without weights."""
        return self._updater

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied: envs, processes, memory and generators belong to it; keep its "
            "state_dict(), or pass on a function that builds it"
        )
