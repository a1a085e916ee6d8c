"""Classes derived from collectors: a `rollout()` of their own, and another env."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors import MultiSyncDataCollector, RandomPolicy, SyncDataCollector
from reap.data import Bounded, LazyTensorStorage, ReplayBuffer
from reap.envs import GymEnv, SerialEnv
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.testing import Const, Count

IDS = ("collector", "traj_ids")


class Doubling(SyncDataCollector):
    """Adds a key to what is recorded."""

    def rollout(self) -> TensorDictBase:
        batch = super().rollout()
        return batch.set("double", batch["observation"] * 2)


class MultiDoubling(MultiSyncDataCollector):
    """Adds a key to what all workers recorded."""

    def rollout(self) -> TensorDictBase:
        batch = super().rollout()
        return batch.set("double", batch["observation"] * 2)


class Made(SyncDataCollector):
    """Delivers what no env has recorded."""

    def rollout(self) -> TensorDictBase:
        return TensorDict({"observation": torch.ones(4, 1)}, [4])


def doubled(batch: Any) -> list[float]:
    return batch["double"].flatten().tolist()


def test_iteration_calls_it() -> None:
    collector = Doubling(partial(Count, 9), Const(), frames_per_batch=3, total_frames=6)
    assert [doubled(batch) for batch in collector] == [[0, 2, 4], [6, 8, 10]]
    assert (collector.stats().frames, collector.stats().batches, collector.next()) == (6, 2, None)


def test_next_calls_it() -> None:
    assert doubled(Doubling(partial(Count, 9), Const(), frames_per_batch=3).next()) == [0, 2, 4]


def test_what_follows_gets_it() -> None:
    def halve(batch: Any) -> Any:
        return batch.set("half", batch["double"] / 2)

    batch = Doubling(partial(Count, 2), Const(), frames_per_batch=4, postproc=halve, split_trajs=True).next()
    assert batch.shape == (2, 2)
    assert batch["half"].squeeze(-1).tolist() == [[0, 1], [0, 1]]


def test_a_replay_buffer_gets_it() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = Doubling(partial(Count, 9), Const(), frames_per_batch=3, total_frames=6, replay_buffer=buffer)
    assert list(collector) == [None, None]
    assert buffer[:]["double"].flatten().tolist() == [0, 2, 4, 6, 8, 10]


def test_the_background_calls_it() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = Doubling(partial(Count, 9), Const(), frames_per_batch=4, total_frames=8, replay_buffer=buffer)
    collector.start()
    while collector.is_running():
        with collector.pause():
            pass
    collector.async_shutdown()
    assert buffer[:]["double"].flatten().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_whole_episodes_are_taken_from_it() -> None:
    collector = Doubling(partial(Count, 2), Const(), frames_per_batch=5, trajs_per_batch=2, traj_format="cat")
    assert doubled(collector.next()) == [0, 2, 0, 2]
    assert doubled(collector.next()) == [0, 2, 0, 2]


def test_workers_are_joined_before_it() -> None:
    with MultiDoubling([partial(Count, 9)] * 2, Const(), frames_per_batch=6, total_frames=12) as collector:
        assert [doubled(batch) for batch in collector] == [[0, 2, 4] * 2, [6, 8, 10] * 2]


def test_frames_that_nobody_recorded_are_counted() -> None:
    collector = Made(partial(Count, 9), Const(), frames_per_batch=4, total_frames=8)
    assert [batch.numel() for batch in collector] == [4, 4]
    assert (collector.stats().frames, collector.stats().batches) == (8, 2)


def test_an_error_in_it_leaves_the_collector_usable() -> None:
    class Failing(SyncDataCollector):
        fails = True

        def rollout(self) -> TensorDictBase:
            batch = super().rollout()
            if self.fails:
                raise RuntimeError("no")
            return batch

    collector = Failing(partial(Count, 9), Const(), frames_per_batch=3)
    with pytest.raises(RuntimeError, match="no"):
        collector.next()
    collector.fails = False
    batch = collector.next()
    assert (batch["observation"].flatten().tolist(), batch[IDS].tolist()) == ([0, 1, 2], [1, 1, 1])


def test_a_collector_that_is_dropped_is_freed() -> None:
    from weakref import ref

    collector = Doubling(partial(Count, 9), Const(), frames_per_batch=3)
    collector.next()
    gone = ref(collector)
    del collector
    assert gone() is None


# ---------------------------------------------------------------------- another env


def test_new_episodes_begin_in_another_env() -> None:
    collector = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=3)
    first, env = collector.next(), GymEnv(Count(9, start=5))
    collector.env = env
    second = collector.next()
    assert collector.env is env
    assert (first["observation"].flatten().tolist(), second["observation"].flatten().tolist()) == ([0, 1, 2], [5, 6, 7])
    assert (first[IDS].tolist(), second[IDS].tolist()) == ([0] * 3, [1] * 3)
    assert collector.stats().frames == 6


def test_anything_that_makes_an_env_can_be_set() -> None:
    collector = SyncDataCollector(partial(Count, 9), frames_per_batch=3)
    collector.env = partial(Count, 2)
    assert collector.next()["observation"].flatten().tolist() == [0, 1, 0]
    collector.shutdown()
    assert collector.env.closed


def test_a_policy_with_weights_acts_on() -> None:
    policy = Const(2.0)
    collector = SyncDataCollector(partial(Count, 9), policy, frames_per_batch=3, policy_device="cpu")
    collector.env = partial(Count, 9)
    assert collector.next()["action"].flatten().tolist() == [2.0] * 3
    collector.update_policy_weights_(Const(3.0))
    assert collector.policy_version == 1


def test_a_policy_of_random_actions_acts_on() -> None:
    spec = Bounded(3.0, 4.0, (1,))
    collector = SyncDataCollector(partial(Count, 9), RandomPolicy(spec), frames_per_batch=3)
    collector.env = partial(Count, 9)
    assert (collector.next()["action"] >= 3.0).all()


def test_seeds_go_on_in_the_chain() -> None:
    collector = SyncDataCollector("CartPole-v1", frames_per_batch=20)
    collector.set_seed(3)
    first = collector.next()
    collector.env = "CartPole-v1"
    second = collector.next()
    assert not torch.equal(first["observation"][0], second["observation"][0])


def test_envs_that_cannot_be_set() -> None:
    collector = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=4)
    with pytest.raises(SpecMismatch, match=r"env: expected batches as those of GymEnv\(<Count instance>\)"):
        collector.env = SerialEnv(2, partial(Count, 9))
    assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3]
    with (
        MultiSyncDataCollector([partial(Count, 9)], Const(), frames_per_batch=4) as several,
        pytest.raises(OptionError, match="env: workers have their envs in their processes; build a new collector"),
    ):
        several.env = partial(Count, 9)


def test_not_while_it_collects_in_the_background() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=4, replay_buffer=buffer)
    collector.start()
    with pytest.raises(CallOrderError, match="running in the background"):
        collector.env = partial(Count, 9)
    collector.async_shutdown()
