"""The usages of the reference page on collectors and replay buffers, and what that page calls not fully supported."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import pytest

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.storages import LazyTensorStorage
from reap.envs import EnvBase, GymEnv, ParallelEnv
from reap.testing import Id
from tests.data.slices_model import check, frames_of

N = 240
BATCHES = 2

policy = None
numbers = count()


def make_env() -> EnvBase:
    """An env that observes (its number, episode, step), and whose number no other has, in this process or another."""
    return GymEnv(Id(4 * os.getpid() + next(numbers)))


def fill(memory: ReplayBuffer, collector: Any) -> None:
    """The loop of the page, for a few batches; each time the buffer gives the slices that there are, and no others."""
    with collector:
        for number, data in enumerate(collector):
            memory.extend(data)
            if isinstance(memory.sampler, SliceSampler):
                check(memory, 2)
                check(memory, 5)
                sample = memory.sample(8)
                assert sample.shape == (8,)
                runs = sample["observation"].view(4, 2, 3)
                assert (runs[:, 1] - runs[:, 0]).tolist() == [[0, 0, 1]] * 4
            if number == BATCHES:
                return


def test_single_transitions() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(N), transform=lambda data: data.reshape(-1))
    collector = SyncDataCollector(ParallelEnv(2, make_env), policy, frames_per_batch=40, total_frames=-1)
    fill(memory, collector)
    assert len(memory) == 40 * (BATCHES + 1)
    sample = memory.sample(16)
    assert sample.shape == (16,)
    assert set(frames_of(sample)) <= set(frames_of(memory[:]))


def test_single_environment() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    env = make_env()
    collector = SyncDataCollector(env, policy, frames_per_batch=N, total_frames=-1)
    fill(memory, collector)


def test_batched_environments() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N, ndim=2), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    env = ParallelEnv(4, make_env)
    collector = SyncDataCollector(env, policy, frames_per_batch=N, total_frames=-1)
    fill(memory, collector)


def test_several_workers_with_an_env_each() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N, ndim=2), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    collector = MultiSyncDataCollector([make_env] * 4, policy, frames_per_batch=N, total_frames=-1, cat_results="stack")
    fill(memory, collector)


def test_several_workers_with_batched_envs() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N, ndim=3), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    collector = MultiSyncDataCollector(
        [lambda: ParallelEnv(2, make_env)] * 4, policy, frames_per_batch=N, total_frames=-1, cat_results="stack"
    )
    fill(memory, collector)


def test_batched_envs_that_are_given_as_they_are() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N, ndim=3), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    collector = MultiSyncDataCollector(
        [ParallelEnv(2, make_env)] * 4, policy, frames_per_batch=N, total_frames=-1, cat_results="stack"
    )
    fill(memory, collector)


# ---------------------------------------------------------------------- "isn't currently fully supported"


@pytest.mark.parametrize("frames", [40, 3 * N])
def test_workers_whose_batches_come_in_any_order(frames: int) -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    collector = MultiaSyncDataCollector([make_env] * 2, policy, frames_per_batch=frames, total_frames=-1)
    fill(memory, collector)


def test_workers_whose_rows_are_written_one_after_the_other() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N),
        sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids")),
        transform=lambda data: data.reshape(-1),
    )
    collector = MultiSyncDataCollector([make_env] * 2, policy, frames_per_batch=26, total_frames=-1, cat_results="stack")
    fill(memory, collector)


def test_workers_whose_batches_are_joined_in_time() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N), sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"))
    )
    collector = MultiSyncDataCollector([make_env] * 2, policy, frames_per_batch=26, total_frames=-1, cat_results=-1)
    fill(memory, collector)
