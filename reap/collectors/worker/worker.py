"""What runs in a worker process: an env and a policy of its own, rollouts recorded in memory that the collector made.

collector                                   worker
  DescribeWorker            ------------------->  WorkerInfo: fields, rows, columns, specs, weights
  AttachSlot(slot) + fd   ------------------->  maps the slot; its rows are a part of it
  AttachWeights + fd  ------------------->  maps its mailbox
  Collect(slot)       ------------------->  newer weights? load them; Rollout.fill; Done
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from reap.collectors.options.collector import CollectorOptions
from reap.collectors.state import policy_state
from reap.collectors.worker.assembly import Assembly, assemble, made_by
from reap.collectors.worker.buffer_writer import BufferWriter, ConnectBuffer, Write
from reap.collectors.worker.handler import Collect, Done, GetState, Reset, Seed, SetState
from reap.envs.make_env import build_env
from reap.errors import shown
from reap.keys import Key
from reap.policy.contents.held import Held, held_by
from reap.recording.buffers import DONE, MASK, STEP_COUNT, TRUNCATED, Slot, after, map_slot
from reap.recording.layout import Field
from reap.rollout.loop import Phase
from reap.seeds import seed_generators
from reap.specs import Spec
from reap.weights.attributes import applied_attributes, loaded, plain_attributes, set_attributes
from reap.weights.base import check_weights, load_weights
from reap.weights.weight_layout import describe
from reap.workers.progress import PHASE, PUBLISHED, STOP

NEVER = 2**62
"""Newer than any version: what a mailbox gives is then what was written since it was read last."""

SPECS = ("observation_spec", "action_spec", "reward_spec", "done_spec")


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker is built from.

    Attributes:
        create_env_fn: the env, or what makes it, pickled.
        policy: the policy, pickled; None for random actions.
        policy_factory: makes the policy in the worker, pickled.
        options: the options of its rollouts.
        leaf: its number, for the ids.
        threads: torch threads; None leaves them.
        seed: seeds torch's, numpy's and Python's generators.
        stops_early: the collector may end a rollout early.
    """

    create_env_fn: bytes
    policy: bytes | None
    policy_factory: bytes | None
    options: CollectorOptions
    leaf: int
    threads: int | None
    seed: int
    stops_early: bool = False

    def make_policy(self) -> tuple[Any, Mapping[str, Any]]:
        """The policy, in the worker, and its plain attributes, where nobody else knows them."""
        if self.policy_factory is not None:
            policy = made_by(pickle.loads(self.policy_factory))
            return policy, plain_attributes(held_by(policy))
        return None if self.policy is None else pickle.loads(self.policy), {}


@dataclass(frozen=True)
class DescribeWorker:
    """Reply with `WorkerInfo`."""


@dataclass(frozen=True)
class WorkerInfo:
    """What a collector must know of a worker.

    Attributes:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of the env.
        columns: time steps of a rollout.
        specs: the env's specs, by name.
        env: the env, in words.
        actor_kind: how the policy is called.
        weights: shape and dtype of each weight; None for a policy without weights.
        attributes: plain attributes of the policy as the worker made it; none of one that was sent to it.
        counts_steps: the collector counts the steps of episodes.
        resets_itself: the env does so, with a step of its own.
        remembers: the policy has a recurrent state.
    """

    fields: Mapping[Key, Field]
    batch_shape: tuple[int, ...]
    columns: int
    specs: Mapping[str, Spec]
    env: str
    actor_kind: str
    weights: Mapping[str, Field] | None
    attributes: Mapping[str, Any]
    counts_steps: bool
    resets_itself: bool
    remembers: bool

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(np.prod(self.batch_shape, dtype=np.int64))

    @property
    def frames(self) -> int:
        """Frames of a rollout."""
        return self.rows * self.columns


@dataclass(frozen=True)
class AttachSlot:
    """Map the next slot: memory for `rows` rows, of which this worker's begin with `first_row`."""

    rows: int
    first_row: int


