"""Counts, rates and shares of a meter, with a clock that the tests set."""

from __future__ import annotations

import math

import pytest

from reap.collectors.stats import KEPT_EPISODES, CollectorStats, Meter, Summary
from reap.recording.trajectories import Episode
from tests.clocks import Clock, set_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_clock(monkeypatch, "reap.collectors.stats")


def episode(reward: float, length: int) -> Episode:
    return Episode(reward=reward, length=length)


def collect(meter: Meter, clock: Clock, seconds: float, **counts: object) -> None:
    """A batch that takes `seconds`."""
    meter.enter()
    clock.now += seconds
    meter.add(**counts)  # type: ignore[arg-type]
    meter.leave()
    meter.batches += 1


# Summaries


def test_summary_of_numbers() -> None:
    assert Summary.of([1.0, 2.0, 6.0]) == Summary(mean=3.0, min=1.0, max=6.0)
    assert str(Summary.of([1.0, 2.0, 6.0])) == "3.0 (1.0 to 6.0)"


def test_summary_of_nothing_is_nan_and_shown_as_a_dash() -> None:
    summary = Summary.of([])
    assert all(math.isnan(value) for value in (summary.mean, summary.min, summary.max))
    assert str(summary) == "–"


# Counts


def test_nothing_collected(clock: Clock) -> None:
    clock.now += 5.0
    stats = Meter().read()
    assert (stats.frames, stats.batches, stats.finished_episodes, stats.episodes, stats.workers) == (0, 0, 0, [], [])
    assert (stats.frames_per_second, stats.env_share, stats.policy_share, stats.waiting_share) == (0.0, 0.0, 0.0, 0.0)


def test_rate_and_shares_are_of_the_time_since_the_first_batch(clock: Clock) -> None:
    meter = Meter()
    clock.now += 100.0  # before the first batch: does not count
    collect(meter, clock, 2.0, frames=30, episodes=[episode(3.0, 10)], env_seconds=1.0, policy_seconds=0.5)
    clock.now += 1.0  # training
    collect(meter, clock, 2.0, frames=30, episodes=[episode(5.0, 20)], env_seconds=1.5, policy_seconds=0.5)
    clock.now += 3.0
    stats = meter.read()
    assert (stats.frames, stats.batches, stats.finished_episodes) == (60, 2, 2)
    assert stats.frames_per_second == 60 / 8.0
    assert (stats.env_share, stats.policy_share, stats.waiting_share) == (2.5 / 8.0, 1.0 / 8.0, 4.0 / 8.0)
    assert stats.returns == stats.recent_returns == Summary(4.0, 3.0, 5.0)
    assert stats.lengths == stats.recent_lengths == Summary(15.0, 10.0, 20.0)


def test_time_in_a_batch_that_is_not_done_yet_is_no_waiting(clock: Clock) -> None:
    meter = Meter()
    meter.enter()
    clock.now += 4.0
    assert meter.glance().waiting_share == 0.0
    clock.now += 4.0
    meter.leave()
    clock.now += 2.0
    assert meter.glance().waiting_share == 0.2


def test_frames_from_before_the_first_batch_are_in_no_rate(clock: Clock) -> None:
    meter = Meter()
    meter.frames = 1_000_000  # a state that was loaded
    collect(meter, clock, 2.0, frames=10, episodes=[], env_seconds=1.0, policy_seconds=1.0)
    stats = meter.read()
    assert (stats.frames, stats.frames_per_second) == (1_000_010, 5.0)


def test_staleness_discarded_frames_and_restarts(clock: Clock) -> None:
    meter = Meter()
    collect(meter, clock, 1.0, frames=10, episodes=[], env_seconds=0.0, policy_seconds=0.0, staleness=3)
    meter.discard(7)
    meter.discard(1)
    meter.restart()
    stats = meter.read()
    assert (stats.staleness, stats.discarded_frames, stats.restarts) == (3, 8, 1)


# Readers


def test_each_read_begins_a_new_list_of_episodes() -> None:
    meter = Meter()
    meter.add(10, [episode(1.0, 4), episode(2.0, 6)], 0.0, 0.0)
    assert meter.read().episodes == [episode(1.0, 4), episode(2.0, 6)]
    assert meter.read().episodes == []
    meter.add(10, [episode(3.0, 10)], 0.0, 0.0)
    stats = meter.read()
    assert stats.episodes == [episode(3.0, 10)]
    assert (stats.finished_episodes, stats.returns.mean, stats.recent_returns.mean) == (3, 3.0, 2.0)


def test_a_glance_leaves_the_list_for_the_next_reader() -> None:
    meter = Meter(workers=2)
    meter.add(10, [episode(1.0, 4)], 0.0, 0.0, worker=1)
    meter.add(10, [episode(2.0, 5)], 0.0, 0.0, worker=0)
    stats = meter.glance()
    assert (stats.finished_episodes, stats.episodes, [worker.episodes for worker in stats.workers]) == (2, [], [[], []])
    read = meter.read()
    assert (read.episodes, [worker.episodes for worker in read.workers]) == (
        [episode(1.0, 4), episode(2.0, 5)],
        [[episode(2.0, 5)], [episode(1.0, 4)]],
    )
    assert meter.read() == stats


