"""Errors in the background. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import torch

from reap.collectors import SyncDataCollector
from reap.data import LazyTensorStorage, ReplayBuffer, ReplayBufferEnsemble
from reap.testing import Crash
from tests.collectors.buffers import WHILE_RUNNING, Buffer, collecting, in_thread, join, observed
from tests.collectors.seams import wait_for_end


class BrokenBuffer(Buffer):
    def extend(self, data: Any) -> None:
        if self.arrived == 2:
            self.arrived += 1
            raise RuntimeError("the disk is full")
        super().extend(data)


def raising_from(call: int, result: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that works until its `call`-th call."""
    calls: list[int] = []

    def function(given: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise RuntimeError("it does not work")
        return result(given)

    return function


FAILING: dict[str, Callable[[], SyncDataCollector]] = {
    "env": lambda: collecting(Buffer(), Crash(9)),
    "policy": lambda: collecting(Buffer(), policy=raising_from(10, lambda observation: observation)),
    "postproc": lambda: collecting(Buffer(), postproc=raising_from(3, lambda batch: batch)),
    "buffer": lambda: collecting(BrokenBuffer()),
}
TEXTS = {"env": "crashed in step 9", "policy": "it does not work", "postproc": "it does not work", "buffer": "the disk is full"}
IN_THREAD = "reap: raised in the background, in the thread of SyncDataCollector.start()"


def failed(what: str) -> SyncDataCollector:
    collector = FAILING[what]()
    collector.start()
    wait_for_end(collector)
    return collector


@pytest.mark.parametrize("what", FAILING)
def test_an_error_surfaces_once_with_notes(what: str) -> None:
    collector = failed(what)
    with pytest.raises(RuntimeError, match=TEXTS[what]) as caught:
        collector.next()
    notes = caught.value.__notes__
    assert notes[-1] == IN_THREAD
    if what in {"env", "policy"}:
        phase = {"env": "step", "policy": "policy"}[what]
        assert f"raised in {phase} of GymEnv" in notes[0]
    frames = collector.stats().frames
    assert frames == (12 if what in {"postproc", "buffer"} else 8)
    collector.next()
    collector.shutdown()


SURFACING: dict[str, Callable[[SyncDataCollector], Any]] = {
    **WHILE_RUNNING,
    "pause": lambda collector: collector.pause().__enter__(),
    "reset": lambda collector: collector.reset(),
    "set_seed": lambda collector: collector.set_seed(1),
    "update_policy_weights_": lambda collector: collector.update_policy_weights_(),
    "state_dict": lambda collector: collector.state_dict(),
    "load_state_dict": lambda collector: collector.load_state_dict({}),
    "getattr_env": lambda collector: collector.getattr_env("length"),
    "getattr_policy": lambda collector: collector.getattr_policy("w"),
    "call_env": lambda collector: collector.call_env("observe"),
    "async_shutdown": lambda collector: collector.async_shutdown(),
    "with": lambda collector: collector.__exit__(None, None, None),
}


@pytest.mark.parametrize("call", SURFACING)
def test_an_error_surfaces_at_whatever_call_comes_next(call: str) -> None:
    collector = failed("env")
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        SURFACING[call](collector)
    collector.async_shutdown()
    assert (collector.closed, collector.env.closed) == (True, True)


def test_an_error_while_a_pause_waits_surfaces_there() -> None:
    class Failing(Buffer):
        def extend(self, data: Any) -> None:
            super().extend(data)
            raise RuntimeError("the disk is full")

    buffer, caught = Failing(0), []

    def pausing() -> None:
        try:
            with collector.pause():
                caught.append("nothing")
        except RuntimeError as error:
            caught.append(str(error))

    collector = collecting(buffer)
    collector.start()
    buffer.wait_for_arrival(1)
    thread = in_thread(pausing)
    buffer.allow()
    join(thread)
    assert caught == ["the disk is full"]
    collector.async_shutdown()


def test_an_error_in_the_body_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError), failed("env") as collector:
        _ = collector.frames_per_batch / 0
    assert collector.closed
    failed("env").shutdown()  # silent: it may stand in a `finally`


