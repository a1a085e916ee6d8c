"""Ctrl-C at any moment, caught, and the loop goes on: no frame is lost or comes twice, no answer is taken for another."""

from __future__ import annotations

import gc
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest
import torch

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.collectors.background.background import Background
from reap.collectors.delivery.arrangement import Arrangement
from reap.testing import Const, Count
from reap.testing.marked import Drawing, Marked
from tests.collectors.seams import group_of
from tests.collectors.worker_kinds import CLASSES, Gate, Gated, assert_same, interrupt_at, steps, take, take_of_each, workers_of

PAUSE = 0.002
"""Seconds between two Ctrl-Cs."""
FAR = 1 << 20
"""How far apart the observations of two workers are."""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


# ---------------------------------------------------------------------- many of them


class Storm:
    """Ctrl-C again and again; it raises in the main thread only while a call is under way, and once in each call."""

    def __init__(self) -> None:
        self.raised = 0
        self._is_open = False
        self._stop = Event()
        self._main = threading.get_ident()
        self._thread = Thread(target=self._blow)
        self._before = signal.signal(signal.SIGINT, self._handle)

    def _blow(self) -> None:
        while not self._stop.wait(PAUSE):
            signal.pthread_kill(self._main, signal.SIGINT)

    def _handle(self, *_: object) -> None:
        if self._is_open:
            self._is_open = False
            self.raised += 1
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        gc.collect()  # not in the storm: Python swallows what is raised where threads of earlier tests are forgotten
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)

    def call(self, function: Callable[[], Any]) -> Any:
        """What the function returns, or None where Ctrl-C came into it."""
        result = None
        try:
            self._is_open = True
            result = function()
            self._is_open = False
        except KeyboardInterrupt:
            pass
        return result


