"""`start`, `pause`, `async_shutdown` with worker processes: exact budgets, errors that surface, an end in time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import pytest
from torch import nn

from reap.collectors import MultiSyncDataCollector
from reap.errors import CallOrderError, ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.testing import Const, Count
from reap.testing.marked import Marked, Told
from tests.collectors.seams import pids_of, wait_for_end
from tests.collectors.worker_kinds import CLASSES, LIMIT, Failing, Gate, Gated, nothing_left

pytestmark = pytest.mark.processes


class Buffer:
    """Stands in for a replay buffer."""

    def __init__(self) -> None:
        self.state = Condition()
        self.batches: list[Any] = []

    def extend(self, data: Any) -> None:
        with self.state:
            self.batches.append(data)
            self.state.notify_all()

    def wait_for(self, count: int) -> None:
        with self.state:
            assert self.state.wait_for(lambda: len(self.batches) >= count, LIMIT), f"{len(self.batches)} writes"

    def __len__(self) -> int:
        with self.state:
            return sum(batch.numel() for batch in self.batches)


@pytest.mark.parametrize("name", CLASSES)
def test_the_background_fills_a_buffer_to_the_frame(name: str) -> None:
    buffer = Buffer()
    options: Any = {"frames_per_batch": 8, "total_frames": 30, "init_random_frames": 8, "replay_buffer": buffer}
    with nothing_left() as pids:
        with pytest.warns(UserWarning, match="32 frames are collected"):
            collector = CLASSES[name]([partial(Marked, w) for w in range(2)], Told(), **options)
        pids.extend(pids_of(collector))
        assert not collector.is_running()
        collector.start()
        with pytest.raises(CallOrderError):
            next(iter(collector))
        wait_for_end(collector)
        assert len(buffer) == 30
        random = [bool((batch["action"] * 2 != batch["observation"][..., 2:3]).any()) for batch in buffer.batches]
        assert sum(random) == 1
        collector.async_shutdown()
        assert collector.closed
        del collector, buffer, options


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_written_in_a_pause(name: str) -> None:
    buffer, policy = Buffer(), Const(0.0)
    with CLASSES[name]([partial(Count, 9)] * 2, policy, frames_per_batch=8, replay_buffer=buffer) as collector:
        collector.start()
        buffer.wait_for(3)
        with collector.pause():
            before = len(buffer)
            state = collector.state_dict()
            assert collector.getattr_env("length") == [9] * collector.num_workers
            nn.init.constant_(policy.w, 5.0)
            collector.update_policy_weights_()
            assert len(buffer) == before
            assert state["counters"]["frames"] == before
        written = len(buffer.batches)
        buffer.wait_for(written + 6)
        assert buffer.batches[-1]["action"].unique().tolist() == [5.0]
        assert collector.set_seed(3) > 0
        collector.reset()
        buffer.wait_for(written + 9)
        assert collector.is_running()
    assert not collector.is_running()
    with pytest.raises(ClosedError):
        collector.start()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("how", "kind"), [("raise", WorkerRaised), ("SIGKILL", WorkerDied)])
def test_a_failure_surfaces_at_the_next_call(name: str, how: str, kind: Any) -> None:
    buffer = Buffer()
    with nothing_left() as pids:
        factories = [partial(Count, 9), partial(Failing, how, "step", 9)]
        collector = CLASSES[name](factories, Const(), frames_per_batch=4, replay_buffer=buffer)
        pids.extend(pids_of(collector))
        collector.start()
        wait_for_end(collector)
        with pytest.raises(kind) as caught:
            collector.update_policy_weights_()
        assert caught.value.phase == "step"
        collector.shutdown()
        del caught, collector, buffer


def test_start_needs_a_buffer() -> None:
    collector = MultiSyncDataCollector([partial(Count, 9)], frames_per_batch=4)
    with collector, pytest.raises(OptionError, match=r"start\(\) writes to a replay buffer"):
        collector.start()


@pytest.mark.parametrize("name", CLASSES)
def test_an_end_while_a_worker_does_not_come_back(name: str, tmp_path: Path) -> None:
    """The default end asks, terminates, kills: it does not wait for the env."""
    gate, buffer = Gate(tmp_path), Buffer()
    collector = CLASSES[name]([partial(Count, 9), partial(Gated, gate.paths, [3])], frames_per_batch=8, replay_buffer=buffer)
    pids = pids_of(collector)
    collector.start()
    gate.wait_for_entry()
    ends = Thread(target=lambda: collector.async_shutdown(timeout=None if name == "aSync" else 0.5))
    ends.start()
    ends.join(LIMIT)
    hung = ends.is_alive()
    gate.open()
    ends.join()
    assert not hung, "it waits for the worker"
    wait_for_end(collector)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    gate.close()