@dataclass(frozen=True)
class AttachWeights:
    """Take the worker's end of the mailbox that weights come through.

    Attributes:
        kind: the class of the mailbox.
    """

    kind: Any


@dataclass(frozen=True)
class CheckState:
    """Refuse a worker's state that does not fit; nothing is changed."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Stopper:
    """Ends a rollout when the control block says so."""

    control: memoryview

    def collection_stopped(self) -> bool:
        """Whether to end the rollout with this column."""
        return self.control[STOP] != 0


class Attached:
    """What a worker shares with its collector: slots, of which it records its own rows, and the mailbox of its weights.

    Args:
        held: what the policy holds whose weights come through the mailbox.
        attributes: plain attributes of a policy that was made here, before it was called.
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of its rows.
        columns: time steps of a rollout.
        slots: where the slots go.
        control: the control block.
    """

    def __init__(
        self,
        held: Held,
        attributes: Mapping[str, Any],
        fields: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        columns: int,
        slots: list[Slot],
        control: memoryview,
    ) -> None:
        self._held, self._attributes, self._control = held, attributes, control
        self._fields, self._batch_shape, self._columns = fields, batch_shape, columns
        self._slots = slots
        self._mailbox: Any = None
        self._version = 0
        self._end: BufferWriter | None = None

    def handle_with(self, command: Any, fds: Sequence[int]) -> None:
        """Carry out a command that descriptors came with; they belong to this worker."""
        if isinstance(command, AttachSlot):
            self._attach(command, *fds)
        else:
            self._attach_weights(command, *fds)

    def _attach(self, command: AttachSlot, fd: int) -> None:
        rows, first_row = command.rows, command.first_row
        self._slots.append(map_slot(fd, self._fields, rows, self._columns, first_row, self._batch_shape))

    def _attach_weights(self, command: AttachWeights, *fds: int) -> None:
        self._mailbox = command.kind.attach(describe(self._held), *fds)

    def _write_to(self, command: ConnectBuffer) -> None:
        """Take the worker's end of the replay buffer."""
        self._end = BufferWriter(command, self._control[PUBLISHED:])

    def _write(self, command: Write) -> None:
        """Write what is recorded in a slot."""
        assert self._end is not None
        self._end.write(self._slots[command.slot], command.columns)

    def _break_trajectories(self) -> None:
        """What is written next goes on from nothing that was written before."""
        if self._end is not None:
            self._end.break_trajectories()

    def _check_weights(self, command: CheckState) -> None:
        """Refuse a state whose weights are not those of the policy."""
        if self._held:
            check_weights(self._held, command.state["policy"])

    def _state_of_policy(self) -> dict[str, Any]:
        # Its own weights: those of the collector's policy may be newer, and one that a factory made is here only.
        return {"policy": policy_state(self._held), "attributes": applied_attributes(self._held), "version": self._version}

    def _weights(self) -> Mapping[str, Field] | None:
        """Shape and dtype of each weight of the policy; None if it has none."""
        return describe(self._held) if self._held else None


