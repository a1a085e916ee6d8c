"""`CollectorAttributes`: attributes that every collector has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from reap.collectors.delivery.records import EpisodeRecords
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.policy_weights import PolicyWeights
from reap.collectors.schedules.base import Schedule
from reap.collectors.workers.base import Workers
from reap.errors import OptionError
from reap.keys import Key
from reap.recording.layout import Field
from reap.specs import Composite, Spec


class CollectorAttributes:
    """Attributes of every collector. All but `env` are read-only."""

    _options: CollectorOptions
    _workers: Workers
    _schedule: Schedule
    _weights: PolicyWeights
    _closed: bool
    _records: EpisodeRecords | None

    @property
    def episodes(self) -> EpisodeRecords:
        """The last finished episodes by trajectory id; `reap.replay` takes them.

        Raises:
            OptionError: the collector was built without `record_episodes`.
        """
        if self._records is None:
            raise OptionError("episodes: expected a collector with record_episodes=True, or the number of episodes to keep")
        return self._records

    @property
    def policy(self) -> Any:
        """The policy that acts; with worker processes, the one given, or None if the workers made their own."""
        return self._workers.policy

    @property
    def env(self) -> Any:
        """The env; None if the envs are in worker processes.

        In this process it can be set to another env with the same specs; collecting then starts new episodes in that env.
        """
        return self._workers.env

    @env.setter
    def env(self, env: Any) -> None:
        self._take_env(env)

    def _take_env(self, given: Any) -> None:
        raise NotImplementedError

    @property
    def batch_size(self) -> torch.Size:
        """Shape of a batch; the first worker's if the workers' shapes differ."""
        return self._schedule.shape

    @property
    def frame_fields(self) -> Mapping[Key, Field]:
        """Shape and dtype of one frame's value for each key of a batch."""
        return self._workers.infos[0].fields

    def _spec(self, name: str) -> Any:
        return self._workers.infos[0].specs[name]

    @property
    def observation_spec(self) -> Composite:
        """Spec of the env's observations; the first worker's if there are several, here and below."""
        return self._spec("observation_spec")

    @property
    def action_spec(self) -> Spec:
        """Spec of the env's actions."""
        return self._spec("action_spec")

    @property
    def reward_spec(self) -> Spec:
        """Spec of the env's rewards."""
        return self._spec("reward_spec")

    @property
    def done_spec(self) -> Spec:
        """Spec of the env's done flags."""
        return self._spec("done_spec")

    @property
    def frames_per_batch(self) -> int:
        """Number of frames in a batch."""
        return self._schedule.frames

    @property
    def requested_frames_per_batch(self) -> int:
        """`frames_per_batch` as it was given, before rounding up."""
        return self._options.frames_per_batch

    @property
    def total_frames(self) -> int:
        """Number of frames to collect in all, as given; -1 for no limit."""
        return -1 if self._options.budget is None else self._options.budget

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self._workers.group.size

    @property
    def closed(self) -> bool:
        """Whether the collector has been shut down."""
        return self._closed

    @property
    def storing_device(self) -> torch.device | None:
        """The device on which batches are delivered; None if they stay where they were recorded."""
        return self._options.storing_device

    @property
    def policy_version(self) -> int:
        """Number of weight updates so far."""
        return self._weights.version

    @property
    def init_random_frames(self) -> int:
        """Number of initial frames with random actions; 0 for none."""
        return self._options.random_frames

    @property
    def max_frames_per_traj(self) -> int:
        """Number of frames after which an episode is truncated; 0 for no limit."""
        return self._options.limit or 0

    @property
    def compiled_policy(self) -> bool:
        """Whether the policy is compiled."""
        return self._options.compile_policy is not False

    @property
    def cudagraphed_policy(self) -> bool:
        """Whether the policy runs as a CUDA graph."""
        return self._options.cudagraph_policy is not False

    @property
    def verbose(self) -> bool:
        """Always False: a collector prints nothing. Use `reap.progress` or `stats()`."""
        return False

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied: envs, processes, memory and generators belong to it; keep its "
            "state_dict(), or pass on a function that builds it"
        )
