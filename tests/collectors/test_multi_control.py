"""Seeds, resets, calls, attributes and stats of collectors with several workers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError
from reap.seeds import next_seed, seed_chain
from reap.testing import Const, Count
from reap.testing.marked import Marked
from tests.collectors.worker_kinds import (
    CLASSES,
    IDS,
    VERSION,
    Seeded,
    counts,
    pairs,
    steps,
    take,
    take_of_each,
)
from tests.pairwise import by_default

SEED = 7


def test_seeds_go_along_the_chain() -> None:
    factories = [lambda: SerialEnv(2, [partial(Seeded, 5)] * 2)] * 2
    chain = list(seed_chain(SEED, 5))
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=8) as collector:
        assert collector.set_seed(SEED) == chain[4]
        collector.next()
        assert collector.getattr_env("seeds") == [[[chain[0]], [chain[1]]], [[chain[2]], [chain[3]]]]
        assert collector.set_seed(SEED, static_seed=True) == SEED
        collector.next()
        assert [own[-1] for both in collector.getattr_env("seeds") for own in both] == [SEED] * 4
        with pytest.raises(OptionError, match="seed: expected an integer"):
            collector.set_seed("7")
    with MultiaSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=8) as collector:
        first, second = [], []
        for into in (first, second):
            assert collector.set_seed(SEED) == next_seed(next_seed(SEED))
            found = take_of_each(collector)
            into.extend(found[w][0] for w in (0, 1))
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one["observation"], other["observation"])
            assert torch.equal(one["action"], other["action"])


def test_resets_of_rows_over_all_workers() -> None:
    with MultiSyncDataCollector([partial(pairs, w) for w in range(2)], Const(), frames_per_batch=8) as collector:
        collector.next()
        collector.reset(3)
        assert steps(collector.next()) == [[[2, 3], [12, 13]], [[22, 23], [30, 31]]]
        collector.reset([0, 2])
        assert steps(collector.next()) == [[[0, 1], [14, 15]], [[20, 21], [32, 33]]]
        collector.reset([False, True, False, False])
        assert steps(collector.next()) == [[[2, 3], [10, 11]], [[22, 23], [34, 35]]]
        collector.reset()
        assert steps(collector.next()) == [[[0, 1], [10, 11]], [[20, 21], [30, 31]]]
        with pytest.raises(OptionError) as caught:
            collector.reset([4, -1])
        assert str(caught.value) == "reset: expected rows from 0 to 3, got [4, -1]"
        assert steps(collector.next()) == [[[2, 3], [12, 13]], [[22, 23], [32, 33]]]


def test_resets_of_async_workers_drop_what_waits() -> None:
    with MultiaSyncDataCollector([partial(Count, 50)] * 2, Const(), frames_per_batch=4) as collector:
        take(collector, 3)
        collector.reset()
        first = {worker: steps(batches[0]) for worker, batches in take_of_each(collector).items()}
        assert first == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
        assert collector.stats().discarded_frames % 4 == 0


def gaps_of(batches: Iterable[Any]) -> list[tuple[int, int]]:
    """Where frames are missing in a trajectory, of envs that observe their step: its id, and the step that was expected."""
    following: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for batch in batches:
        ids, seen = batch[IDS].flatten().tolist(), batch["observation"][..., 2].flatten().tolist()
        for number, step in zip(ids, seen, strict=True):
            expected = following.get(number, 0)
            if step != expected:
                found.append((number, expected))
            following[number] = int(step) + 1
    return found


def interrupted_after_the_first(call: Any) -> Any:
    """In place of a call that asks each worker: Ctrl-C comes when the first has replied."""

    def first_only(*arguments: Any) -> Any:
        call(*arguments)
        raise KeyboardInterrupt

    return first_only


@pytest.mark.parametrize("kind", ["set_seed", "load_state_dict"])
def test_ctrl_c_while_workers_are_seeded_or_loaded_leaves_no_gap(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with MultiaSyncDataCollector([partial(Marked, worker) for worker in range(2)], frames_per_batch=5) as collector:
        batches = take(collector, 3)
        state, workers = collector.state_dict(), collector._workers
        if kind == "set_seed":  # the second worker is not reached
            monkeypatch.setattr(workers, "seed", interrupted_after_the_first(lambda *given: workers._own.seed(0, *given)))
            with pytest.raises(KeyboardInterrupt):
                collector.set_seed(SEED)
        else:
            before = len(batches)
            monkeypatch.setattr(workers, "set_states", interrupted_after_the_first(workers.set_states))
            with pytest.raises(KeyboardInterrupt):
                collector.load_state_dict(state)
            batches = batches[before:]
        monkeypatch.undo()
        for own in take_of_each(collector, 4).values():
            batches.extend(own)
        assert gaps_of(batches) == []


def test_a_reset_of_some_rows_leaves_no_gap_in_others() -> None:
    makers = [
        lambda: SerialEnv(2, [Marked, partial(Marked, 1)]),
        lambda: SerialEnv(2, [partial(Marked, 2), partial(Marked, 3)]),
    ]
    with MultiaSyncDataCollector(makers, frames_per_batch=10) as collector:
        batches = take(collector, 3)
        for _ in range(5):
            collector.reset([0])
            for own in take_of_each(collector, 2).values():
                batches.extend(own)
        assert gaps_of(batches) == []
        assert collector.stats().workers[0].discarded_frames == 5 * 10  # one that waited, each time
        assert collector.stats().workers[1].discarded_frames == 0


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiSync"))
def test_calls_and_attributes(name: str) -> None:
    with CLASSES[name]([partial(Seeded, 2), partial(Seeded, 3)], Const(2.5), frames_per_batch=4) as collector:
        lengths = [3] if name == "aSync" else [2, 3]
        collector.next()
        assert collector.getattr_env("length") == lengths
        assert [value.tolist() for value in collector.getattr_policy("w")] == [[2.5]] * len(lengths)
        assert collector.call_env("tell", "a", 1) == [1] * len(lengths)
        last = len(lengths) - 1
        assert collector.call_env("tell", "b", worker_ids=last) == [2]
        assert collector.call_env("tell", "c", worker_ids=[last]) == [3]
        assert collector.getattr_env("told")[-1] == [("a", 1), ("b",), ("c",)]
        with pytest.raises(OptionError, match="worker_ids: expected some of"):
            collector.call_env("tell", worker_ids=[5])
        for call in (collector.getattr_env, collector.getattr_policy, collector.call_env):
            with pytest.raises(Exception, match="nonsense") as caught:
                call("nonsense")
            assert isinstance(caught.value.__cause__, AttributeError)
        assert collector.getattr_env("length") == lengths, "no answer is left of the calls that failed"
        assert collector.next().numel() == 4


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiaSync"))
def test_attributes_of_a_collector(name: str) -> None:
    policy = Const()
    collector = CLASSES[name]([partial(Count, 3)] * 2, policy, frames_per_batch=8, total_frames=16)
    with GymEnv(Count(3)) as env:
        assert collector.observation_spec == env.observation_spec
        assert collector.action_spec == env.action_spec
        assert collector.reward_spec == env.reward_spec
        assert collector.done_spec == env.done_spec
    assert collector.policy is policy
    assert collector.env is None
    assert collector.batch_size == ((2, 4) if name == "MultiSync" else (8,))
    assert collector.total_frames == 16
    assert isinstance(collector, torch.utils.data.IterableDataset)
    workers = 1 if name == "aSync" else 2
    assert repr(collector) == (
        f"{name}DataCollector({workers} x GymEnv(<Count instance>), policy=Const (plain), frames_per_batch=8, "
        "total_frames=16, collected=0)"
    )
    stats = collector.stats()
    assert (stats.frames, len(stats.workers)) == (0, {1: 0, 2: 2}[workers])
    assert not collector.closed
    collector.shutdown()
    collector.shutdown()
    assert collector.closed
    for call in (collector.next, collector.state_dict, collector.reset, lambda: collector.set_seed(1), collector.start):
        with pytest.raises(ClosedError):
            call()


def test_stats_of_each_worker() -> None:
    with counts([2, 3], frames_per_batch=12) as collector:
        take(collector, 2)
        stats = collector.stats()
    assert [(worker.frames, worker.finished_episodes) for worker in stats.workers] == [(12, 6), (12, 4)]
    assert (stats.frames, stats.batches, stats.finished_episodes, stats.discarded_frames) == (24, 2, 10, 0)
    assert sorted((episode.length, episode.reward) for episode in stats.episodes) == [(2, 2.0)] * 6 + [(3, 3.0)] * 4
    assert (stats.recent_lengths.min, stats.recent_lengths.max) == (2, 3)


@pytest.mark.parametrize("name", by_default(CLASSES, "aSync"))
def test_no_staleness_without_weights(name: str) -> None:
    """A policy without weights is never behind, however often they are "updated"."""
    with CLASSES[name]([partial(Count, 5)] * 2, frames_per_batch=4, track_policy_version=True) as collector:
        for _ in range(5):
            collector.update_policy_weights_()
            collector.next()
            assert collector.stats().staleness == 0
        # The first batch of a worker that records ahead may have begun at any time.
        last = [collector.next()] if name == "MultiSync" else [batches[1] for batches in take_of_each(collector, 2).values()]
        assert [batch[VERSION].unique().tolist() for batch in last] == [[5]] * len(last)


def test_the_length_of_workers_with_unequal_batches() -> None:
    factories = [partial(Count, 5)] * 2
    with MultiaSyncDataCollector(factories, Const(), frames_per_batch=[4, 4], total_frames=16) as collector:
        assert len(collector) == 4
    with MultiaSyncDataCollector(factories, Const(), frames_per_batch=[4, 8], total_frames=16) as collector:
        with pytest.raises(TypeError, match="it depends on which finish first"):
            len(collector)
        assert sum(batch.numel() for batch in collector) >= 16
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=[4, 8], total_frames=24) as collector:
        assert len(collector) == 2
