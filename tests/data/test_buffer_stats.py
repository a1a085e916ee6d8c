"""`stats()` of buffers: what is in them, what was sampled, and how old that was."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)


def frames(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict({"number": number, "traj": number // 4, "td_error": torch.ones(count)}, [count])


def ages(buffer: Any) -> list[float]:
    stats = buffer.stats()
    return [stats[f"sample_age_{name}"] for name in ("mean", "min", "max")]


SAMPLERS = {
    "random": RandomSampler,
    "once": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=2, traj_key="traj"),
    "slices once": lambda: SliceSamplerWithoutReplacement(slice_len=2, traj_key="traj"),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=list(SAMPLERS))
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ages_are_frames_written_since(sampler: Any, prefetch: int) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler(), batch_size=4, prefetch=prefetch)
    assert all(map(math.isnan, ages(buffer)))
    buffer.extend(frames(20))
    before = buffer.stats()
    assert {name: value for name, value in before.items() if not name.startswith("sample_age")} == {
        "size": 8,
        "capacity": 8,
        "utilization": 1.0,
        "write_count": 20,
        "initialized": True,
        "samples": 0,
        "sampled_frames": 0,
    }
    sample = buffer.sample()
    wanted = (19 - sample["number"]).double()
    assert ages(buffer) == [wanted.mean(), wanted.min(), wanted.max()]
    buffer.extend(frames(3, 20))
    assert ages(buffer) == [wanted.mean(), wanted.min(), wanted.max()]  # as it was when the sample was drawn
    stats = buffer.stats()
    assert (stats["samples"], stats["sampled_frames"], stats["write_count"]) == (1, 4, 23)


@pytest.mark.parametrize(
    "kind", [ReplayBuffer, TensorDictReplayBuffer, PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer]
)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_every_class_and_storage(kind: Any, storage: Any) -> None:
    options = {"alpha": 0.5, "beta": 0.5} if "Prioritized" in kind.__name__ else {}
    buffer = kind(storage=storage(5), batch_size=3, **options)
    buffer.extend(frames(4))
    buffer.extend(frames(3, 4))
    wanted = (6 - buffer.sample()["number"]).double()
    assert ages(buffer) == [wanted.mean(), wanted.min(), wanted.max()]
    buffer.empty()
    assert buffer.stats()["write_count"] == 0
    assert buffer.stats()["samples"] == 1


def test_rows_that_are_written_together() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=50)
    time = torch.arange(6).expand(2, -1)
    buffer.extend(TensorDict({"time": time}, [2, 6]))
    sample = buffer.sample()
    wanted = 2.0 * (5 - sample["time"])
    assert ages(buffer) == [wanted.mean(), wanted.min(), wanted.max()]
    assert buffer.stats()["sampled_frames"] == 50


def test_a_last_sample_that_is_shorter() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), sampler=SamplerWithoutReplacement(drop_last=False), batch_size=3)
    buffer.extend(torch.arange(5))
    taken = sum(len(sample) for sample in buffer)
    assert buffer.stats()["sampled_frames"] == taken


def test_a_copy_counts_for_itself() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    buffer.extend(torch.arange(5))
    buffer.sample()
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert other.stats()["samples"] == 0
        assert all(map(math.isnan, ages(other)))


def test_unknown_ages() -> None:
    ranked = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("number"), batch_size=2)
    ranked.extend(frames(5))
    ranked.sample()
    assert ranked.stats()["samples"] == 1
    assert all(map(math.isnan, ages(ranked)))
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    buffer.extend(torch.arange(5))
    buffer.sample()
    buffer.set_storage(LazyTensorStorage(3))
    assert all(map(math.isnan, ages(buffer)))


def test_samples_made_ahead_keep_their_ages_in_a_save() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3, prefetch=2)
    buffer.extend(torch.arange(20))
    buffer.sample()
    other = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3, prefetch=2)
    other.load_state_dict(buffer.state_dict())
    wanted = (19 - other.sample()).double()
    assert ages(other) == [wanted.mean(), wanted.min(), wanted.max()]


def test_an_ensemble_sums_up() -> None:
    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(size)) for size in (4, 6)]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=4)
    late = TensorDictReplayBuffer(storage=lambda: LazyTensorStorage(3), delayed_init=True)
    assert not ReplayBufferEnsemble(late).stats()["initialized"]
    assert not late.initialized
    for buffer in buffers:
        buffer.extend(frames(5))
    sample = ensemble.sample()
    wanted = (4 - sample["number"]).double()
    assert ages(ensemble) == [wanted.mean(), wanted.min(), wanted.max()]
    stats = ensemble.stats()
    assert (stats["size"], stats["capacity"], stats["utilization"], stats["write_count"]) == (9, 10, 0.9, 10)
    assert (stats["samples"], stats["sampled_frames"]) == (1, 4)
