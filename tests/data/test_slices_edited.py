"""Slices of a buffer in which frames were put in the place of others: none runs across one, and no other is lost."""

from __future__ import annotations

import pickle
import random
from itertools import count
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from tests.data.slices_model import Env, check, frames_of, slices_indexed, slices_within, stacked
from tests.data.test_slices_work import calls
from tests.pairwise import each_value, pairwise

FOREIGN = 99
"""The number of an env that wrote nothing by itself."""


def seen_as(data: Any, kind: str) -> Any:
    """With observations that say where frames come from, with some that are all alike, or with none to compare."""
    data = data.clone().set("reward", torch.zeros(data.shape))
    if kind != "observed":
        del data["next", "observation"]
    if kind == "alike":
        data["pixels"] = data["next", "pixels"] = torch.zeros(*data.shape, 3)
    return data


def foreign(frame: Any, numbers: Any, *, same_id: bool) -> Any:
    """Another frame in the form of this one."""
    other = frame.clone()
    other["observation"] = torch.tensor([FOREIGN, next(numbers), 0])
    if ("next", "observation") in other.keys(True):
        other["next", "observation"] = torch.tensor([FOREIGN, next(numbers), 1])
    if not same_id:
        other["collector", "traj_ids"] = torch.tensor(1_000_000 + next(numbers))
    return other


def edit(buffer: ReplayBuffer, chance: random.Random, numbers: Any, *, same_id: bool) -> None:
    """Put a foreign frame somewhere, or change no more than a reward."""
    kept = buffer[:]
    place = tuple(chance.randrange(size) for size in kept.shape)
    frame = kept[place].clone()
    if chance.random() < 0.3:
        buffer[place] = frame.set("reward", frame["reward"] + 1)
    else:
        buffer[place] = foreign(frame, numbers, same_id=same_id)


@pytest.mark.parametrize(("kind", "longest", "seed"), each_value(pairwise(["observed", "alike", "bare"], [1, 12], range(3))))
def test_one_env(kind: str, longest: int, seed: int) -> None:
    """In writes of any length, and frame by frame."""
    chance, numbers, env = random.Random(seed), count(), Env(0, seed, longest=20)
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), sampler=SliceSampler(slice_len=3))
    for _ in range(60):
        buffer.extend(seen_as(env.frames(chance.randint(1, longest)), kind))
        if chance.random() < 0.3:
            edit(buffer, chance, numbers, same_id=kind == "observed" and chance.random() < 0.5)
        if len(buffer) > 3:
            check(buffer, 2)


@pytest.mark.parametrize(("kind", "seed"), each_value(pairwise(["observed", "alike", "bare"], range(3))))
def test_several_writers(kind: str, seed: int) -> None:
    chance, numbers = random.Random(seed), count()
    storage = LazyTensorStorage(60)
    writers = [(ReplayBuffer(storage=storage), Env(number, seed, longest=20)) for number in range(3)]
    buffer = ReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=3))
    for _ in range(60):
        writer, env = chance.choice(writers)
        writer.extend(seen_as(env.frames(chance.randint(1, 8)), kind))
        if chance.random() < 0.3:
            edit(chance.choice(writers)[0], chance, numbers, same_id=kind == "observed" and chance.random() < 0.5)
        if len(buffer) > 3:
            check(buffer, 2)


@pytest.mark.parametrize("kind", ["observed", "alike", "bare"])
def test_rows(kind: str) -> None:
    """What is put in one row changes nothing in the others, also where the ring comes round."""
    chance, numbers = random.Random(1), count()
    envs = [Env(number, 1, longest=20) for number in range(3)]
    buffer = ReplayBuffer(storage=LazyTensorStorage(60, ndim=2), sampler=SliceSampler(slice_len=3))
    for _ in range(60):
        buffer.extend(seen_as(stacked(envs, chance.randint(1, 5)), kind))
        if chance.random() < 0.4:
            edit(buffer, chance, numbers, same_id=kind == "observed" and chance.random() < 0.5)
        check(buffer, 2)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("moved", ["state", "copy", "handle"])
