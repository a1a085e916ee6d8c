"""A worker that runs a collector of its own: a class derived from `SyncDataCollector`, or one with worker processes.

    collector           worker                      its collector
      Collect(slot) -->   weights, if newer    -->    rollout() -> TensorDict
                          TensorDict -> slot
      Done          <--

What the collector returns is copied into the slot. Its ids become those of this worker.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDictBase

import reap.collectors as door
from reap.collectors.worker.buffer_writer import ConnectBuffer, Write
from reap.collectors.worker.handler import Collect, Done, GetState, Reset, Seed, SetState
from reap.collectors.worker.worker import (
    SPECS,
    Attached,
    AttachWeights,
    CheckState,
    DescribeWorker,
    WorkerInfo,
    WorkerSpec,
    prepare,
)
from reap.errors import BoundsWarning, OptionError, SpecMismatch, shown
from reap.keys import Key, plain
from reap.policy.contents.held import held_by
from reap.recording.buffers import IDS, MASK
from reap.recording.layout import Field
from reap.recording.trajectories import LEAF_SHIFT, NO_ID
from reap.seeds import seed_generators
from reap.specs.fits import Outside
from reap.weights.attributes import loaded, set_attributes
from reap.workers.base import Call

NAMES = {"single": "SyncDataCollector", "sync": "MultiSyncDataCollector", "async": "MultiaSyncDataCollector"}
"""What the strings for `collector_class` stand for."""


class NestedWorker(Attached):
    """Carries out the commands of a collector with a collector of its own.

    Args:
        recipe: what it is built from.
        collector_class: the class of its collector, or a name of one.
        keywords: options of its collector.
        control: the control block that it shares with the collector in front.
    """

    def __init__(self, recipe: WorkerSpec, collector_class: Any, keywords: Mapping[str, Any], control: memoryview) -> None:
        prepare(recipe)
        policy, attributes = recipe.make_policy()
        self._collector = named_class(collector_class)(pickle.loads(recipe.create_env_fn), policy, **keywords)
        *batch_shape, columns = self._collector.batch_size
        super().__init__(held_by(policy), attributes, fields_of(self._collector), tuple(batch_shape), columns, [], control)
        self._leaf = recipe.leaf * self._collector.num_workers
        self._outside: dict[Key, int] = {}
        self._handlers: dict[type, Callable[[Any], Any]] = {
            Collect: self._collect,
            DescribeWorker: self._facts,
            AttachWeights: self._attach_weights,
            ConnectBuffer: self._write_to,
            Write: self._write,
            Reset: self._reset,
            Seed: self._seed,
            GetState: self._get_state,
            CheckState: self._check_weights,
            SetState: self._set_state,
            Call: self._call,
        }

    def handle(self, command: Any) -> Any:
        """Carry out a command."""
        return self._handlers[type(command)](command)

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown()

    def _reset(self, command: Reset) -> None:
        self._collector.reset(command.rows)
        if command.rows is None:
            self._break_trajectories()

    def _seed(self, command: Seed) -> int:
        seed_generators(command.seed)  # this process's: envs may use them
        following = self._collector.set_seed(command.seed, command.static)
        self._break_trajectories()
        return following

    def _get_state(self, _command: GetState) -> dict[str, Any]:
        self._read_weights()
        return {"collector": self._collector.state_dict(), **self._state_of_policy()}

    def _set_state(self, command: SetState) -> None:
        self._collector.load_state_dict(command.state["collector"])
        set_attributes(self._held, loaded(command.state.get("attributes", {})))
        self._break_trajectories()

    def _call(self, command: Call) -> Any:
        methods = {"env_attribute": "getattr_env", "policy_attribute": "getattr_policy", "call_env": "call_env"}
        return getattr(self._collector, methods[command.name])(*command.arguments)

    def _read_weights(self) -> None:
        version = self._version if self._mailbox is None else self._mailbox.read_into(self._held, self._version)
        if version != self._version:
            self._version = version
            self._collector.update_policy_weights_()

    def _facts(self, _command: DescribeWorker) -> WorkerInfo:
        specs = {name: getattr(self._collector, name) for name in SPECS}
        env, kind, weights = shown(self._collector), type(self._collector).__name__, self._weights()
        own = self._attributes
        return WorkerInfo(self._fields, self._batch_shape, self._columns, specs, env, kind, weights, own, False, False, False)

    def _collect(self, command: Collect) -> Done:
        self._read_weights()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BoundsWarning)  # the collector of this worker tells it
            batch = self._collector.rollout()
        slot = self._slots[command.slot]
        expected = (*self._batch_shape, self._columns)
        if tuple(batch.shape) != expected:
            raise SpecMismatch(f"{type(self._collector).__name__}.rollout: expected {expected}, found {tuple(batch.shape)}")
        for key in self._fields:
            slot.tensor(key)[...] = self._value(batch, key)
        ids = slot.by_row(IDS)
        ids[ids != NO_ID] += self._leaf << LEAF_SHIFT
        frames = int(slot.by_row(MASK).sum()) if MASK in self._fields else batch.numel()
        stats = self._collector.stats()
        return Done(
            command.slot, frames, self._version, stats.episodes, 0.0, 0.0, self._columns, outside=self._news_of(stats.outside)
        )

    def _news_of(self, outside: Sequence[Outside]) -> list[Outside]:
        """What has come since the last rollout to the counts of numbers outside of their bounds."""
        before, self._outside = self._outside, {one.key: one.frames for one in outside}
        news = [replace(one, frames=one.frames - before.get(one.key, 0)) for one in outside]
        return [one for one in news if one.frames]

    def _value(self, batch: TensorDictBase, key: Key) -> torch.Tensor:
        value = batch.get(key, None)
        if value is None:
            raise SpecMismatch(f"{type(self._collector).__name__}.rollout: expected a batch with {plain(key)!r}, found none")
        return value


def named_class(given: Any) -> Any:
    """The collector class that was given, or that a name stands for.

    Raises:
        OptionError: something else.
    """
    if isinstance(given, str) and given in NAMES:
        return getattr(door, NAMES[given])
    if isinstance(given, type) and issubclass(given, door.DataCollectorBase):
        return given
    raise OptionError(f"collector_class: expected a collector class or one of {list(NAMES)}, got {given!r}")


def fields_of(collector: Any) -> Mapping[Key, Field]:
    """One frame's value under each key of the batches of a collector.

    Raises:
        OptionError: a batch holds objects, which have no place in shared memory.
    """
    found: Mapping[Key, Field] = collector.frame_fields
    if any(field.is_object for field in found.values()):
        raise OptionError(
            f"collector_class: {type(collector).__name__} records objects, which no other collector can take over"
        )
    return found


def make_nested(
    recipe: WorkerSpec, collector_class: Any, keywords: Mapping[str, Any], _worker: int, control: memoryview
) -> NestedWorker:
    """A worker with a collector, in its own process."""
    return NestedWorker(recipe, collector_class, keywords, control)
