"""`Handover`: the stages of a rollout, and what happens to one that does not arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.collectors.handover import Handover, Recording, RecordingState
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Collect, Done
from reap.errors import CallOrderError


class Buffer:
    """Counts how often trajectories are broken; raises as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.breaks, self._failures = 0, failures

    def break_trajectories(self) -> None:
        if self._failures:
            self._failures -= 1
            raise ConnectionError("the buffer is gone")
        self.breaks += 1


def done(slot: int, frames: int = 4) -> Done:
    return Done(slot, frames, 0, [], 0.0, 0.0, frames)


class Case:
    """A handover of two workers."""

    def __init__(self, failures: int = 0) -> None:
        self.buffer, self.meter = Buffer(failures), Meter(2)
        self.handover = Handover(self.buffer, self.meter)
        self.freed: list[int] = []

    def begin(self, worker: int, slot: int = 0) -> Recording:
        made = Recording({worker: Collect(slot, False, False, 0)}, lambda: self.freed.append(worker))
        self.handover.begin(made)
        return made

    def record(self, worker: int) -> Recording:
        made = self.begin(worker)
        made.dones = {worker: done(0)}
        self.handover.arrive(made)
        return made


def test_rollouts_are_delivered_in_order_of_arrival() -> None:
    case = Case()
    first, second = case.begin(0), case.begin(1)
    assert case.handover.recording == [first, second]
    assert case.handover.recording_of(1) is second
    for one in (second, first):
        one.dones = {next(iter(one.commands)): done(0)}
        case.handover.arrive(one)
    assert case.handover.recording == []
    assert case.handover.recorded == [second, first]
    assert case.handover.take() is second
    assert second.state is RecordingState.DELIVERING
    assert case.handover.recorded == [first]


def test_what_is_handed_out_leaves_no_gap() -> None:
    case = Case()
    case.record(0)
    case.handover.take()
    case.handover.handed_out()
    case.handover.close_gap()
    assert (case.buffer.breaks, case.handover.restarting) == (0, set())


def test_what_is_not_handed_out_is_lost_with_what_follows_it() -> None:
    case = Case()
    case.record(0)
    other, following = case.record(1), case.begin(0)
    case.handover.take()
    case.handover.close_gap()
    assert case.buffer.breaks == 1
    assert case.handover.restarting == {0}
    assert not following.is_wanted, "it continues episodes that have a gap now"
    assert case.handover.recorded == [other], "the other worker's episodes have none"
    following.dones = {0: done(0, 3)}
    case.handover.arrive(following)
    assert case.handover.recording == []
    assert case.freed == [0]
    assert case.meter.discarded == 3
    case.begin(0)
    assert case.handover.restarting == set(), "this one restarts the episodes"


def test_a_recorded_rollout_that_follows_a_lost_one_is_dropped_at_once() -> None:
    case = Case()
    case.record(0)
    case.record(0)
    case.handover.take()
    case.handover.close_gap()
    assert case.handover.recorded == []
    assert (case.freed, case.meter.discarded) == ([0], 4)


def test_a_buffer_that_cannot_be_told_is_told_again() -> None:
    case = Case(failures=1)
    case.record(0)
    case.handover.take()
    with pytest.raises(ConnectionError):
        case.handover.close_gap()
    case.handover.close_gap()
    assert (case.buffer.breaks, case.handover.restarting) == (1, {0})


def test_a_rollout_that_was_broken_off_frees_its_slot() -> None:
    case = Case()
    case.handover.break_off(case.begin(1))
    assert case.handover.recording == []
    assert (case.freed, case.handover.restarting, case.meter.discarded) == ([1], {1}, 0)


def test_new_episodes_drop_what_waits() -> None:
    case = Case()
    case.record(0)
    case.meter.frames = 6
    case.handover.ready = TensorDict({"reward": torch.zeros(6)}, [6])
    case.handover.drop_recorded()
    assert case.handover.ready is None
    assert case.handover.recorded == []
    assert (case.freed, case.meter.discarded, case.meter.frames) == ([0], 10, 0)


def test_what_waits_is_part_of_the_state() -> None:
    case, batch = Case(), TensorDict({"reward": torch.arange(4.0)}, [4], names=["time"])
    case.record(1).batch = batch
    case.handover.ready = batch
    state: dict[str, Any] = case.handover.state()
    other = Case()
    other.handover.restore(state)
    assert other.handover.ready["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
    (one,) = other.handover.recorded
    assert one.batch is not None
    assert one.batch["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert one.dones[1].frames == 4
    other.handover.drop_recorded()
    assert other.freed == [], "it has left its slot"


def begun(case: Case) -> Recording:
    return case.begin(0)


def recorded(case: Case) -> Recording:
    return case.record(0)


def delivering(case: Case) -> Recording:
    case.record(0)
    return case.handover.take()


@pytest.mark.parametrize(
    ("make", "step", "told"),
    [
        (begun, Handover.begin, r"of workers \[0\] is RECORDING: expected IDLE or RECORDED next, got RECORDING"),
        (recorded, Handover.begin, "is RECORDED: expected DELIVERING or IDLE next, got RECORDING"),
        (recorded, Handover.arrive, "is RECORDED: expected DELIVERING or IDLE next, got RECORDED"),
        (delivering, Handover.arrive, "is DELIVERING: expected IDLE next, got RECORDED"),
    ],
)
def test_a_step_that_does_not_follow_is_refused(make: Any, step: Any, told: str) -> None:
    case = Case()
    recording = make(case)
    before = recording.state
    with pytest.raises(CallOrderError, match=told):
        step(case.handover, recording)
    assert recording.state is before


def test_one_rollout_at_a_time_is_delivered() -> None:
    case = Case()
    first, second = case.record(0), case.record(1)
    case.handover.take()
    with pytest.raises(CallOrderError, match="expected that it is handed out, or lost, before the next one"):
        case.handover.take()
    assert (first.state, second.state) == (RecordingState.DELIVERING, RecordingState.RECORDED)
    case.handover.handed_out()
    assert case.handover.take() is second
    assert first.state is RecordingState.IDLE
