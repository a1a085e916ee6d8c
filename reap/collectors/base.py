"""`DataCollectorBase`: iterate, deliver, weights, seed, stats, shutdown; the same for every collector."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from math import ceil
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDictBase
from torch.utils.data import IterableDataset

from reap.collectors.delivery import delivery_steps
from reap.collectors.handler import Collect, Done, Reset, Seed
from reap.collectors.options import CollectorOptions
from reap.collectors.schedule import gather_all
from reap.errors import ClosedError, OptionError
from reap.stats import CollectorStats, Meter
from reap.weights.base import WeightUpdaterBase
from reap.workers.base import Call, WorkerGroup


class DataCollectorBase(IterableDataset[Any]):
    """What all collectors share.

    Args:
        options: the options.
        group: the workers.
        frames_per_batch: frames of a batch, after rounding up.
        updater: sends weights to the workers; None if there are no weights.
    """

    def __init__(
        self,
        options: CollectorOptions,
        group: WorkerGroup,
        frames_per_batch: int,
        updater: WeightUpdaterBase | None,
    ) -> None:
        super().__init__()
        self._options = options
        self._group = group
        self._frames_per_batch = frames_per_batch
        self._meter = Meter()
        self._steps = delivery_steps(options)
        self._closed = False
        self._version = 0
        self._updater = updater
        if updater is not None:
            updater.register_collector(self)
        self._warn_of_rounding()

    def _warn_of_rounding(self) -> None:
        asked, real = self._options.frames_per_batch, self._frames_per_batch
        if asked != real:
            warnings.warn(
                f"frames_per_batch={asked} is not a multiple of the number of envs: each batch has {real} frames",
                stacklevel=4,
            )
        budget = self._options.budget
        if budget is not None and budget % real:
            warnings.warn(
                f"total_frames={budget} is not a multiple of the {real} frames of a batch: {-(-budget // real) * real} "
                "frames are collected",
                stacklevel=4,
            )

    # ------------------------------------------------------------------ batches

    def __iter__(self) -> Iterator[Any]:
        """Batches until `total_frames` are collected; a second loop goes on where the first stopped."""
        return self.iterator()

    def iterator(self) -> Iterator[Any]:
        """The same as `iter(collector)`."""
        self._ensure_open()
        while not self._exhausted:
            yield self._deliver(self._collect())

    def next(self) -> Any:
        """The next batch; None when `total_frames` are collected."""
        self._ensure_open()
        return None if self._exhausted else self._deliver(self._collect())

    def rollout(self) -> TensorDictBase:
        """Collect one batch as it was recorded: no postproc, no splitting, not written to the replay buffer."""
        self._ensure_open()
        return self._collect()

    def __len__(self) -> int:
        """Number of batches in all.

        Raises:
            TypeError: there is no end.
        """
        budget = self._options.budget
        if budget is None:
            raise TypeError("a collector without total_frames has no length: it goes on until you stop")
        return ceil(budget / self._frames_per_batch)

    @property
    def _exhausted(self) -> bool:
        budget = self._options.budget
        return budget is not None and self._meter.frames >= budget

    def _collect(self) -> TensorDictBase:
        self._meter.enter()
        try:
            batch = self._next_rollout()
        finally:
            self._meter.leave()
        self._meter.batches += 1
        return batch

    @abstractmethod
    def _next_rollout(self) -> TensorDictBase:
        """Have one batch recorded and count it."""

    def _deliver(self, batch: Any) -> Any:
        for step in self._steps:
            batch = step(batch)
        return batch

    def _command(self, slot: int) -> Collect:
        options = self._options
        random = self._meter.frames < options.random_frames
        return Collect(slot, random, options.reset_at_each_iter, self._version)

    def _count(self, done: Done) -> None:
        self._meter.add(done.frames, done.episodes, done.env_seconds, done.policy_seconds)
        self._meter.staleness = self._version - done.version

    # ------------------------------------------------------------------ control

    def reset(self, index: Any = None) -> None:
        """Begin new episodes with the next batch.

        Args:
            index: a row or a list of rows; all if None.
        """
        self._ensure_open()
        rows = None if index is None else np.atleast_1d(np.asarray(index, np.int64)).tolist()
        gather_all(self._group, Reset(rows))

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs and generators; new episodes begin with the next batch.

        Args:
            seed: seed of the first env; each further one gets the next in the chain.
            static_seed: all envs get `seed` itself.

        Returns:
            The seed that follows in the chain.

        Raises:
            OptionError: no seed.
        """
        self._ensure_open()
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
            raise OptionError(f"seed: expected an integer from 0 to 2**63 - 1, got {seed!r}")
        return gather_all(self._group, Seed(int(seed), static_seed))[-1]

    def update_policy_weights_(self, policy_or_weights: Any = None, *, worker_ids: Any = None) -> None:
        """Make weights current: those of the policy given at construction, or those given here.

        Args:
            policy_or_weights: a module, a TensorDict of parameters or a state dict.
            worker_ids: workers to update; all if None.
        """
        self._ensure_open()
        if self._updater is not None:
            self._updater.push_weights(policy_or_weights, worker_ids)
        elif policy_or_weights is not None:
            raise OptionError(f"weights: this {type(self).__name__} has no policy with weights to update")
        self._version += 1

    @property
    def policy_version(self) -> int:
        """Number of weight updates so far."""
        return self._version

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """What `update_policy_weights_` sends weights with; None for a policy without weights."""
        return self._updater

    def getattr_env(self, name: str) -> Any:
        """The value of an attribute of the env; of several envs, a list."""
        return self._ask("env_attribute", name)

    def getattr_policy(self, name: str) -> Any:
        """The value of an attribute of the policy."""
        return self._ask("policy_attribute", name)

    def call_env(self, name: str, *args: Any, worker_ids: Any = None) -> Any:
        """What a method of the env returns; of several envs, a list."""
        return self._ask("call_env", name, *args)

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._ensure_open()
        return gather_all(self._group, Call(name, arguments))[0]

    def stats(self) -> CollectorStats:
        """What was collected so far; the list of finished episodes begins anew with each call."""
        return self._meter.read()

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for workers before they are ended.
            close_env: close the env too.
        """
        if not self._closed:
            self._closed = True
            self._release(timeout, close_env)

    @abstractmethod
    def _release(self, timeout: float | None, close_env: bool) -> None:
        """Stop the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _ensure_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} is shut down; build a new one")

    # ------------------------------------------------------------------ attributes

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
        budget = self._options.budget
        return -1 if budget is None else budget

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
