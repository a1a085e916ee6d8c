"""`SyncDataCollector`: collects in this process, while the training loop waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Unpack

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType

from reap.collectors.base import DataCollectorBase
from reap.collectors.counting import count_rollout
from reap.collectors.delivery.steps import break_trajectories
from reap.collectors.options.collector import CollectorOptions, SyncOptions, made_scheme, made_updater, make_options
from reap.collectors.random_ends import end_episodes
from reap.collectors.schedule import gather_all
from reap.collectors.worker.assembly import Assembly, assemble, made_by
from reap.collectors.worker.commands import Collect
from reap.envs.base import EnvBase
from reap.envs.make_env import build_env, is_env
from reap.envs.own_policy import as_policy
from reap.errors import OptionError
from reap.keys import Key
from reap.policy.private import private_copy
from reap.recording.buffers import MASK
from reap.recording.layout import Field, require_private, require_shared
from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
from reap.weights.pending import PendingWeightUpdater
from reap.workers.base import InlineGroup


class SyncDataCollector(DataCollectorBase):
    """Runs a policy in an env and delivers batches of its experience.

    Args:
        create_env_fn: an env, a factory of one, a gymnasium id or a gymnasium env.
        policy: a module or function, or None for random actions (`env.rand_action` and `env.rand_step` mean that too).
        **options: see `CollectorOptions`; `frames_per_batch` is required.

    Yields:
        TensorDicts `[*env.batch_size, T]`, the last dimension named `"time"`, with `T` the columns that make
        `frames_per_batch` frames.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        MemoryError: a batch does not fit into the memory that there is.

    Example:
        >>> with SyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20])]
    """

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Unpack[SyncOptions]) -> None:
        chosen = make_options(options, InteractionType)
        if policy is not None and chosen.policy_factory is not None:
            raise OptionError("policy and policy_factory: expected one of them, got both")
        env = build_env(create_env_fn, chosen.create_env_kwargs)
        self._owns_env = not is_env(create_env_fn)
        self._pending: PendingWeightUpdater | None = None
        # Weights and their version change together.
        self._weights = Lock()
        # What was recorded last was not handed out: new episodes begin behind it, that none has a gap.
        self._is_lost = False
        try:
            made = as_policy(policy) if chosen.policy_factory is None else made_by(chosen.policy_factory)
            self._assembly: Assembly = assemble(env, made, chosen)
            self._held = self._assembly.held
            self._require_room()
            group = InlineGroup([self._assembly.handler])
            super().__init__(chosen, group, self._assembly.frames_per_batch, self._make_updater(chosen))
        except BaseException:
            if self._owns_env:
                env.close()
            raise

    def _require_room(self) -> None:
        layout, env = self._assembly.pool.layout, self._assembly.env
        require_shared([layout]) if env.shares_memory else require_private(layout)

    def _make_updater(self, options: CollectorOptions) -> WeightUpdaterBase | None:
        held, source = self._assembly.held, self._assembly.source
        scheme = made_scheme(options.weight_sync_schemes, options.weight_updater)
        if options.weight_updater is not None:
            return made_updater(options.weight_updater)
        if not held:
            return None
        return VanillaWeightUpdater(held, source) if scheme is None else scheme.updater_here(held, source)

    def _prepare_background(self) -> None:
        assembly = self._assembly
        assembly.recorder.is_in_thread = True
        if not assembly.held:
            return
        private = private_copy(assembly.held)
        actor, kept = assembly.actor_for(private)
        assembly.recorder.act_with(actor, kept, private.policy)
        if self._options.weight_updater is None and isinstance(self._updater, VanillaWeightUpdater):
            source = assembly.source
            # A copy on another device may lack what was changed since the last update.
            changes = None if source is None else self._updater.changes
            self._updater = self._pending = PendingWeightUpdater(private, source or assembly.held, changes)

    def update_policy_weights_(self, policy_or_weights: Any = None, *, worker_ids: Any = None) -> None:
        """Make weights current; see `DataCollectorBase`."""
        with self._weights:
            super().update_policy_weights_(policy_or_weights, worker_ids=worker_ids)

    def reset(self, index: Any = None) -> None:
        """Begin new episodes with the next batch; see `DataCollectorBase`."""
        super().reset(index)
        if index is None:
            break_trajectories(self._options.replay_buffer)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs and generators; see `DataCollectorBase`."""
        following = super().set_seed(seed, static_seed)
        break_trajectories(self._options.replay_buffer)
        return following

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; see `DataCollectorBase`."""
        with self.pause():
            super().load_state_dict(state)
            self._is_lost = False
            break_trajectories(self._options.replay_buffer)
            if self._pending is not None:
                self._pending.push_weights(state["policy"])

    def _command(self, slot: int) -> Collect:
        with self._weights:
            if self._pending is not None:
                self._pending.apply()
            return super()._command(slot)

    def state_dict(self) -> dict[str, Any]:
        """All that a collector needs to go on; see `DataCollectorBase`."""
        with self.pause():
            if self._is_lost:
                self._assembly.recorder.rollout.restart()
            return super().state_dict()

    def rollout(self) -> TensorDictBase:
        """Collect one batch as it was recorded; see `DataCollectorBase`."""
        batch = super().rollout()
        self._is_lost = self._queue is not None or self._options.replay_buffer is not None  # lost to them
        return batch

    def _supply(self, rollouts: Callable[[], TensorDictBase | None]) -> TensorDictBase | None:
        batch = super()._supply(rollouts)
        if self._queue is None and not self._steps:
            self._is_lost = False
        return batch

    def _first_row(self) -> int:
        self._is_lost = False  # it comes into the queue now
        return super()._first_row()

    def _deliver(self, batch: Any) -> Any:
        delivered = super()._deliver(batch)
        self._is_lost = False
        return delivered

    def _next_rollout(self) -> TensorDictBase:
        pool = self._assembly.pool
        slot = pool.take()
        if self._is_lost:
            self._assembly.recorder.rollout.restart()
            break_trajectories(self._options.replay_buffer)
        self._is_lost = True
        command = self._command(slot)
        try:
            (done,) = gather_all(self._group, command)
        except BaseException:
            pool.give_back(slot)
            raise
        count_rollout(self._meter, done, staleness=0 if self._updater is None else self._version - done.version)
        if command.random and self._assembly.recorder.remembers and self._meter.frames >= self._options.random_frames:
            end_episodes(pool.slots[slot].by_row, has_mask=MASK in pool.fields)
        return pool.deliver(slot)

    def _release(self, timeout: float | None, close_env: bool) -> None:
        self._assembly.recorder.close_env = close_env
        self._group.stop(timeout)
        self._assembly.pool.clear()  # not with the collector: its parts refer to each other

    @property
    def policy(self) -> Callable[..., Any]:
        """The policy that acts."""
        return self._assembly.policy

    @property
    def env(self) -> EnvBase:
        """The env."""
        return self._assembly.env

    @property
    def batch_size(self) -> torch.Size:
        """Shape of a batch `[*env.batch_size, T]`."""
        rows = max(1, self.env.batch_size.numel())
        return torch.Size((*self.env.batch_size, self.frames_per_batch // rows))

    @property
    def frame_fields(self) -> Mapping[Key, Field]:
        """Shape and dtype of one frame's value under each key of a batch."""
        return self._assembly.pool.fields

    def _spec(self, name: str) -> Any:
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.env!r}, policy={type(self.policy).__name__} ({self._assembly.actor_kind}), "
            f"frames_per_batch={self.frames_per_batch}, total_frames={self.total_frames}, "
            f"collected={self._meter.frames})"
        )