def test_start_again_after_an_error() -> None:
    buffer = Buffer()
    collector = collecting(buffer, Crash(9), total_frames=24)
    collector.start()
    wait_for_end(collector)
    with pytest.raises(RuntimeError, match="crashed"):
        collector.start()
    collector.start()
    wait_for_end(collector)
    collector.async_shutdown()
    assert len(buffer) == 24
    assert observed(buffer.batches) == [0, 1, 2, 3, 4, 5, 6, 7, *range(16)], "a new episode behind the error"
    ids = [value for batch in buffer.batches for value in batch["collector", "traj_ids"].tolist()]
    assert ids == [0] * 8 + [1] * 16


ON_BUFFER: dict[str, Callable[[ReplayBuffer, Any], Any]] = {
    "extend": lambda buffer, batch: buffer.extend(batch),
    "add": lambda buffer, batch: buffer.add(batch[0]),
    "update_priority": lambda buffer, batch: buffer.update_priority(torch.tensor([0]), 2.0),
    "set": lambda buffer, batch: buffer.__setitem__(0, batch[0]),
    "sample": lambda buffer, batch: buffer.sample(),
    "len": lambda buffer, batch: len(buffer),
    "read": lambda buffer, batch: buffer[0],
}


@pytest.mark.parametrize("call", ON_BUFFER)
def test_an_error_surfaces_at_whatever_call_on_the_buffer_comes_next(call: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
    collector = collecting(buffer, Crash(9))
    collector.start()
    wait_for_end(collector)
    batch = buffer.storage.contents().clone()
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        ON_BUFFER[call](buffer, batch)
    assert len(buffer) == 8
    ON_BUFFER[call](buffer, batch)
    collector.shutdown()


def filled(buffer: ReplayBuffer) -> ReplayBuffer:
    with collecting(buffer, Crash(99), total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    return buffer


def test_an_error_surfaces_where_an_ensemble_is_asked_though_a_sample_is_ready() -> None:
    buffers = [filled(ReplayBuffer(storage=LazyTensorStorage(100))) for _ in range(2)]
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=4, sample_from_all=True, prefetch=1)
    ensemble.sample()
    collector = collecting(buffers[1], Crash(9))
    collector.start()
    wait_for_end(collector)
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        ensemble.sample()
    assert ensemble.sample().shape == (2, 2)
    ensemble.empty()  # ends its thread
    collector.shutdown()


def test_a_sample_made_ahead_takes_no_error_from_whoever_asks_next() -> None:
    go_on, calls = Event(), list[int]()

    def second_waits(sample: Any) -> Any:
        calls.append(1)
        assert len(calls) == 1 or go_on.wait(100)
        return sample

    buffers = [filled(ReplayBuffer(storage=LazyTensorStorage(100))) for _ in range(2)]
    buffers[0].append_transform(second_waits)
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=4, sample_from_all=True, prefetch=1)
    ensemble.sample()  # the next one waits for its part of the first buffer
    collector = collecting(buffers[1], Crash(9))
    collector.start()
    wait_for_end(collector)
    go_on.set()
    assert len(ensemble.state_dict()["ahead"]["samples"]) == 1
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        len(buffers[1])
    assert ensemble.sample().shape == (2, 2)
    ensemble.empty()  # ends its thread
    collector.shutdown()


def test_an_error_ends_no_other_collector_that_fills_the_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=2)
    crashing, other = collecting(buffer, Crash(9)), collecting(buffer, Crash(99), total_frames=40)
    crashing.start()
    wait_for_end(crashing)
    other.start()
    wait_for_end(other)
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        len(buffer)
    assert len(buffer) == 8 + 40
    crashing.shutdown()
    other.shutdown()
