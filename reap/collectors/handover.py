"""`Handover`: the place of every rollout on its way from a worker to the user, and what becomes of one that does not arrive.

         begin            arrive          take            handed_out
    IDLE ------> RECORDING ------> RECORDED ----> DELIVERING ----------> IDLE: it is the user's
                     |                |               |
                     '----------------'-- lost <------'   IDLE: its rows restart their episodes with their next rollout

The state of a rollout says where it is; any other step is refused.

One policy holds for all collectors and all reasons:

- Ctrl-C while a rollout is RECORDING in another process, or RECORDED, loses nothing: the next call continues with it. So it is
  with a batch that was complete when Ctrl-C came.
- A rollout is lost when the env or the policy breaks it off in this process, when its delivery fails, or when
  Ctrl-C comes while it is being delivered. The replay buffer is told, the worker's rows begin new episodes, and what the
  worker has recorded of the old ones meanwhile is dropped: no trajectory has a gap.
- A worker whose own write to the buffer fails starts new episodes by itself, for its next rollout may be asked for already.
- `reset`, `set_seed` and `load_state_dict` drop what is RECORDED.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

from tensordict import TensorDictBase

from reap.collectors.delivery.steps import break_trajectories
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Collect, Done
from reap.collectors.worker.results import batch_from, batch_state, done_from, done_state, valid_frames
from reap.errors import CallOrderError


class RecordingState(IntEnum):
    """How far a rollout has come; idle is one that was not asked for yet, or is over."""

    IDLE = auto()
    RECORDING = auto()
    RECORDED = auto()
    DELIVERING = auto()


IDLE, RECORDING, RECORDED, DELIVERING = RecordingState

FOLLOWING = {IDLE: {RECORDING}, RECORDING: {RECORDED, IDLE}, RECORDED: {DELIVERING, IDLE}, DELIVERING: {IDLE}}
"""The states that may follow each."""


@dataclass(eq=False)
class Recording:
    """A rollout of one or several workers.

    Attributes:
        commands: what each worker was asked for.
        state: how far it has come.
        dones: the workers' replies.
        batch: the batch, once it has left the workers' slots.
        is_wanted: whether it will be delivered; one that continues lost episodes will not.
        free: gives the slots back that it is recorded in.
    """

    commands: dict[int, Collect]
    free: Callable[[], None] | None = None
    state: RecordingState = IDLE
    dones: dict[int, Done] = field(default_factory=dict[int, Done])
    batch: TensorDictBase | None = None
    is_wanted: bool = True

    def enter(self, state: RecordingState) -> None:
        """Go on to the next state.

        Raises:
            CallOrderError: it does not follow the present one.
        """
        if state not in FOLLOWING[self.state]:
            allowed = " or ".join(sorted(one.name for one in FOLLOWING[self.state]))
            raise CallOrderError(
                f"a rollout of workers {sorted(self.workers)} is {self.state.name}: expected {allowed} next, got {state.name}"
            )
        self.state = state

    @property
    def workers(self) -> Collection[int]:
        """Those who record it."""
        return self.commands or self.dones

    @property
    def frames(self) -> int:
        """Valid frames recorded so far."""
        return sum(done.frames for done in self.dones.values())

    @property
    def is_random(self) -> bool:
        """Whether all its actions are random."""
        return all(command.random for command in self.commands.values())


class Handover:
    """What is being recorded, and what is recorded and not handed out.

    Args:
        buffer: the replay buffer, if there is one.
        meter: is told of frames that are not delivered.

    Attributes:
        ready: a batch that is complete and that the next call returns.
        restarting: workers whose next rollout begins new episodes.
        recording: rollouts under way, in the order in which they were asked for.
        recorded: rollouts that wait for delivery, in the order in which they arrived.
    """

    def __init__(self, buffer: Any, meter: Meter) -> None:
        self.ready: Any = None
        self.restarting: set[int] = set()
        self._buffer, self._meter = buffer, meter
        self.recording: list[Recording] = []
        self.recorded: list[Recording] = []
        self._delivering: Recording | None = None

    def begin(self, recording: Recording) -> None:
        """A rollout was asked for; whoever was to restart its episodes does so with it."""
        recording.enter(RECORDING)
        self.recording.append(recording)
        self.restarting.difference_update(recording.commands)

    def recording_of(self, worker: int) -> Recording | None:
        """The rollout that a worker is recording."""
        return next((one for one in self.recording if worker in one.commands), None)

    def arrive(self, recording: Recording) -> None:
        """A rollout is complete."""
        recording.enter(RECORDED)
        self.recording.remove(recording)
        if recording.is_wanted:
            self.recorded.append(recording)
        else:
            self._drop(recording)

    def take(self) -> Recording:
        """The rollout that arrived first, to be delivered now.

        Raises:
            CallOrderError: another one is being delivered.
        """
        if self._delivering is not None:
            raise CallOrderError("a rollout is being delivered: expected that it is handed out, or lost, before the next one")
        first = self._delivering = self.recorded.pop(0)
        first.state = DELIVERING
        return first

    def handed_out(self) -> None:
        """What was being delivered has arrived."""
        delivering, self._delivering = self._delivering, None
        if delivering is not None:
            delivering.state = IDLE

    def close_gap(self) -> None:
        """Lose what was being delivered and was not handed out: called before more is recorded."""
        if self._delivering is not None:
            self.lose(self._delivering.workers)
            self.handed_out()

    def lose(self, workers: Iterable[int]) -> None:
        """Lose the rollout of these workers, and what continues it."""
        lost = set(workers)
        break_trajectories(self._buffer)
        self.restarting |= lost
        for one in (*self.recording, *self.recorded):
            one.is_wanted = one.is_wanted and not lost.intersection(one.workers)
        for one in [one for one in self.recorded if not one.is_wanted]:
            self.recorded.remove(one)
            self._drop(one)

    def break_off(self, recording: Recording) -> None:
        """A rollout under way is none any more: the env or the policy raised."""
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

    def drop_recorded(self) -> None:
        """Have nothing that waits for delivery: new episodes are about to begin."""
        while self.recorded:
            self._drop(self.recorded.pop())
        if self.ready is not None:
            self._meter.take_back(valid_frames(self.ready))
        self.ready = None
        self.handed_out()

    def state(self) -> dict[str, Any]:
        """What waits to be handed out, each rollout out of its slot."""
        return {
            "ready": None if self.ready is None else batch_state(self.ready),
            "results": [
                {"dones": {worker: done_state(done) for worker, done in one.dones.items()}, "batch": batch_state(one.batch)}
                for one in self.recorded
                if one.batch is not None
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Have wait what waited when `state` was called."""
        for one in state["results"]:
            dones = {worker: done_from(own) for worker, own in one["dones"].items()}
            self.recorded.append(Recording({}, state=RECORDED, dones=dones, batch=batch_from(one["batch"])))
        self.ready = None if state["ready"] is None else batch_from(state["ready"])
        self.handed_out()
        self.restarting.clear()
