"""What several processes deliver is what collectors in this process deliver."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.testing.marked import Drawing, Told
from tests.collectors.worker_kinds import (
    CLASSES,
    ENVS,
    IDS,
    Recall,
    assert_same,
    counts,
    from_worker,
    of_torchrl,
    sampling,
    serial,
    take,
    workers_of,
)
from tests.pairwise import by_default

SEED = 7
POLICIES = {"plain": Told, "drawing": Drawing, "recurrent": Recall, "TensorDict": sampling}


def alone(
    make: Callable[[int], Any], policy: Any, frames: int, batches: int, *, numbers: Sequence[int] = (0, 1), **options: Any
) -> list[list[Any]]:
    """What collectors of envs of these numbers deliver in this process, seeded along the chain."""
    seed, found = SEED, []
    for worker, number in enumerate(numbers):
        with SyncDataCollector(partial(make, number), copy.deepcopy(policy), frames_per_batch=frames, **options) as collector:
            seed = collector.set_seed(seed)
            found.append([from_worker(batch, worker) for batch in take(collector, batches)])
    return [*found, [seed]]


@pytest.mark.parametrize(
    ("kind", "policy"), by_default(product(ENVS, POLICIES), ("serial", "drawing"), ("serial", "recurrent"))
)
def test_several_workers_are_collectors_seeded_along_the_chain(kind: str, policy: str) -> None:
    torch.manual_seed(1)
    made = POLICIES[policy]()
    *expected, [following] = alone(ENVS[kind], made, 24, 3)
    with MultiSyncDataCollector([partial(ENVS[kind], w) for w in range(2)], made, frames_per_batch=48) as collector:
        assert collector.set_seed(SEED) == following
        for number, batch in enumerate(take(collector, 3)):
            for worker in range(2):
                assert_same(batch[worker], expected[worker][number])


@pytest.mark.processes  # each worker imports torchrl
def test_envs_of_torchrl() -> None:
    pytest.importorskip("torchrl")
    *expected, _ = alone(of_torchrl, Told(), 12, 2)
    with MultiSyncDataCollector([partial(of_torchrl, w) for w in range(2)], Told(), frames_per_batch=24) as collector:
        collector.set_seed(SEED)
        for number, batch in enumerate(take(collector, 2)):
            for worker in range(2):
                assert_same(batch[worker], expected[worker][number])


@pytest.mark.parametrize(("form", "kind"), [*zip([0, -1, "stack"], ENVS, strict=True)])
def test_one_worker_is_a_collector_in_this_process(kind: str, form: Any) -> None:
    options: Any = {"frames_per_batch": 12, "init_random_frames": 12, "max_frames_per_traj": 5, "track_policy_version": True}
    with SyncDataCollector(partial(ENVS[kind], 0), Drawing(), **options) as collector:
        following = collector.set_seed(SEED)
        expected = take(collector, 3)
    with MultiSyncDataCollector([partial(ENVS[kind], 0)], Drawing(), cat_results=form, **options) as collector:
        assert collector.set_seed(SEED) == following
        for found, wanted in zip(take(collector, 3), expected, strict=True):
            assert_same(found[0] if form == "stack" else found, wanted)


@pytest.mark.parametrize("name", by_default(CLASSES, "aSync"))
def test_the_stream_does_not_depend_on_frames_per_batch(name: str) -> None:
    def stream(batches: int, frames: int) -> dict[int, Any]:
        with CLASSES[name]([partial(serial, w) for w in range(2)], Drawing(), frames_per_batch=frames) as collector:
            collector.set_seed(SEED)
            if name == "MultiSync":
                return dict(enumerate(torch.cat(take(collector, batches), -1)))
            by_worker: dict[int, list[Any]] = {}
            while any(len(by_worker.get(w, ())) < batches for w in range(collector.num_workers)):
                for worker, more in workers_of([collector.next()]).items():
                    by_worker.setdefault(worker, []).extend(more)
            return {worker: torch.cat(some[:batches], -1) for worker, some in by_worker.items()}

    few, many = stream(2, 48), stream(4, 24)
    assert few.keys() == many.keys()
    for worker, batch in few.items():
        assert_same(many[worker], batch)


@pytest.mark.parametrize("name", by_default(["MultiaSync", "aSync"], "MultiaSync"))
def test_async_workers_are_collectors_too(name: str) -> None:
    numbers = {"MultiaSync": [0, 1], "aSync": [1]}[name]
    *expected, _ = alone(serial, Told(), 12, 3, numbers=numbers)
    factories = [partial(serial, w) for w in range(2)]
    with CLASSES[name](factories, Told(), frames_per_batch=12) as collector:
        collector.set_seed(SEED)
        batches = take(collector, 3 * collector.num_workers)
        while len(workers_of(batches)) < collector.num_workers:  # one of them may be that much quicker
            batches += take(collector, 1)
    found = workers_of(batches)
    assert sorted(found) == list(range(len(numbers)))
    for worker, batches in found.items():
        for batch, wanted in zip(batches, expected[worker], strict=False):
            assert_same(batch, wanted)


def test_ids_are_unique_over_workers_batches_and_seeds() -> None:
    with counts([2, 3], frames_per_batch=12, split_trajs=False) as collector:
        seen: set[int] = set()
        for _ in range(3):
            collector.set_seed(SEED)
            ids = set(collector.next()[IDS].flatten().tolist())
            assert not ids & seen
            seen |= ids
    assert {number >> 40 for number in seen} == {0, 1}