def counted(batches: list[Any]) -> dict[int, list[int]]:
    """The observations of each worker, in the order in which they were delivered."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        for row in batch["observation"].reshape(-1, 8).int().tolist():
            found.setdefault(row[0] // FAR, []).extend(value % FAR for value in row)
    return found


COUNTS = [
    100,
    pytest.param(3_000, marks=[pytest.mark.processes, pytest.mark.timeout(300)]),
    pytest.param(15_000, marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CLASSES)
def test_no_frame_is_lost_and_none_comes_twice(name: str, count: int) -> None:
    workers = 1 if name == "aSync" else 2
    frames = 8 * workers if name == "MultiSync" else 8
    with CLASSES[name]([partial(Count, FAR, w * FAR) for w in range(workers)], Const(), frames_per_batch=frames) as collector:
        batches: list[Any] = []
        with Storm() as storm:
            while storm.raised < count:
                batch = storm.call(collector.next)
                batches += [] if batch is None else [batch]
                if len(batches) % 16 == 0:
                    assert storm.call(lambda: collector.getattr_env("length")) in (None, [FAR] * workers)
                    state = storm.call(collector.state_dict)
                    assert state is None or len(state["workers"]) == workers
        batches += take(collector, 2)
        if name == "MultiaSync":  # one of them may have been that much quicker
            batches += chain.from_iterable(take_of_each(collector).values())
        assert collector.stats().frames == frames * len(batches)
        assert collector.stats().batches == len(batches)
    found = counted(batches)
    assert sorted(found) == list(range(workers))
    for values in found.values():
        assert values == list(range(len(values)))


# ---------------------------------------------------------------------- one of them


@pytest.mark.parametrize("name", CLASSES)
def test_a_batch_that_was_interrupted_is_part_of_the_state(name: str, gate: Gate) -> None:
    def make(gates: list[int]) -> Any:
        return CLASSES[name]([partial(Gated, gate.paths, gates)], Const(), frames_per_batch=5)

    with make([8]) as collector:
        assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3, 4]
        interrupt_at(gate, collector.next)
        state = collector.state_dict()
        expected = collector.next()
        assert expected["observation"].flatten().tolist() == [5, 6, 7, 8, 9]
        assert collector.stats().frames == 10
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    with make([]) as other:
        other.next()
        other.load_state_dict(torch.load(file, weights_only=True))
        assert other.stats().frames == 5
        assert_same(other.next(), expected)
        stats = other.stats()
        assert (stats.frames, stats.batches) == (10, 2)
        following = other.next()["observation"].flatten().tolist()
        assert following == [0, 1, 2, 3, 4], "this env has no state: its episodes begin anew"


@pytest.fixture
def interrupt_the_join(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """When it is called, Ctrl-C comes where the next batch is complete: it is raised after that."""

    def arm() -> None:
        join, interruptions = Arrangement.deliver, [signal.SIGINT]

        def joined(*arguments: Any) -> Any:
            if interruptions:
                signal.raise_signal(interruptions.pop())
            return join(*arguments)

        monkeypatch.setattr(Arrangement, "deliver", joined)

    return arm


def test_a_complete_batch_that_was_not_handed_out_is_part_of_the_state(interrupt_the_join: Callable[[], None]) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        return MultiSyncDataCollector([partial(Marked, w) for w in range(2)], Drawing(), frames_per_batch=12)

    with make() as collector:
        collector.set_seed(7)
        expected = take(collector, 4)
    with make() as collector:
        collector.set_seed(7)
        collector.next()
        interrupt_the_join()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        state = collector.state_dict()
        for found, wanted in zip(take(collector, 3), expected[1:], strict=True):
            assert_same(found, wanted)
    with make() as other:
        other.load_state_dict(state)
        for found, wanted in zip(take(other, 3), expected[1:], strict=True):
            assert_same(found, wanted)
        assert other.stats().frames == 48


def test_a_complete_batch_that_was_not_handed_out_is_dropped_by_a_seed(interrupt_the_join: Callable[[], None]) -> None:
    with MultiSyncDataCollector([partial(Count, 50)] * 2, Const(), frames_per_batch=8, total_frames=24) as collector:
        interrupt_the_join()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        collector.set_seed(1)
        assert [steps(batch)[0] for batch in collector] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        stats = collector.stats()
        assert (stats.frames, stats.discarded_frames) == (24, 8)


def test_the_last_batch_of_the_budget_is_handed_out_by_whatever_asks_next(interrupt_the_join: Callable[[], None]) -> None:
    with MultiSyncDataCollector([partial(Count, 50)] * 2, Const(), frames_per_batch=8, total_frames=8) as collector:
        interrupt_the_join()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        assert steps(collector.next()) == [[0, 1, 2, 3]] * 2
        assert collector.next() is None


class Answers(Gated):
    """`Gated` whose calls wait before the gate too."""

    def answer(self, what: str) -> str:
        if what == "slow":
            os.write(self._ends[0], b".")
            os.read(self._ends[1], 1)
        return what


def test_the_answer_of_an_interrupted_call_is_not_taken_for_another(gate: Gate) -> None:
    factories = [partial(Answers, gate.paths, [])] * 2
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=4) as collector:
        interrupt_at(gate, lambda: collector.call_env("answer", "slow"))
        assert collector.call_env("answer", "quick") == ["quick"] * 2
        assert collector.getattr_env("length") == [1000] * 2
        assert steps(collector.next()) == [[0, 1], [0, 1]]


def test_an_interrupted_pause_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, opened, again = Event(), Event(), Event()

    class Work:
        def step(self) -> bool:
            if entered.is_set():
                again.set()
            entered.set()
            return opened.wait(100) and not again.is_set()

    def interrupt(_condition: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    work = Work()
    background = Background(work.step, "work")
    background.start()
    assert entered.wait(100)
    with monkeypatch.context() as patched:
        patched.setattr(background._changed, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt), background.pause():
            pass
    opened.set()
    assert again.wait(100), "it goes on"
    background.stop(20, lambda: None)


def test_a_reply_in_this_process_is_not_taken_for_another() -> None:
    with SyncDataCollector(Count(50), Const(), frames_per_batch=4) as collector:
        ready, calls = group_of(collector).ready, []

        def interrupted(among: Any) -> Any:
            calls.append(among)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return ready(among)

        group_of(collector).ready = interrupted
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        batch = collector.next()
        assert steps(batch) == [0, 1, 2, 3]
        assert batch["collector", "traj_ids"].tolist() == [0] * 4, "the rollout was complete: nothing is lost"
        assert collector.getattr_env("length") == 50


def test_streams_of_workers_are_those_without_interrupts() -> None:
    """What is drawn is the same too."""

    def stream(storm: Storm | None) -> dict[int, list[Any]]:
        torch.manual_seed(3)
        with CLASSES["MultiaSync"]([partial(Marked, w) for w in range(2)], Drawing(), frames_per_batch=6) as collector:
            collector.set_seed(7)
            batches: list[Any] = []
            while any(len(workers_of(batches).get(w, ())) < 6 for w in range(2)):
                batch = collector.next() if storm is None else storm.call(collector.next)
                batches += [] if batch is None else [batch]
        return {worker: own[:6] for worker, own in workers_of(batches).items()}

    expected = stream(None)
    with Storm() as storm:
        found = stream(storm)
    for worker, own in expected.items():
        for one, wanted in zip(found[worker], own, strict=True):
            assert_same(one, wanted)