def test_stats_that_were_read_do_not_change() -> None:
    meter = Meter()
    meter.add(10, [episode(1.0, 10)], 0.0, 0.0)
    stats = meter.read()
    meter.add(10, [episode(2.0, 10)], 0.0, 0.0)
    meter.read()
    assert (stats.frames, stats.episodes) == (10, [episode(1.0, 10)])


def test_episodes_that_nobody_reads_do_not_pile_up() -> None:
    meter = Meter()
    for number in range(KEPT_EPISODES + 5):
        meter.add(1, [episode(float(number), 1)], 0.0, 0.0)
    stats = meter.read()
    assert (len(stats.episodes), stats.episodes[0].reward, stats.finished_episodes) == (10_000, 5.0, 10_005)


def test_recent_is_the_last_hundred() -> None:
    meter = Meter()
    meter.add(150, [episode(float(number), number) for number in range(150)], 0.0, 0.0)
    assert meter.read().recent_returns == Summary(mean=99.5, min=50.0, max=149.0)
    assert meter.read().recent_lengths == Summary(mean=99.5, min=50.0, max=149.0)


# Workers


def test_one_worker_has_no_stats_of_its_own() -> None:
    assert Meter(workers=1).read().workers == []


def two_workers(clock: Clock) -> CollectorStats:
    meter = Meter(workers=2)
    meter.enter()
    clock.now += 2.0
    meter.add(10, [episode(1.0, 5)], 1.0, 0.5, worker=0)
    meter.add(30, [episode(3.0, 7)], 2.0, 1.0, worker=1, staleness=2)
    meter.leave()
    meter.batches += 1
    meter.discard(4, worker=1)
    meter.restart(worker=0)
    clock.now += 2.0
    return meter.read()


def test_several_workers_are_counted_each_and_together(clock: Clock) -> None:
    stats = two_workers(clock)
    assert (stats.frames, stats.batches, stats.frames_per_second, stats.staleness) == (40, 1, 10.0, 2)
    assert (stats.env_share, stats.policy_share, stats.waiting_share) == (3.0 / 8.0, 1.5 / 8.0, 0.5)
    first, second = stats.workers
    assert (first.frames, first.batches, first.frames_per_second, first.staleness) == (10, 1, 2.5, 0)
    assert (first.env_share, first.policy_share, first.waiting_share) == (0.25, 0.125, 0.625)
    assert (first.episodes, first.discarded_frames, first.restarts) == ([episode(1.0, 5)], 0, 1)
    assert (second.frames, second.batches, second.frames_per_second, second.staleness) == (30, 1, 7.5, 2)
    assert (second.env_share, second.policy_share, second.waiting_share) == (0.5, 0.25, 0.25)
    assert (second.episodes, second.discarded_frames, second.restarts) == ([episode(3.0, 7)], 4, 0)


def test_workers_that_have_not_begun(clock: Clock) -> None:
    stats = Meter(workers=3).read()
    assert [(worker.frames, worker.frames_per_second, worker.waiting_share) for worker in stats.workers] == [(0, 0.0, 0.0)] * 3


# Text


def test_text_of_one_worker(clock: Clock) -> None:
    meter = Meter()
    collect(meter, clock, 4.0, frames=12_000, episodes=[episode(9.5, 10)] * 120, env_seconds=2.0, policy_seconds=1.0)
    clock.now += 1.0
    assert str(meter.read()).splitlines() == [
        "12,000 frames in 1 batches, 2,400 frames/s",
        "120 episodes; last 100: return 9.5 (9.5 to 9.5), length 10.0 (10.0 to 10.0)",
        "time: env 40%, policy 20%, training 20%",
        "staleness 0, discarded frames 0, restarts 0",
    ]


def test_text_without_episodes() -> None:
    assert str(Meter().read()).splitlines()[1] == "0 episodes; last 0: return –, length –"


def test_text_of_several_workers(clock: Clock) -> None:
    assert str(two_workers(clock)).splitlines()[4:] == [
        (
            "worker 0: 10 frames, 2 frames/s, 1 episodes, return 1.0 (1.0 to 1.0); env 25%, policy 12%, waiting 62%; "
            "staleness 0, discarded 0, restarts 1"
        ),
        (
            "worker 1: 30 frames, 8 frames/s, 1 episodes, return 3.0 (3.0 to 3.0); env 50%, policy 25%, waiting 25%; "
            "staleness 2, discarded 4, restarts 0"
        ),
    ]


def test_repr_has_the_counts_and_not_the_episodes() -> None:
    meter = Meter()
    meter.add(10, [episode(1.0, 10)], 0.0, 0.0)
    text = repr(meter.read())
    assert text.startswith("CollectorStats(frames=10, batches=0, frames_per_second=0.0, finished_episodes=1, recent_returns=")
    assert "Episode(" not in text
