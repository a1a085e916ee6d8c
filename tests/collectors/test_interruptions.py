"""Ctrl-C at each moment of a call, caught, and the loop goes on: workers lose no frame, and no trajectory has a gap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from reap.collectors import SyncDataCollector
from reap.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from reap.testing import Const, Count
from tests.collectors.worker_kinds import CLASSES, IDS
from tests.interruptions import each_moment

LENGTH = 5
EVERY = pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.soak)])
NAMES = pytest.mark.parametrize("name", ["Sync", *(pytest.param(name, marks=pytest.mark.processes) for name in CLASSES)])


def make(name: str, **options: Any) -> Any:
    frames = 8 if name == "MultiSync" else 4
    if name == "Sync":
        return SyncDataCollector(partial(Count, LENGTH), Const(), frames_per_batch=frames, **options)
    return CLASSES[name]([partial(Count, LENGTH)] * 2, Const(), frames_per_batch=frames, **options)


class Streams:
    """What each worker recorded: steps and ids, in order; that of workers has no gap at all."""

    def __init__(self, name: str) -> None:
        self._ends: dict[int, tuple[int, int]] = {}
        self._is_whole = name != "Sync"

    def add(self, batch: Any) -> None:
        if batch is None:
            return
        for row in batch if batch.ndim > 1 else [batch]:
            for step, number in zip(row["observation"].flatten().int().tolist(), row[IDS].tolist(), strict=True):
                self._check(step, number)

    def _check(self, step: int, number: int) -> None:
        worker = number >> 40
        last, before = self._ends.get(worker, (step - 1, number))
        if number == before:
            assert step == last + 1
        else:
            assert step == 0
            assert number > before
            assert number == before + 1 or not self._is_whole
            assert last == LENGTH - 1 or not self._is_whole
        self._ends[worker] = step, number


ACTS: dict[str, Callable[[Any], Any]] = {
    "update": lambda collector: collector.update_policy_weights_(),
    "state": lambda collector: collector.state_dict(),
    "stats": lambda collector: collector.stats(),
    "call": lambda collector: collector.call_env("observe"),
}


@EVERY
@NAMES
@pytest.mark.parametrize("act", ["next", *ACTS])
def test_streams_go_on(name: str, act: str, every: int) -> None:
    with make(name) as collector:
        streams = Streams(name)

        def next_two(_: Any = None) -> None:
            for _ in range(2):
                streams.add(collector.next())

        next_two()
        do = partial(ACTS[act], collector) if act in ACTS else lambda: streams.add(collector.next())
        assert each_moment(do, every, next_two) > 1


@EVERY
@NAMES
@pytest.mark.parametrize("act", ["set_seed", "reset"])
def test_episodes_restart_and_continue(name: str, act: str, every: int) -> None:
    with make(name) as collector:
        acts: dict[str, Any] = {"set_seed": partial(collector.set_seed, 3), "reset": collector.reset}
        batches: list[Any] = []

        def next_two(_: Any) -> None:
            batches[:] = [collector.next().clone() for _ in range(2)]

        next_two(None)
        assert each_moment(acts[act], every, next_two) > 1
        collector.reset()
        next_two(None)
        streams = Streams("Sync")
        for batch in batches:
            streams.add(batch)


@EVERY
@NAMES
def test_a_buffer_is_filled_without_a_gap(name: str, every: int) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), sampler=SamplerWithoutReplacement(), batch_size=64)
    with make(name, replay_buffer=buffer) as collector:
        collector.next()
        assert each_moment(collector.next, every, lambda _: collector.next()) > 1
        stats = collector.stats()
    streams = Streams("Sync")
    written = torch.cat(list(buffer))  # not buffer[:], which has holes where writes were broken off
    streams.add(written[written["index"].argsort()])
    assert len(written) == len(buffer) <= stats.frames
    assert name == "Sync" or len(buffer) == stats.frames


@EVERY
@NAMES
def test_whole_episodes(name: str, every: int) -> None:
    with make(name, trajs_per_batch=2, traj_format="cat") as collector:

        def next_one(_: Any) -> None:
            assert collector.next()["observation"].flatten().tolist() == [*range(LENGTH)] * 2

        next_one(None)
        assert each_moment(lambda: next_one(None), every, next_one) > 1


@EVERY
@pytest.mark.processes
@pytest.mark.parametrize("name", CLASSES)
def test_with_workers_that_are_restarted(name: str, every: int) -> None:
    with make(name, on_worker_failure="restart") as collector:
        streams = Streams(name)
        streams.add(collector.next())
        assert each_moment(lambda: streams.add(collector.next()), every, lambda _: streams.add(collector.next())) > 1
        assert collector.stats().restarts == 0
