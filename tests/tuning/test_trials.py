"""The race: the time goes to the set-ups that look best, and those that cannot win are not tried."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reap import GymEnv
from reap.testing import Count
from reap.tuning.parts import Parts
from reap.tuning.setups import Kind, Setup
from reap.tuning.trials import Track, Trial, race

PARTS = Parts(step=1e-3, step_cpu=1e-3, reset=0.0, policy=(1e-3,) * 4, transfer=0.0, cores=1)
SETUPS = [Setup(Kind.SYNC, envs) for envs in (1, 2, 4, 8, 16)]


class Told(Track):
    """A track on which each set-up is as fast as it was told to be."""

    def __init__(self, rates: dict[Setup, float]) -> None:
        super().__init__(None, lambda: None, 1000)
        object.__setattr__(self, "rates", rates)
        object.__setattr__(self, "runs", [])

    def run(self, trial: Trial, seconds: float) -> None:
        told: Any = self
        told.runs.append(trial.setup)
        if told.rates[trial.setup] > 0:
            trial.rates.append(told.rates[trial.setup])
        else:
            trial.error = "MemoryError: none left"


def raced(rates: list[float], parts: Parts = PARTS) -> tuple[list[Trial], list[Setup]]:
    track: Any = Told(dict(zip(SETUPS, rates, strict=True)))
    *_, last = race(track, SETUPS, parts, seconds=5.0)
    return last, track.runs


def test_the_best_comes_first_and_is_run_most() -> None:
    trials, runs = raced([10, 20, 50, 30, 40])
    assert [trial.setup.envs for trial in trials] == [4, 16, 8, 2, 1]
    assert runs.count(SETUPS[2]) == runs.count(SETUPS[4]) == 3
    assert runs.count(SETUPS[0]) == runs.count(SETUPS[1]) == 1


SLOW = 25.0


@pytest.mark.parametrize(("start", "least", "most"), [(0.0, 4.5, 9.9), (0.3, 4.5, 9.9), (SLOW, 4 * 9.0, 4 * 9.0 + SLOW)])
def test_the_time_that_was_given_is_spent_about(
    start: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes what it was told to, and its collector some time to start."""
    now = [0.0]
    monkeypatch.setattr("reap.tuning.trials.time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Clocked(Told):
        def run(self, trial: Trial, seconds: float) -> None:
            super().run(trial, seconds)
            now[0] += start + seconds

    track: Any = Clocked(dict(zip(SETUPS, [10, 20, 50, 30, 40], strict=True)))
    for _ in race(track, SETUPS, PARTS, seconds=9.0):
        pass
    assert least < now[0] < most


def test_a_synchronous_setup_is_tried_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("reap.tuning.trials.time", SimpleNamespace(perf_counter=lambda: now[0]))
    setups = [Setup(Kind.MULTI_ASYNC, 2, 2), Setup(Kind.MULTI_ASYNC, 1, 2), Setup(Kind.SYNC, 2), Setup(Kind.SYNC, 1)]

    class Clocked(Told):
        def run(self, trial: Trial, seconds: float) -> None:
            super().run(trial, seconds)
            now[0] += 100.0

    track: Any = Clocked(dict.fromkeys(setups, 1e-9))
    *_, last = race(track, setups, Parts(1e-3, 1e-3, 0.0, (1e-3,) * 4, 0.0, cores=2), seconds=1.0)
    assert [one.setup for one in last if one.rates][-1].is_synchronous
    assert len(track.runs) == 3


def test_what_cannot_win_is_not_tried() -> None:
    slow_policy = Parts(step=1e-3, step_cpu=1e-3, reset=0.0, policy=(1e-2,) * 4, transfer=0.0, cores=1)
    assert [round(slow_policy.bound(setup)) for setup in SETUPS] == [91, 167, 286, 444, 615]
    trials, runs = raced([90, 160, 280, 440, 610], slow_policy)
    assert trials[0].setup == SETUPS[4]
    assert set(runs) == set(SETUPS[3:])
    assert [one.rate for one in trials[2:]] == [0, 0, 0]


def test_a_setup_without_memory_is_out() -> None:
    trials, runs = raced([10, 20, 30, 40, 0])
    assert trials[0].setup == SETUPS[3]
    assert runs.count(SETUPS[4]) == 1
    assert next(trial for trial in trials if trial.setup == SETUPS[4]).error == "MemoryError: none left"


def test_parts_that_were_measured_too_slow_rule_nothing_out() -> None:
    slow_policy = Parts(step=1e-3, step_cpu=1e-3, reset=0.0, policy=(1e-2,) * 4, transfer=0.0, cores=1)
    trials, runs = raced([910, 1670, 2860, 4440, 6150], slow_policy)
    assert trials[0].setup == SETUPS[4]
    assert set(runs) == set(SETUPS[3:]), "as if all rates were a tenth of that"


def test_workers_that_deliver_as_they_come_are_counted_by_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Collector(contextlib.nullcontext[Any]):
        delivered = 0

        def __enter__(self) -> Any:
            return self

        def next(self) -> torch.Tensor:
            self.delivered += 1
            return torch.zeros(7)

    made = Collector()

    class Given(Setup):
        def build(self, *_: Any) -> Any:
            return made

    monkeypatch.setattr("time.perf_counter", iter([0.0, 0.5, 1.0, 1.5]).__next__)
    trial = Trial(Given(Kind.MULTI_ASYNC, 1, 4), bound=100.0)
    Track(None, lambda: None, 20).run(trial, 1.25)
    assert made.delivered == 4 + 2 * 4
    assert trial.rate == 2 * 4 * 7 / 1.5


def test_a_trial_collects() -> None:
    trial = Trial(Setup(Kind.SYNC, 2), bound=1e6)
    Track(lambda: GymEnv(Count(5)), lambda: None, 20).run(trial, 0.05)
    assert trial.rates[0] == trial.rate > 0
    assert trial.share == pytest.approx(trial.rate / 1e6)
