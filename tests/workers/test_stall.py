"""Who does not move is named once in a while, and nothing else happens."""

from __future__ import annotations

import os
import warnings

import pytest

from reap.workers import stall
from reap.workers.processes.group import ProcessGroup
from reap.workers.stall import StallWatch
from tests.workers.handlers import Doer, ask

pytestmark = pytest.mark.timeout(30)


def test_a_worker_that_does_not_move_is_named_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    group = ProcessGroup([Doer] * 2, phases=("resting", "env.step"), stall_after=0.05)
    ask(group, 0, ("neg", 1))
    texts: list[str] = []

    def step(doer: Doer, gate: int) -> bytes:
        doer.control[0] = 1
        return os.read(gate, 1)

    def show(message: Warning | str, *rest: object) -> None:
        texts.append(str(message))
        os.write(writer, b"x")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        group.request(1, step, [reader])
        assert group.ready({0, 1}) == (1, b"x")
    [text] = texts
    assert text.startswith("worker 1 has been in env.step for 0.")
    assert text.endswith(f" s (pid {group.pids[1]})")
    group.stop()
    for descriptor in (reader, writer):
        os.close(descriptor)


class Clock:
    """Stands still until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(stall.time, "monotonic", lambda: self.now)


def warned(watch: StallWatch, awaited: list[int]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        watch.check(awaited, lambda worker: ("env.step", 4710 + worker))
    return [str(one.message) for one in seen]


def control(workers: int) -> list[memoryview]:
    return [memoryview(bytearray(16)).cast("i") for _ in range(workers)]


def test_it_is_said_again_at_doubling_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = StallWatch(60, control(3))
    times = []
    for second in range(300):
        clock.now = 100.0 + second
        times += [(second, text) for text in warned(watch, [1])]
    assert times == [(at, f"worker 1 has been in env.step for {at} s (pid 4711)") for at in (60, 120, 240)]


def test_a_reply_or_a_change_of_an_int_starts_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ints = control(2)
    watch = StallWatch(10, ints)
    times = []
    for second in range(40):
        clock.now = 100.0 + second
        if second == 9:
            ints[0][2] += 1
        if second == 5:
            watch.moved(1)
        times += [(second, text[:8]) for text in warned(watch, [0, 1])]
    assert times == [(15, "worker 1"), (19, "worker 0"), (25, "worker 1"), (29, "worker 0")]


def test_it_looks_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StallWatch(60, control(1)).timeout == 1.0
    assert StallWatch(0.1, control(1)).timeout == 0.1


def test_it_can_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = StallWatch(None, control(1))
    assert watch.timeout == -1
    for second in range(0, 10_000, 100):
        clock.now = 100.0 + second
        assert warned(watch, [0]) == []
