"""`Throttle` alone, and collectors that wait for the learner."""

from __future__ import annotations

import os
import signal
from functools import partial
from threading import Thread
from typing import Any

import pytest

from reap.collectors import MultiaSyncDataCollector, SyncDataCollector
from reap.collectors.delivery.throttle import Throttle
from reap.errors import OptionError, WorkerDied
from reap.testing.marked import Told
from tests.collectors.replays import EVERY, memory, require_each_once, singles, wait_for_frames, wait_until
from tests.collectors.seams import is_held, pids_of, wait_for_end
from tests.collectors.worker_kinds import LIMIT


def test_it_holds_a_collector_that_is_too_far_ahead() -> None:
    throttle = Throttle(20, 2.0, step=5, warm_up=10)
    throttle.begin(0, ())
    assert not throttle.holds(25), "15 after the warm-up, and 5 more, are 20"
    assert throttle.holds(26)
    throttle.note_sampled(2)
    assert not throttle.holds(26), "2 samples are 1 frame"
    throttle.begin(100, ())
    assert not throttle.holds(115), "it counts from where it began"
    assert throttle.holds(116)


def test_a_wait_ends_with_a_sample_or_a_call_of_wake() -> None:
    for end in (lambda throttle: throttle.note_sampled(1), lambda throttle: throttle.wake()):
        throttle = Throttle(10)
        throttle.begin(0, ())
        throttle.wait()
        assert throttle.holds(11)
        thread = Thread(target=throttle.wait)
        thread.start()
        end(throttle)
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_a_wait_ends_when_a_descriptor_is_readable() -> None:
    reader, writer = os.pipe()
    throttle = Throttle(10)
    throttle.begin(0, [reader])
    assert throttle.holds(11)
    os.write(writer, b".")
    throttle.wait()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("frames", range(3))
def test_without_a_limit_it_never_holds(frames: int) -> None:
    throttle = Throttle()
    throttle.begin(0, ())
    assert not throttle.holds(10**frames)
    throttle.wake()
    throttle.wait()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_frames_ahead": 3}, "expected at least the 4 frames of a batch, got 3"),
        ({"max_frames_ahead": 4, "replay_buffer": None}, "expected a replay buffer of reap"),
        ({"max_frames_ahead": "4"}, "expected an integer or None"),
        ({"max_frames_ahead": 4, "samples_per_frame": 0}, "samples_per_frame: expected a positive number"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    given: Any = {"frames_per_batch": 4, "replay_buffer": memory(), **options}
    with pytest.raises(OptionError, match=match):
        SyncDataCollector(singles(1)[0], **given)


def wait_until_held(collector: Any) -> None:
    """Wait until the collector waits for the learner."""
    wait_until(partial(is_held, collector), "it did not wait for the learner")


CLASSES = ["Sync", *(pytest.param(name, marks=pytest.mark.processes) for name in EVERY if name != "Sync")]


@pytest.mark.parametrize("name", CLASSES)
def test_d14_each_frame_is_waited_for(name: str) -> None:
    """The collector is never more than the limit ahead, and goes on as far as the learner does."""
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 96, "max_frames_ahead": 24, "replay_buffer": buffer}
    with EVERY[name](singles(), Told(), samples_per_frame=2, **options) as collector:
        collector.start()
        for come in range(24, 96, 12):
            wait_for_frames(buffer, come)
            wait_until_held(collector)
            assert buffer.write_count == come
            assert collector.is_running()
            buffer.sample(24)
        wait_for_end(collector)
        assert buffer.write_count == 96
    require_each_once(buffer, 96)


@pytest.mark.parametrize("name", CLASSES)
def test_the_warm_up_does_not_wait(name: str) -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "init_random_frames": 60, "max_frames_ahead": 12, "replay_buffer": buffer}
    with EVERY[name](singles(), Told(), **options) as collector:
        collector.start()
        wait_until_held(collector)
        assert buffer.write_count == 72


@pytest.mark.parametrize("name", CLASSES)
def test_a_wait_ends_with_the_collector(name: str) -> None:
    buffer = memory()
    collector = EVERY[name](singles(), Told(), frames_per_batch=12, max_frames_ahead=12, replay_buffer=buffer)
    collector.start()
    wait_until_held(collector)
    state = collector.state_dict()
    assert state["counters"]["frames"] == buffer.write_count == 12
    collector.async_shutdown()
    assert not collector.is_running()
    require_each_once(buffer, 12)


def test_the_end_of_the_budget_is_not_waited_for() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 24, "max_frames_ahead": 24, "replay_buffer": buffer}
    with SyncDataCollector(singles(1)[0], Told(), **options) as collector:
        collector.start()
        wait_for_end(collector)
    assert len(buffer) == 24


def test_iteration_does_not_wait() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 48, "max_frames_ahead": 12, "replay_buffer": buffer}
    with SyncDataCollector(singles(1)[0], Told(), **options) as collector:
        assert list(collector) == [None] * 4


@pytest.mark.processes
def test_a_wait_ends_when_a_worker_dies() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "max_frames_ahead": 12, "replay_buffer": buffer}
    with MultiaSyncDataCollector(singles(), Told(), **options) as collector:
        collector.start()
        wait_until_held(collector)
        os.kill(pids_of(collector)[1], signal.SIGKILL)
        wait_for_end(collector)
        with pytest.raises(WorkerDied) as caught:
            buffer.sample(4)
        assert caught.value.worker == 1
        assert buffer.sample(4).shape == (4,)


def test_it_warns_of_a_learner_that_never_samples() -> None:
    throttle = Throttle(10, patience=0.01)
    throttle.begin(0, ())
    assert throttle.holds(11)
    with pytest.warns(RuntimeWarning, match="may be 10 frames ahead of the learner .* no frame has been sampled yet"):
        throttle.wait()
    throttle.note_sampled(1)
    throttle.wait()
