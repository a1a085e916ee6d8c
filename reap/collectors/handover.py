"""`Handover`: tracks every rollout on its way from a worker to the user, and handles those that are lost.

         begin            arrive          take            handed_out
    IDLE ------> RECORDING ------> RECORDED ----> DELIVERING ----------> IDLE: it is the user's
                     |                |               |
                     '----------------'-- lost <------'   IDLE: its rows restart their episodes with their next rollout

Each rollout has one of these states; any other transition is refused.

The same rules hold for all collectors:

- Ctrl-C while a rollout is RECORDING in another process, or RECORDED, loses nothing: the next call continues with it. The
  same holds for a batch that was complete when Ctrl-C came.
- A rollout is lost when the env or the policy raises in this process, when its delivery fails, or when Ctrl-C comes while it
  is being delivered. The replay buffer is told, the worker's rows start new episodes, and anything recorded of the old ones in
  the meantime is dropped: no trajectory has a gap.
- A worker whose own write to the buffer fails starts new episodes by itself, because its next rollout may already be
  requested.
- `reset`, `set_seed` and `load_state_dict` drop what is RECORDED; a `reset` of some rows does so for their workers, whose other
  rows start new episodes then. If Ctrl-C comes while workers are asked, all of them start new episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

from tensordict import TensorDictBase

from reap.collectors.delivery.steps import break_trajectories
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Collect, Done
from reap.collectors.worker.results import batch_from, batch_state, done_from, done_state, valid_frames
from reap.errors import CallOrderError, OptionError, SpecMismatch


class RecordingState(IntEnum):
    """How far a rollout has got; IDLE means not yet requested, or finished."""

    IDLE = auto()
    RECORDING = auto()
    RECORDED = auto()
    DELIVERING = auto()


IDLE, RECORDING, RECORDED, DELIVERING = RecordingState

FOLLOWING = {IDLE: {RECORDING}, RECORDING: {RECORDED, IDLE}, RECORDED: {DELIVERING, IDLE}, DELIVERING: {IDLE}}
"""The states that may follow each state."""


@dataclass(eq=False)
class Recording:
    """A rollout of one or more workers.

    Attributes:
        commands: the command sent to each worker.
        state: how far it has got.
        dones: the workers' replies.
        batch: the batch, once it has left the workers' slots.
        is_wanted: whether it will be delivered; a rollout that continues lost episodes will not.
        free: returns the slots in which it is recorded.
    """

    commands: dict[int, Collect]
    free: Callable[[], None] | None = None
    state: RecordingState = IDLE
    dones: dict[int, Done] = field(default_factory=dict[int, Done])
    batch: TensorDictBase | None = None
    is_wanted: bool = True

    def enter(self, state: RecordingState) -> None:
        """Move to the next state.

        Raises:
            CallOrderError: this state cannot follow the current one.
        """
        if state not in FOLLOWING[self.state]:
            allowed = " or ".join(sorted(one.name for one in FOLLOWING[self.state]))
            raise CallOrderError(
                f"a rollout of workers {sorted(self.workers)} is {self.state.name}: expected {allowed} next, got {state.name}"
            )
        self.state = state

    @property
    def workers(self) -> Collection[int]:
        """The workers that record it."""
        return self.commands or self.dones

    @property
    def frames(self) -> int:
        """Valid frames recorded so far."""
        return sum(done.frames for done in self.dones.values())

    @property
    def is_random(self) -> bool:
        """Whether all of its actions are random."""
        return all(command.random for command in self.commands.values())


class Handover:
    """The ledger of rollouts that are being recorded, or are recorded and not yet handed out.

    Args:
        buffer: the replay buffer, if there is one.
        meter: counts frames that are not delivered.

    Attributes:
        ready: a batch that is complete and that the next call returns.
        restarting: workers whose next rollout starts new episodes.
        recording: rollouts in progress, in the order in which they were requested.
        recorded: rollouts waiting for delivery, in the order in which they arrived.
    """

    def __init__(self, buffer: Any, meter: Meter) -> None:
        self.ready: Any = None
        self.restarting: set[int] = set()
        self._buffer, self._meter = buffer, meter
        self.recording: list[Recording] = []
        self.recorded: list[Recording] = []
        self._delivering: Recording | None = None

    def begin(self, recording: Recording) -> None:
        """Register a requested rollout; workers marked for a restart of their episodes do so with it."""
        recording.enter(RECORDING)
        self.recording.append(recording)
        self.restarting.difference_update(recording.commands)

    def recording_of(self, worker: int) -> Recording | None:
        """The rollout that a worker is recording."""
        return next((one for one in self.recording if worker in one.commands), None)

    def arrive(self, recording: Recording) -> None:
        """Register a complete rollout."""
        recording.enter(RECORDED)
        self.recording.remove(recording)
        if recording.is_wanted:
            self.recorded.append(recording)
        else:
            self._drop(recording)

    def take(self) -> Recording:
        """Take the rollout that arrived first, to be delivered now.

        Raises:
            CallOrderError: another rollout is being delivered.
        """
        if self._delivering is not None:
            raise CallOrderError("a rollout is being delivered: expected that it is handed out, or lost, before the next one")
        first = self._delivering = self.recorded.pop(0)
        first.state = DELIVERING
        return first

    def handed_out(self) -> None:
        """Note that the rollout being delivered has reached the user."""
        delivering, self._delivering = self._delivering, None
        if delivering is not None:
            delivering.state = IDLE

    def close_gap(self) -> None:
        """Mark as lost a rollout whose delivery did not finish; called before more is recorded."""
        if self._delivering is not None:
            self.lose(self._delivering.workers)
            self.handed_out()

    def lose(self, workers: Iterable[int]) -> None:
        """Mark as lost the rollout of these workers, and the rollouts that continue it."""
        lost = set(workers)
        break_trajectories(self._buffer)
        self.restarting |= lost
        for one in (*self.recording, *self.recorded):
            one.is_wanted = one.is_wanted and not lost.intersection(one.workers)
        for one in [one for one in self.recorded if not one.is_wanted]:
            self.recorded.remove(one)
            self._drop(one)

    def break_off(self, recording: Recording) -> None:
        """Remove a rollout in progress, whose env or policy raised."""
        recording.enter(IDLE)
        self.recording.remove(recording)
        self._free(recording)
        self.lose(recording.workers)

    def _drop(self, recording: Recording) -> None:
        recording.enter(IDLE)
        for worker, done in recording.dones.items():
            self._meter.discard(done.frames, worker)
        self._free(recording)

    def _free(self, recording: Recording) -> None:
        if recording.batch is None and recording.free is not None:
            recording.free()

    @contextmanager
    def beginning_anew(self, workers: Iterable[int]) -> Generator[None]:
        """Drop everything waiting for delivery, for workers that start new episodes inside the `with` block.

        If the block does not end (by Ctrl-C, for example), all of them start new episodes with their next rollout, because some
        may not have done so yet; but not if it refuses a value, before anything has changed.
        """
        self.drop_recorded()
        try:
            yield
        except (OptionError, SpecMismatch):
            raise
        except BaseException:
            self.restarting.update(workers)
            break_trajectories(self._buffer)
            raise
        break_trajectories(self._buffer)

    def drop_of(self, workers: Iterable[int], everyone: Iterable[int]) -> None:
        """Drop what is waiting for delivery of some workers, before rows of theirs are reset.

        Rows that are not reset start new episodes too if frames of theirs are dropped; a complete batch is of everyone.
        """
        self.close_gap()
        chosen = set(workers)
        lost = {worker for one in self.recorded if chosen.intersection(one.workers) for worker in one.workers}
        if lost := lost if self.ready is None else set(everyone):
            self.lose(lost)
        self._drop_ready()

    def drop_recorded(self) -> None:
        """Drop everything waiting for delivery, before new episodes start."""
        while self.recorded:
            self._drop(self.recorded.pop())
        self._drop_ready()
        self.handed_out()

    def _drop_ready(self) -> None:
        if self.ready is not None:
            self._meter.take_back(valid_frames(self.ready))
        self.ready = None

    def state(self) -> dict[str, Any]:
        """The rollouts waiting to be handed out, copied out of their slots."""
        return {
            "ready": None if self.ready is None else batch_state(self.ready),
            "results": [
                {"dones": {worker: done_state(done) for worker, done in one.dones.items()}, "batch": batch_state(one.batch)}
                for one in self.recorded
                if one.batch is not None
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the rollouts that `state` returned."""
        for one in state["results"]:
            dones = {worker: done_from(own) for worker, own in one["dones"].items()}
            self.recorded.append(Recording({}, state=RECORDED, dones=dones, batch=batch_from(one["batch"])))
        self.ready = None if state["ready"] is None else batch_from(state["ready"])
        self.handed_out()
        self.restarting.clear()