def test_whoever_goes_on_knows_of_them(moved: str, ndim: int) -> None:
    numbers, envs = count(), [Env(number, 4, longest=30) for number in range(2)]
    buffer = ReplayBuffer(storage=LazyTensorStorage(40, ndim=ndim), sampler=SliceSampler(slice_len=3), shared=moved == "handle")
    buffer.extend(seen_as(envs[0].frames(30) if ndim == 1 else stacked(envs, 15), "bare"))
    index = (1, 7) if ndim == 2 else 7
    buffer[index] = foreign(buffer[index], numbers, same_id=False)
    if moved == "state":
        other = ReplayBuffer(storage=LazyTensorStorage(40, ndim=ndim), sampler=SliceSampler(slice_len=3))
        other.load_state_dict(buffer.state_dict())
        other.set_sampler(SliceSampler(slice_len=3))  # one that looks for itself
    else:
        other = pickle.loads(pickle.dumps(buffer))
    check(other, 2)
    if moved == "handle":
        index = (0, 3) if ndim == 2 else 20
        other[index] = foreign(other[index], numbers, same_id=False)
        check(buffer, 2)


def test_frames_that_are_put_side_by_side_follow_each_other() -> None:
    """A whole episode in the place of another."""
    env = Env(0, 0, longest=30)
    for kind in ("observed", "bare"):
        buffer = ReplayBuffer(storage=LazyTensorStorage(40), sampler=SliceSampler(slice_len=3))
        buffer.extend(seen_as(env.frames(40), kind))
        episode = seen_as(Env(7, 8, longest=9).frames(40), kind)
        episode = episode[episode["collector", "traj_ids"] == episode["collector", "traj_ids"][0]]
        buffer[10 : 10 + len(episode)] = episode
        assert len(episode) > 2
        check(buffer, 2)


def test_frames_with_the_same_observations_are_the_same() -> None:
    """Rewards, returns and priorities are written in place without a change of what follows what, and without a new index."""
    envs = [Env(number, 3, longest=30) for number in range(2)]
    storage = LazyTensorStorage(60)
    writers = [ReplayBuffer(storage=storage) for _ in envs]
    buffer = ReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=3, traj_key=("collector", "traj_ids")))
    for _ in range(5):
        for writer, env in zip(writers, envs, strict=True):
            writer.extend(seen_as(env.frames(5), "bare"))
    check(buffer, 2)
    index: Any = buffer.sampler
    before = calls(lambda: index.updated(storage))
    for place in range(len(buffer)):
        frame = buffer[place].clone()
        buffer[place] = frame.set("reward", frame["reward"] + 1)
    buffer[:] = buffer[:].clone().set("reward", torch.ones(len(buffer)))
    assert calls(lambda: index.updated(storage)) < before + 100
    check(buffer, 2)
    assert buffer.sample(30)["reward"].unique().tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ids_that_are_no_whole_numbers_are_looked_at_again(dtype: torch.dtype) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=SliceSampler(slice_len=2, traj_key="id"))
    buffer.extend(TensorDict({"id": torch.zeros(4, dtype=dtype), "place": torch.arange(4.0)}, [4]))
    assert buffer.sample(100)["place"].unique().tolist() == [0, 1, 2, 3]
    buffer[2:] = TensorDict({"id": torch.ones(2, dtype=dtype), "place": torch.arange(2.0, 4)}, [2])
    pairs = {tuple(pair) for pair in buffer.sample(100)["place"].view(-1, 2).tolist()}
    assert pairs == {(0, 1), (2, 3)}


@pytest.mark.parametrize(
    "kind", [SliceSampler, SliceSamplerWithoutReplacement, lambda **o: PrioritizedSliceSampler(20, 1.0, 1.0, **o)]
)
def test_samples_of_every_sampler(kind: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=kind(slice_len=3), batch_size=3)
    env = Env(0, 0, longest=1_000)
    env.length = 100
    buffer.extend(seen_as(env.frames(20), "observed"))
    buffer.sample()
    buffer[9] = foreign(buffer[9], count(), same_id=True)
    expected = slices_within(frames_of(buffer[:]), 3)
    assert len(expected) == 15
    found = {tuple(frames_of(buffer.sample())) for _ in range(400)}
    assert found == expected == set(slices_indexed_of(buffer))


def slices_indexed_of(buffer: ReplayBuffer) -> Any:
    """What the sampler knows, whichever it is."""
    if isinstance(buffer.sampler, PrioritizedSliceSampler):
        twin = ReplayBuffer(storage=buffer.storage, sampler=SliceSampler(slice_len=3))
        return slices_indexed(twin, 3)
    return slices_indexed(buffer, 3)
