"""Versions of the policy, and whole episodes of several workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.testing import Const, Count
from tests.collectors.seams import under_way
from tests.collectors.worker_kinds import CLASSES, LIMIT, MASK, VERSION, Gate, Gated, counts, pairs, steps
from tests.pairwise import by_default


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path)
    yield made
    made.close()


def test_the_version_that_acted() -> None:
    policy = Const(0.0)
    with MultiSyncDataCollector([partial(Count, 5)] * 2, policy, frames_per_batch=6, track_policy_version=True) as collector:
        for version in range(3):
            batch = collector.next()
            assert batch[VERSION].tolist() == [[version] * 3] * 2
            assert batch["action"].squeeze(-1).tolist() == [[float(version)] * 3] * 2
            assert collector.policy_version == version
            nn.init.constant_(policy.w, version + 1)
            collector.update_policy_weights_()
        collector.update_policy_weights_(worker_ids=1)
        assert collector.next()[VERSION].tolist() == [[3] * 3, [4] * 3]


def test_the_version_of_async_batches_is_that_of_their_action() -> None:
    policy = Const(0.0)
    with MultiaSyncDataCollector([partial(Count, 5)] * 2, policy, frames_per_batch=6, track_policy_version=True) as collector:
        for version in range(1, 20):
            batch = collector.next()
            assert batch["action"].unique().tolist() == batch[VERSION].unique().float().tolist()
            nn.init.constant_(policy.w, version)
            collector.update_policy_weights_()


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiSync"))
@pytest.mark.parametrize("form", ["padded", "cat"])
def test_whole_episodes_of_each_row_in_turn(name: str, form: str) -> None:
    """B10: envs of length 1 and 7; short episodes are not preferred."""
    options: Any = {"frames_per_batch": 8, "trajs_per_batch": 4, "traj_format": form}
    with CLASSES[name]([partial(Count, 1), partial(Count, 7)], Const(), **options) as collector:
        for _ in range(3):
            batch = collector.next()
            length = [7] * 4 if name == "aSync" else [1, 7, 1, 7]
            if form == "padded":
                assert batch.batch_size == (4, 7)
                assert batch[MASK].sum(-1).tolist() == length
                assert steps(batch)[1] == [0, 1, 2, 3, 4, 5, 6]
            else:
                assert steps(batch) == [step for n in length for step in range(n)]


def test_whole_episodes_of_unequal_workers() -> None:
    factories = [partial(pairs, w, rows) for w, rows in enumerate((1, 2))]
    options: Any = {"trajs_per_batch": 6, "max_frames_per_traj": 5, "traj_format": "cat"}
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=[3, 8], **options) as collector:
        for _ in range(2):
            episodes = [[start + step for step in range(5)] for start in (0, 20, 30)]
            assert steps(collector.next()) == [step for episode in episodes * 2 for step in episode]


def test_whole_episodes_until_the_budget_is_used_up() -> None:
    with counts([2, 3], frames_per_batch=12, total_frames=36, trajs_per_batch=3) as collector:
        batches = list(collector)
        assert [batch.shape[0] for batch in batches] == [3] * len(batches)
        assert collector.next() is None
        stats = collector.stats()
    assert stats.frames == 36
    assert sum(int(batch[MASK].sum()) for batch in batches) + stats.discarded_frames == 36


@pytest.mark.processes
def test_a_worker_waits_for_those_whose_episodes_its_own_wait_for(gate: Gate) -> None:
    """Worker 1 stands before a gate in its first step; the other one records three rollouts, and no more until then."""
    factories = [partial(Count, 2), partial(Gated, gate.paths, [1], 2)]
    options: Any = {"trajs_per_batch": 2, "traj_format": "cat", "total_frames": 1000}
    with MultiaSyncDataCollector(factories, Const(), frames_per_batch=4, **options) as collector:
        opener = Thread(target=lambda: (wait_for_frames(collector, 12), gate.open()))
        opener.start()
        batches = [collector.next()]
        opener.join()
        assert collector.stats().frames == 16
        assert under_way(collector) == [1]
        batches.append(collector.next())
        assert collector.stats().frames == 16
        batches.extend(collector)
        stats = collector.stats()
    assert [steps(batch) for batch in batches] == [[0, 1, 0, 1]] * len(batches)
    assert stats.frames == 1000
    assert len(batches) * 4 + stats.discarded_frames == 1000
    assert stats.discarded_frames <= 20


def wait_for_frames(collector: Any, frames: int) -> None:
    """Wait until so many frames are counted; nothing tells of them but the count."""
    deadline = time.monotonic() + LIMIT
    while collector.stats().frames < frames:
        assert time.monotonic() < deadline, "they did not come"
        os.sched_yield()


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiaSync"))
def test_the_rollouts_of_all_workers_have_a_thousand_frames_unless_it_is_given(name: str) -> None:
    with CLASSES[name]([partial(Count, 5)] * 2, Const(), trajs_per_batch=4) as collector:
        assert collector.frames_per_batch == 1000
