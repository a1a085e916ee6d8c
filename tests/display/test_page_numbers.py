"""What a page of a running collection is told: the numbers, the points of its charts, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap import LazyTensorStorage, ReplayBuffer
from reap.collectors.stats import Meter, Place
from reap.display.counts import Count
from reap.display.page.feed import Feed
from reap.display.page.history import POINTS, History, point
from reap.display.page.report import report
from reap.recording.trajectories import Episode
from tests.clocks import Clock, set_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_clock(monkeypatch, "reap.collectors.stats", "reap.display.counts")


def work(meter: Meter, clock: Clock, reward: float = 3.0, worker: int = 0) -> None:
    """A batch of 100 frames in two seconds: half of them in the env, an eighth in the policy; then two of training."""
    meter.enter()
    clock.now += 2.0
    meter.add(100, [Episode(reward, 40), Episode(reward + 2.0, 60)], 1.0, 0.25, worker=worker, staleness=1)
    meter.batches += 1
    meter.leave()
    clock.now += 2.0


def test_report_is_exact(clock: Clock) -> None:
    meter, buffer = Meter(), ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.extend(TensorDict({"a": torch.zeros(20)}, [20]))
    count = Count(meter, 400)
    work(meter, clock)
    assert report("run", count.now(), buffer) == {
        "title": "run",
        "ended": False,
        "seconds": 4.0,
        "frames": 100,
        "total": 400,
        "frames_per_second": 25.0,
        "batches": 1,
        "episodes": 2,
        "recent_episodes": 2,
        "return": {"mean": 4.0, "min": 3.0, "max": 5.0},
        "length": {"mean": 50.0, "min": 40.0, "max": 60.0},
        "time": {"env": 0.25, "policy": 0.0625, "training": 0.5},
        "staleness": 1,
        "discarded_frames": 0,
        "restarts": 0,
        "out_of_bounds": {},
        "workers": [],
        "buffer": {"items": 20, "capacity": 50},
    }


def test_what_is_not_known_is_none(clock: Clock) -> None:
    numbers = report("run", Count(Meter(), None).now(), None)
    nothing = {"mean": None, "min": None, "max": None}
    assert (numbers["return"], numbers["length"], numbers["total"], numbers["buffer"]) == (nothing, nothing, None, None)
    json.dumps(numbers, allow_nan=False)


def test_an_infinite_return_is_json(clock: Clock) -> None:
    meter = Meter()
    work(meter, clock, reward=float("inf"))
    assert report("run", Count(meter, None).now(), None)["return"] == {"mean": None, "min": None, "max": None}


def test_workers_and_where_they_are(clock: Clock) -> None:
    meter = Meter(2)
    meter.place_of = [Place("a", "", 0, 0.0), Place("", "", 0, 0.0, is_joining=True)].__getitem__
    count = Count(meter, None)
    work(meter, clock)
    meter.restart(1)
    numbers = report("run", count.now(), None)
    assert numbers["restarts"] == 1
    assert numbers["workers"] == [
        {
            "state": "up",
            "host": "a",
            "frames": 100,
            "frames_per_second": 25.0,
            "episodes": 2,
            "return": 4.0,
            "time": {"env": 0.25, "policy": 0.0625, "waiting": 0.6875},
            "restarts": 0,
        },
        {
            "state": "joining",
            "host": "",
            "frames": 0,
            "frames_per_second": 0.0,
            "episodes": 0,
            "return": None,
            "time": {"env": 0.0, "policy": 0.0, "waiting": 1.0},
            "restarts": 1,
        },
    ]


def test_one_worker_elsewhere_is_shown(clock: Clock) -> None:
    meter = Meter()
    meter.place_of = [Place("a", "", 0, 0.0)].__getitem__
    assert [one["host"] for one in report("run", Count(meter, None).now(), None)["workers"]] == ["a"]


@pytest.mark.parametrize("buffer", [None, [1, 2], object()])
def test_buffers_that_are_not_ours_are_not_asked(clock: Clock, buffer: Any) -> None:
    assert report("run", Count(Meter(), None).now(), buffer)["buffer"] is None


def test_numbers_leave_errors_of_the_background_to_the_user(clock: Clock) -> None:
    class Failing(ReplayBuffer):
        def __len__(self) -> int:
            raise RuntimeError("of the background: told once")

    buffer = Failing(storage=LazyTensorStorage(50))
    assert report("run", Count(Meter(), None).now(), buffer)["buffer"] == {"items": 0, "capacity": 50}


def test_points_hold_what_is_drawn(clock: Clock) -> None:
    meter = Meter()
    count = Count(meter, None)
    assert point(report("run", count.now(), None)) == [0.0, *[None] * 11]
    work(meter, clock)
    assert point(report("run", count.now(), None)) == [4.0, 25.0, 4.0, 3.0, 5.0, 50.0, 40.0, 60.0, 0.25, 0.0625, 0.5, None]


def test_history_is_thinned_out_evenly() -> None:
    history = History(most=4)
    for number in range(20):
        history.add([float(number)])
    assert history.points == [[0.0], [8.0], [16.0]]
    assert history.thinned == 3


def test_history_keeps_all_of_the_run_and_does_not_grow() -> None:
    history = History()
    for number in range(100_000):
        history.add([float(number)])
    assert POINTS / 2 < len(history.points) <= POINTS
    assert history.points[0] == [0.0]
    steps = {later[0] - earlier[0] for earlier, later in zip(history.points, history.points[1:], strict=False)}  # type: ignore[operator]
    assert steps == {2.0**history.thinned}


def seconds(news: str) -> tuple[int, list[float], bool]:
    """Where the points of an event begin, their times, and whether it is the last."""
    kind, _, text = news.partition(": ")
    assert kind == "data"
    assert text.endswith("\n\n")
    told = json.loads(text)
    assert told["points"][-1][0] == told["now"]["seconds"]
    return told["from"], [one[0] for one in told["points"]], told["now"]["ended"]


def test_news_are_all_points_then_new_ones_then_the_end(clock: Clock) -> None:
    meter = Meter()
    feed = Feed(Count(meter, None), "run", None)
    work(meter, clock)
    feed.read()

    async def follow() -> list[tuple[int, list[float], bool]]:
        news = feed.news()
        told = [seconds(await anext(news))]
        for _ in range(2):
            work(meter, clock)
            feed.read()
            told.append(seconds(await anext(news)))
        work(meter, clock)
        feed.end()
        return told + [seconds(one) async for one in news]

    assert asyncio.run(follow()) == [
        (0, [0.0, 4.0], False),
        (2, [8.0], False),
        (3, [12.0], False),
        (4, [16.0], True),
    ]


def test_a_page_gets_all_points_again_when_they_were_thinned_out(clock: Clock) -> None:
    """240 points are kept; from then on every second one."""
    feed = Feed(Count(Meter(), None), "run", None)
    for _ in range(238):
        clock.now += 1.0
        feed.read()

    async def follow() -> list[tuple[int, list[float], bool]]:
        news, told = feed.news(), []
        for _ in range(5):
            told.append(seconds(await anext(news)))
            clock.now += 1.0
            feed.read()
        return told

    assert asyncio.run(follow()) == [
        (0, [float(second) for second in range(239)], False),
        (239, [239.0], False),
        (0, [float(second) for second in range(0, 241, 2)], False),  # one too many
        (121, [241.0], False),  # the newest, and not kept
        (121, [242.0], False),
    ]


def test_a_slow_page_misses_readings_and_no_points(clock: Clock) -> None:
    feed = Feed(Count(Meter(), None), "run", None)

    async def follow() -> list[tuple[int, list[float], bool]]:
        news = feed.news()
        told = [seconds(await anext(news))]
        for _ in range(3):
            clock.now += 1.0
            feed.read()
        feed.end()
        return told + [seconds(one) async for one in news]

    assert asyncio.run(follow()) == [(0, [0.0], False), (1, [1.0, 2.0, 3.0, 3.0], True)]
