"""Who does not move is named once in a while, and nothing else happens."""

from __future__ import annotations

import warnings

import pytest

from reap.workers import stall
from reap.workers.stall import StallWatch


class Clock:
    """Stands still until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(stall.time, "monotonic", lambda: self.now)


def warned(watch: StallWatch, awaited: list[int]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        watch.check(awaited, lambda worker: ("env.step", f"pid {4710 + worker}"))
    return [str(one.message) for one in seen]


def test_it_is_said_again_at_doubling_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = StallWatch(60, [0, 0, 0].__getitem__)
    times = []
    for second in range(300):
        clock.now = 100.0 + second
        times += [(second, text) for text in warned(watch, [1])]
    assert times == [(at, f"worker 1 has been in env.step for {at} s (pid 4711)") for at in (60, 120, 240)]


def test_a_reply_or_progress_starts_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    moves = [0, 0]
    watch = StallWatch(10, moves.__getitem__)
    times = []
    for second in range(40):
        clock.now = 100.0 + second
        if second == 9:
            moves[0] += 1
        if second == 5:
            watch.moved(1)
        times += [(second, text[:8]) for text in warned(watch, [0, 1])]
    assert times == [(15, "worker 1"), (19, "worker 0"), (25, "worker 1"), (29, "worker 0")]


def test_it_looks_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StallWatch(60, [0].__getitem__).timeout == 1.0
    assert StallWatch(0.1, [0].__getitem__).timeout == 0.1


def test_it_can_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = StallWatch(None, [0].__getitem__)
    assert watch.timeout == -1
    for second in range(0, 10_000, 100):
        clock.now = 100.0 + second
        assert warned(watch, [0]) == []