class Worker(Attached):
    """Carries out the commands of a collector in a process of its own.

    Args:
        recipe: what it is built from.
        control: the control block that it shares with the collector.
    """

    def __init__(self, recipe: WorkerSpec, control: memoryview) -> None:
        prepare(recipe)
        options = replace(recipe.options, interruptor=Stopper(control)) if recipe.stops_early else recipe.options
        assembly, attributes = build_assembly(recipe, options)
        self._assembly = assembly
        pool = assembly.pool
        rows = tuple(assembly.env.batch_size)
        super().__init__(assembly.held, attributes, pool.fields, rows, pool.columns, pool.slots, control)
        self._handler = assembly.handler
        self._handler.rollout.control = control
        self._marks = recipe.options.set_truncated
        self._since = 0
        self._handlers: dict[type, Callable[[Any], Any]] = {
            Collect: self._collect,
            DescribeWorker: self._facts,
            AttachWeights: self._attach_weights,
            ConnectBuffer: self._write_to,
            Write: self._write,
            Reset: self._reset,
            Seed: self._seed,
            CheckState: self._check_state,
            GetState: self._get_state,
            SetState: self._set_state,
        }

    def handle(self, command: Any) -> Any:
        """Carry out a command."""
        return self._handlers.get(type(command), self._handler.handle)(command)

    def close(self) -> None:
        """Close the env."""
        self._handler.close()

    def _write(self, command: Write) -> None:
        control = self._handler.rollout.control
        control[PHASE] = Phase.WRITE
        super()._write(command)
        control[PHASE] = Phase.IDLE

    def _read_weights(self) -> None:
        """Load what has come since the last time; its version may be a lower one, of a collector that has gone back."""
        if self._mailbox is not None:
            found = self._mailbox.read_into(self._held, self._since)
            if found != self._since:
                self._version = found
            self._since = NEVER

    def _get_state(self, command: GetState) -> dict[str, Any]:
        self._read_weights()
        return {**self._handler.handle(command), **self._state_of_policy()}

    def _reset(self, command: Reset) -> None:
        self._handler.handle(command)
        if command.rows is None:
            self._break_trajectories()

    def _seed(self, command: Seed) -> int:
        seed_generators(command.seed)  # this process's: envs may use them
        following: int = self._handler.handle(command)
        self._break_trajectories()
        return following

    def _check_state(self, command: CheckState) -> None:
        self._handler.check_state(command.state)
        self._check_weights(command)

    def _set_state(self, command: SetState) -> None:
        self._handler.handle(command)
        self._read_weights()
        if self._held:
            load_weights(self._held, command.state["policy"])
            set_attributes(self._held, loaded(command.state.get("attributes", {})))
        self._version = command.state["version"]
        self._break_trajectories()

    def _facts(self, _command: DescribeWorker) -> WorkerInfo:
        assembly, env = self._assembly, self._assembly.env
        return WorkerInfo(
            self._fields,
            self._batch_shape,
            self._columns,
            {name: getattr(env, name) for name in SPECS},
            shown(env),
            assembly.actor_kind,
            self._weights(),
            self._attributes,
            STEP_COUNT in self._fields and STEP_COUNT not in env.fields_of_stage(),
            env.resets_itself,
            self._handler.remembers,
        )

    def _collect(self, command: Collect) -> Done:
        self._read_weights()
        # A policy without weights is never behind.
        done = self._handler.handle(command if self._mailbox is None else replace(command, version=self._version))
        slot = self._slots[command.slot]
        if self._marks:
            mark_last(slot)
        objects = {key: slot.by_row(key) for key, field in slot.fields.items() if field.is_object}
        return replace(done, objects=objects) if objects else done


def prepare(recipe: WorkerSpec) -> None:
    """Seed the generators of this process and set its threads."""
    seed_generators(recipe.seed)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)


def make_worker(recipe: WorkerSpec, number: int, control: memoryview) -> Worker:  # noqa: ARG001  the recipe holds it
    """A worker, in its own process."""
    return Worker(recipe, control)


def build_assembly(recipe: WorkerSpec, options: CollectorOptions) -> tuple[Assembly, Mapping[str, Any]]:
    """Env, policy and rollout of a worker, and the attributes of a policy that it made."""
    env = build_env(pickle.loads(recipe.create_env_fn), options.create_env_kwargs)
    try:
        policy, attributes = recipe.make_policy()
        return assemble(env, policy, options, recipe.leaf), attributes
    except BaseException:
        env.close()
        raise


def mark_last(slot: Slot) -> None:
    """Mark the last valid frame of each row truncated and done; flags that are set stay."""
    flags = [slot.by_row(after(key)) for key in (TRUNCATED, DONE)]
    rows = np.arange(slot.rows)
    last = np.full(slot.rows, slot.columns - 1)
    if MASK in slot.fields:
        mask = slot.by_row(MASK)
        last -= np.argmax(mask[:, ::-1], axis=1)
        rows, last = rows[mask.any(1)], last[mask.any(1)]
    for flag in flags:
        flag[rows, last] = True
