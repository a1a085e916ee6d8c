"""`WorkerHandler`: carries out a worker's commands, from a single table.

    command --> handle --> weights   PolicyCopy          loads newer ones first
                           slot      exchange's end      where the rollout goes
                           rollout   Recorder            an env and a policy, or a collector
                           write     BufferWriter        the worker's end of the replay buffer

`SyncDataCollector` has one in its own process: without a copy of the policy, since the caller's own acts, and without a writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from reap.collectors.exchange.base import WorkerEnd
from reap.collectors.worker.buffer_writer import BufferWriter
from reap.collectors.worker.commands import (
    AttachSlot,
    AttachWeights,
    CheckState,
    Collect,
    ConnectBuffer,
    DescribeWorker,
    Done,
    GetState,
    PutWeights,
    Reset,
    Seed,
    SetState,
    WorkerInfo,
    Write,
)
from reap.collectors.worker.policy_copy import PolicyCopy
from reap.recording.buffers import Slot
from reap.rollout.loop import Phase
from reap.workers.base import Call
from reap.workers.progress import PHASE, PUBLISHED, Control


class Recorder(Protocol):
    """Records rollouts: of an env with a policy (`RolloutRecorder`), or with a collector (`NestedRecorder`)."""

    def describe(self) -> WorkerInfo:
        """The worker's description, without weights."""
        ...

    def collect(self, command: Collect, slot: Slot, version: int) -> Done:
        """Record a rollout in a slot, with this version of the weights."""
        ...

    def weights_changed(self, version: int) -> None:
        """Note that the policy's weights have changed, to this version."""
        ...

    def reset(self, rows: Sequence[int] | None) -> None:
        """Start new episodes in these rows (None: all) with the next rollout."""
        ...

    def seed(self, seed: int, static: bool) -> int:
        """Seed envs and generators; return the next seed."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything needed to resume, without weights."""
        ...

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch for a state that cannot be loaded."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a checked state."""
        ...

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call `env_attribute`, `policy_attribute` or `call_env`."""
        ...

    def close(self) -> None:
        """Release the env."""
        ...


class WorkerHandler:
    """Carries out a collector's commands.

    Args:
        recorder: records the rollouts.
        end: the worker's end of the exchange, which provides slots and brings rollouts to the collector.
        control: shows the collector what the worker is doing.
        policy: the worker's copy of the policy; None if the collector's own policy acts.
        seed_process: seeds the generators of the worker's process; None if it shares the process.

    Attributes:
        recorder: as given.
    """

    def __init__(
        self,
        recorder: Recorder,
        end: WorkerEnd,
        control: Control,
        policy: PolicyCopy | None = None,
        seed_process: Callable[[int], Any] | None = None,
    ) -> None:
        self.recorder = recorder
        self._end, self._policy, self._control = end, policy, control
        self._seed_process = seed_process
        self._writer: BufferWriter | None = None
        self._table: dict[type, Callable[..., Any]] = {
            DescribeWorker: self._describe,
            AttachSlot: end.attach,
            AttachWeights: self._attach_weights,
            ConnectBuffer: self._connect_buffer,
            Collect: self._collect,
            Write: self._write,
            Reset: self._reset,
            Seed: self._seed,
            Call: self._call,
            GetState: self._get_state,
            CheckState: self._check_state,
            SetState: self._set_state,
            PutWeights: self._put_weights,
        }

    def handle(self, command: Any) -> Any:
        """Carry out a command."""
        return self._table[type(command)](command)

    def handle_with(self, command: Any, descriptors: Sequence[int]) -> Any:
        """Carry out a command that came with descriptors, which now belong to this worker."""
        return self._table[type(command)](command, *descriptors)

    def close(self) -> None:
        """Close the env."""
        self.recorder.close()

    def _describe(self, _command: DescribeWorker) -> WorkerInfo:
        info, policy = self.recorder.describe(), self._policy
        return info if policy is None else replace(info, weights=policy.weights, attributes=policy.attributes)

    def _attach_weights(self, command: AttachWeights, *descriptors: int) -> None:
        assert self._policy is not None
        self._policy.attach(command.kind, *descriptors)

    def _connect_buffer(self, command: ConnectBuffer) -> None:
        self._writer = BufferWriter(command, self._control[PUBLISHED:])
        self._end.keep_rollouts()

    def _put_weights(self, command: PutWeights) -> None:
        assert self._policy is not None
        self._policy.put(command.weights)

    def _read_weights(self) -> None:
        if self._policy is not None and self._policy.read():
            self.recorder.weights_changed(self._policy.version)

    def _collect(self, command: Collect) -> Done:
        self._read_weights()
        policy = self._policy
        version = command.version if policy is None or not policy.has_mailbox else policy.version
        slot = self._end.slot(command.slot)
        return self._end.reply(self.recorder.collect(command, slot, version), slot)

    def _write(self, command: Write) -> None:
        assert self._writer is not None
        self._control[PHASE] = Phase.WRITE
        try:
            self._writer.write(self._end.slot(command.slot), command.columns)
        except BaseException:
            self.recorder.reset(None)  # the next rollout, which may be asked for already, would continue frames that are lost
            raise
        self._control[PHASE] = Phase.IDLE

    def _break_trajectories(self) -> None:
        """Note that the next write does not continue the previous one."""
        if self._writer is not None:
            self._writer.break_trajectories()

    def _reset(self, command: Reset) -> None:
        self.recorder.reset(command.rows)
        if command.rows is None:
            self._break_trajectories()

    def _seed(self, command: Seed) -> int:
        if self._seed_process is not None:
            self._seed_process(command.seed)  # envs may use its generators
        following = self.recorder.seed(command.seed, command.static)
        self._break_trajectories()
        return following

    def _call(self, command: Call) -> Any:
        return self.recorder.call(command.name, command.arguments)

    def _get_state(self, _command: GetState) -> dict[str, Any]:
        self._read_weights()
        state = self.recorder.state()
        return state if self._policy is None else {**state, **self._policy.state()}

    def _check_state(self, command: CheckState) -> None:
        self.recorder.check(command.state)
        if self._policy is not None:
            self._policy.check(command.state)

    def _set_state(self, command: SetState) -> None:
        self.recorder.check(command.state)
        if self._policy is not None:
            self._policy.read()  # weights that were sent before belong to what is left now
        self.recorder.load(command.state)
        if self._policy is not None:
            self._policy.load(command.state)
        self._break_trajectories()
