"""`NestedRecorder`: records rollouts of another collector: a subclass of `SyncDataCollector`, or one with its own workers.

    Collect(slot) -->   weights, if newer    -->    its collector: rollout() -> TensorDict
                        TensorDict -> slot
    Done          <--

The collector's batch is copied into the slot, and its ids are replaced by ids of this worker. Its versions of the weights are
those of the collector above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.collectors.state import check_state
from reap.collectors.worker.commands import Collect, Done, WorkerInfo
from reap.collectors.worker.recorder import SPECS
from reap.errors import BoundsWarning, OptionError, SpecMismatch, shown
from reap.keys import Key, plain
from reap.policy.contents.held import held_by
from reap.recording.buffers import IDS, MASK, Slot
from reap.recording.layout import Field
from reap.recording.trajectories import LEAF_SHIFT, NO_ID
from reap.specs.fits import Outside

CLASSES = {
    "single": "reap.collectors:SyncDataCollector",
    "sync": "reap.collectors:MultiSyncDataCollector",
    "async": "reap.collectors:MultiaSyncDataCollector",
}
"""The classes that the strings for `collector_class` name; looked up when needed, because these classes import this module."""

BASE = "reap.collectors:DataCollectorBase"

METHODS = {
    "env_attribute": "getattr_env",
    "policy_attribute": "getattr_policy",
    "call_env": "call_env",
    "load_model": "load_model",
}
"""The collector's methods for the calls of `Recorder.call`."""


class NestedRecorder:
    """Records the rollouts of another collector; see `Recorder`.

    Args:
        collector_class: its class, or a name of one.
        create_env_fn: its env or envs.
        policy: its policy.
        keywords: its options.
        leaf: number of the worker, for the ids.
    """

    def __init__(self, collector_class: Any, create_env_fn: Any, policy: Any, keywords: Mapping[str, Any], leaf: int) -> None:
        self._collector = named_class(collector_class)(create_env_fn, policy, **keywords)
        self._policy = policy
        *batch_shape, self._columns = self._collector.batch_size
        self._batch_shape = tuple(batch_shape)
        self._fields = fields_of(self._collector)
        self._leaf = leaf * self._collector.num_workers
        self._outside: dict[Key, int] = {}

    def describe(self) -> WorkerInfo:
        """The worker's description; see `Recorder`."""
        specs = {name: getattr(self._collector, name) for name in SPECS}
        env, kind = shown(self._collector), type(self._collector).__name__
        return WorkerInfo(self._fields, self._batch_shape, self._columns, specs, env, kind)

    def collect(self, command: Collect, slot: Slot, version: int) -> Done:
        """Copy the collector's next rollout into a slot; see `Recorder`."""
        self._collector.count_versions_from(version)  # a policy without weights is sent none, and has a version all the same
        if command.fresh and not self._collector.reset_at_each_iter:
            self._collector.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BoundsWarning)  # the collector of this worker tells it
            batch = self._collector.rollout()
        expected = (*self._batch_shape, self._columns)
        if tuple(batch.shape) != expected:
            raise SpecMismatch(f"{type(self._collector).__name__}.rollout: expected {expected}, found {tuple(batch.shape)}")
        for key in self._fields:
            slot.tensor(key)[...] = self._value(batch, key)
        ids = slot.by_row(IDS)
        ids[ids != NO_ID] += self._leaf << LEAF_SHIFT
        frames = int(slot.by_row(MASK).sum()) if MASK in self._fields else batch.numel()
        stats = self._collector.stats()
        return Done(command.slot, frames, version, stats.episodes, 0.0, 0.0, self._columns, self._news_of(stats.outside))

    def _news_of(self, outside: Sequence[Outside]) -> list[Outside]:
        """Numbers outside their bounds that were counted since the last rollout."""
        before, self._outside = self._outside, {one.key: one.frames for one in outside}
        news = [replace(one, frames=one.frames - before.get(one.key, 0)) for one in outside]
        return [one for one in news if one.frames]

    def _value(self, batch: TensorDictBase, key: Key) -> torch.Tensor:
        value = batch.get(key, None)
        if value is None:
            raise SpecMismatch(f"{type(self._collector).__name__}.rollout: expected a batch with {plain(key)!r}, found none")
        return value

    def weights_changed(self, version: int) -> None:
        """Pass the policy's weights on to policies that are copies, as the same version; see `Recorder`."""
        self._collector.count_versions_from(version - 1)
        self._collector.update_policy_weights_()

    def reset(self, rows: Sequence[int] | None) -> None:
        """Start new episodes with the next rollout; see `Recorder`."""
        self._collector.reset(rows)

    def seed(self, seed: int, static: bool) -> int:
        """Seed the collector; see `Recorder`."""
        return self._collector.set_seed(seed, static)

    def state(self) -> dict[str, Any]:
        """The collector's state; see `Recorder`."""
        return {"collector": self._collector.state_dict()}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise for a state that belongs to another collector; see `Recorder`."""
        collector = self._collector
        check_state(state.get("collector"), type(collector).__name__, collector.num_workers, held_by(self._policy))

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the collector's state; see `Recorder`."""
        self._collector.load_state_dict(state["collector"])

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call the collector's env or policy; see `Recorder`."""
        return getattr(self._collector, METHODS[name])(*arguments)

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown()


def named_class(given: Any) -> Any:
    """The collector class that was given or named.

    Raises:
        OptionError: anything else.
    """
    if isinstance(given, str) and given in CLASSES:
        return resolve_name(CLASSES[given])
    if isinstance(given, type) and issubclass(given, resolve_name(BASE)):
        return given
    raise OptionError(f"collector_class: expected a collector class or one of {list(CLASSES)}, got {given!r}")


def fields_of(collector: Any) -> Mapping[Key, Field]:
    """One frame's value under each key of the batches of a collector.

    Raises:
        OptionError: a batch holds objects, which cannot be stored in shared memory.
    """
    found: Mapping[Key, Field] = collector.frame_fields
    if any(field.is_object for field in found.values()):
        raise OptionError(
            f"collector_class: {type(collector).__name__} records objects, which no other collector can take over"
        )
    return found
