"""Options that are bools or integers: other values, and integers beyond 64 bits, are an OptionError wherever they are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pettingzoo.classic.rps.rps import parallel_env

from reap import (
    GymEnv,
    LazyTensorStorage,
    MultiaSyncDataCollector,
    MultiSyncDataCollector,
    ParallelEnv,
    ReplayBuffer,
    SerialEnv,
    SyncDataCollector,
)
from reap.collectors import Collector
from reap.collectors.distributed import DistributedDataCollector, RayCollector
from reap.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LinearScheduler,
    ListStorage,
    MultiStep,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorStorage,
)
from reap.envs import PettingZooWrapper
from reap.errors import OptionError
from reap.option_values import not_negative, positive, switch

HUGE = 2**70

Maker = Callable[..., Any]

SLICES = partial(SliceSampler, num_slices=2)
SLICES_ONCE = partial(SliceSamplerWithoutReplacement, num_slices=2)
PRIORITIES = partial(PrioritizedSampler, 10, 0.7, 0.5)
PRIORITIES_OF_SLICES = partial(PrioritizedSliceSampler, 10, 0.7, 0.5, num_slices=2)
RAM, FILES = partial(LazyTensorStorage, 10), partial(LazyMemmapStorage, 10)
HERE = partial(SyncDataCollector, "CartPole-v1", frames_per_batch=10)
WORKERS = partial(MultiSyncDataCollector, ["CartPole-v1"], frames_per_batch=10)
ELSEWHERE = partial(DistributedDataCollector, ["CartPole-v1"], frames_per_batch=10)

SWITCHES: list[tuple[Maker, str]] = [
    *[(SLICES, name) for name in ("strict_length", "cache_values")],
    *[(SLICES_ONCE, name) for name in ("drop_last", "shuffle", "strict_length")],
    *[(SamplerWithoutReplacement, name) for name in ("drop_last", "shuffle")],
    (PRIORITIES, "max_priority_within_buffer"),
    *[(PRIORITIES_OF_SLICES, name) for name in ("max_priority_within_buffer", "strict_length")],
    *[(RAM, name) for name in ("observations_once", "compilable", "consolidated", "shared_init", "cleanup_memmap")],
    *[(FILES, name) for name in ("observations_once", "compilable", "existsok", "shared_init", "auto_cleanup")],
    *[(kind, "compilable") for kind in (ListStorage, LazyStackStorage, RoundRobinWriter, TensorDictMaxValueWriter)],
    (partial(TensorStorage, torch.zeros(3)), "compilable"),
    *[(ReplayBuffer, name) for name in ("pin_memory", "shared", "compilable", "delayed_init")],
    (partial(ReplayBufferEnsemble, ReplayBuffer()), "sample_from_all"),
    *[
        (HERE, name)
        for name in (
            "reset_at_each_iter",
            "reset_when_done",
            "split_trajs",
            "return_same_td",
            "set_truncated",
            "extend_buffer",
            "trust_policy",
            "no_cuda_sync",
            "track_policy_version",
            "pin_memory",
            "use_buffers",
            "replay_buffer_chunk",
        )
    ],
    (WORKERS, "update_at_each_batch"),
    *[(ELSEWHERE, name) for name in ("update_after_each_batch", "sync")],
    *[(partial(RayCollector, ["CartPole-v1"], frames_per_batch=10), name) for name in ("use_env_creator", "sync")],
    (partial(Collector, "CartPole-v1", backend="process", frames_per_batch=10), "sync"),
    *[
        (partial(GymEnv, "CartPole-v1"), name)
        for name in (
            "categorical_action_encoding",
            "from_pixels",
            "pixels_only",
            "convert_actions_to_numpy",
            "allow_done_after_reset",
        )
    ],
    *[(partial(ParallelEnv, 2, "CartPole-v1"), name) for name in ("overlap", "serial_for_single")],
    *[
        (partial(PettingZooWrapper, parallel_env()), name)
        for name in ("return_state", "use_mask", "categorical_actions", "done_on_any")
    ],
]


def case(value: Any) -> str | None:
    kind = value.func if isinstance(value, partial) else value
    return getattr(kind, "__name__", None)


@pytest.mark.filterwarnings("ignore:option replay_buffer_chunk:DeprecationWarning")
@pytest.mark.parametrize(("make", "name"), SWITCHES, ids=case)
def test_a_switch_takes_bools_only(make: Maker, name: str) -> None:
    for value in ("no", 0, 1, 2.5, torch.tensor(False)):
        with pytest.raises(OptionError, match=rf"^{name}: expected a bool( or None)?, got "):
            make(**{name: value})


NUMBERS: list[tuple[Maker, str]] = [
    *[(ReplayBuffer, name) for name in ("batch_size", "prefetch")],
    *[(partial(ReplayBufferEnsemble, ReplayBuffer()), name) for name in ("batch_size", "prefetch", "num_buffer_sampled")],
    *[(kind, "max_size") for kind in (LazyTensorStorage, LazyMemmapStorage, ListStorage)],
    (RAM, "ndim"),
    (SliceSampler, "num_slices"),
    (SliceSampler, "slice_len"),
    (partial(PrioritizedSampler, alpha=0.7, beta=0.5), "max_capacity"),
    (partial(LinearScheduler, PRIORITIES(), "beta", 0.1), "num_steps"),
    (partial(MultiStep, 0.9), "n_steps"),
    *[
        (HERE, name)
        for name in (
            "total_frames",
            "max_frames_per_traj",
            "init_random_frames",
            "max_frames_ahead",
            "worker_idx",
            "seed",
            "record_episodes",
            "trajs_per_batch",
        )
    ],
    *[(partial(kind, "CartPole-v1"), "frames_per_batch") for kind in (SyncDataCollector,)],
    *[(partial(kind, ["CartPole-v1"]), "frames_per_batch") for kind in (MultiSyncDataCollector, MultiaSyncDataCollector)],
    *[(WORKERS, name) for name in ("num_threads", "num_sub_threads")],
    (partial(MultiSyncDataCollector, "CartPole-v1", frames_per_batch=10), "num_workers"),
    *[
        (ELSEWHERE, name)
        for name in ("num_workers_per_collector", "max_weight_update_interval", "update_interval", "min_workers")
    ],
    *[(partial(GymEnv, "CartPole-v1"), name) for name in ("num_envs", "frame_skip")],
    *[(partial(kind, create_env_fn="CartPole-v1"), "num_workers") for kind in (SerialEnv, ParallelEnv)],
    (partial(ParallelEnv, 2, "CartPole-v1"), "num_processes"),
]


@pytest.mark.parametrize(("make", "name"), NUMBERS, ids=case)
def test_an_integer_beyond_64_bits_is_refused(make: Maker, name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: expected .*, got {HUGE}"):
        make(**{name: HUGE})


SAMPLERS: list[Maker] = [RandomSampler, SamplerWithoutReplacement, PRIORITIES, SLICES, SLICES_ONCE, PRIORITIES_OF_SLICES]


@pytest.mark.parametrize("make", SAMPLERS, ids=case)
def test_a_sample_of_more_than_64_bits_is_refused(make: Maker) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=make())
    buffer.extend(torch.arange(4))
    for call in (buffer.sample, partial(buffer.sampler.sample, buffer.storage)):
        with pytest.raises(OptionError, match=rf"^batch_size: expected a positive integer below 2\*\*63, got {HUGE}$"):
            call(HUGE)


def test_an_ensemble_refuses_such_a_sample() -> None:
    buffer = ReplayBuffer()
    buffer.extend(torch.arange(4))
    with pytest.raises(OptionError, match=r"^batch_size: expected a positive integer below 2\*\*63"):
        ReplayBufferEnsemble(buffer).sample(HUGE)


@pytest.mark.parametrize("name", ["alpha", "beta", "eps"])
def test_a_number_beyond_all_floats_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: expected a finite number from 0 on, got 1000"):
        PrioritizedReplayBuffer(**{"alpha": 0.7, "beta": 0.5, name: 10**400})


def test_values_of_numpy_count() -> None:
    assert [switch(np.True_, "shuffle"), switch(False, "shuffle")] == [True, False]
    assert (positive(np.int64(3), "n"), positive(2**63 - 1, "n"), not_negative(0, "n")) == (3, 2**63 - 1, 0)
    assert SamplerWithoutReplacement(shuffle=np.False_).shuffle is False
