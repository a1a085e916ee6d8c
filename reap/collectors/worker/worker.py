"""`WorkerSpec`: everything that a worker is built from, and how it is built in its process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from reap.collectors.exchange.base import MakeEnd
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.worker.assembly import assemble, made_by
from reap.collectors.worker.handler import WorkerHandler
from reap.collectors.worker.nested import NestedRecorder
from reap.collectors.worker.policy_copy import PolicyCopy
from reap.collectors.worker.recorder import RolloutRecorder
from reap.envs.make_env import build_env
from reap.policy.contents.held import Held, held_by
from reap.seeds import seed_generators
from reap.weights.attributes import plain_attributes
from reap.workers.progress import STOP, Control


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker is built from.

    Attributes:
        create_env_fn: the env or its factory, pickled.
        policy: the policy, pickled; None for random actions.
        policy_factory: makes the policy in the worker, pickled.
        options: the options of its rollouts.
        leaf: the worker's number in trajectory ids.
        threads: number of torch threads; None leaves it unchanged.
        seed: seeds torch's, numpy's and Python's generators.
        make_end: makes the worker's end of the exchange.
        stops_early: the collector may end a rollout early.
        collector_class: the class, or its name, of the collector that the worker runs; None if it runs an env.
        keywords: options of that collector.
        may_leave: the worker ends its rollout early when told to leave (`reap.workers.progress.LEAVE`).
        owns_process: the worker has a process to itself, so it may set generators and torch's threads.
    """

    create_env_fn: bytes
    policy: bytes | None
    policy_factory: bytes | None
    options: CollectorOptions
    leaf: int
    threads: int | None
    seed: int
    make_end: MakeEnd
    stops_early: bool = False
    collector_class: Any = None
    keywords: Mapping[str, Any] | None = None
    may_leave: bool = False
    owns_process: bool = True

    def make_policy(self) -> tuple[Any, Mapping[str, Any]]:
        """The worker's policy, and its plain attributes if the collector does not know them."""
        if self.policy_factory is not None:
            policy = made_by(pickle.loads(self.policy_factory))
            return policy, plain_attributes(held_by(policy))
        return None if self.policy is None else pickle.loads(self.policy), {}


@dataclass(frozen=True)
class Stopper:
    """Ends a rollout when the control block says so."""

    control: Control

    def collection_stopped(self) -> bool:
        """Whether to end the rollout with this column."""
        return self.control[STOP] != 0


def make_worker(spec: WorkerSpec, number: int, control: Control) -> WorkerHandler:  # noqa: ARG001  the spec holds it
    """Build a worker, in its own process.

    Args:
        spec: the worker's parts.
        number: the worker's number in the group.
        control: shows the collector what the worker is doing.
    """
    if spec.owns_process:
        seed_generators(spec.seed)
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
    make: Callable[..., tuple[Any, PolicyCopy]] = _with_env if spec.collector_class is None else _with_collector
    recorder, policy = make(spec, control)
    info = recorder.describe()
    end = spec.make_end(info.fields, info.batch_shape, info.columns)
    return WorkerHandler(recorder, end, control, policy, seed_generators if spec.owns_process else None)


def _with_env(spec: WorkerSpec, control: Control) -> tuple[RolloutRecorder, PolicyCopy]:
    stop = Stopper(control).collection_stopped
    options = replace(spec.options, interruptor=Stopper(control)) if spec.stops_early else spec.options
    env = build_env(pickle.loads(spec.create_env_fn), options.create_env_kwargs)
    try:
        policy, attributes = spec.make_policy()
        assembly = assemble(env, policy, options, spec.leaf, [stop] if spec.may_leave else [])
    except BaseException:
        env.close()
        raise
    recorder = assembly.recorder
    recorder.rollout.control = control
    recorder.marks_last = options.set_truncated
    if not spec.owns_process:
        recorder.move_to_thread()
    return recorder, PolicyCopy(assembly.held, attributes)


def _with_collector(spec: WorkerSpec, _control: Control) -> tuple[NestedRecorder, PolicyCopy]:
    policy, attributes = spec.make_policy()
    held: Held = held_by(policy)
    recorder = NestedRecorder(
        spec.collector_class, pickle.loads(spec.create_env_fn), policy, spec.keywords or {}, leaf=spec.leaf
    )
    return recorder, PolicyCopy(held, attributes)
