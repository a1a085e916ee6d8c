"""`RayReplayBuffer` in a real Ray: the methods of a buffer, from several processes; errors and ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.collectors import SyncDataCollector
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import TensorDictReplayBuffer
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.uniform import RandomSampler
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
from reap.data.writers import ImmutableDatasetWriter
from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from tests.data.unseen import Unseen, WithoutIds, steps_of_slices
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures

ray = pytest.importorskip("ray")

pytestmark = on_ray()


@pytest.fixture(scope="module")
def actor(local_ray: None) -> Iterator[RayReplayBuffer]:  # noqa: F811  the fixture
    """A buffer whose actor is used by one test after the other: one takes seconds to start, because it imports torch."""
    with RayReplayBuffer(remote_config={"num_cpus": 0}) as made:
        yield made


@pytest.fixture
def buffer(actor: RayReplayBuffer) -> RayReplayBuffer:
    """A new buffer of ten frames in that actor."""
    actor._get(actor._actor.build.remote(ReplayBuffer, {"storage": LazyTensorStorage(10), "batch_size": 4}))
    return actor


def frames(*numbers: int) -> TensorDict:
    return TensorDict({"number": torch.tensor(numbers)}, [len(numbers)])


def test_frames_are_written_read_and_sampled(buffer: RayReplayBuffer) -> None:
    assert buffer.extend(frames(0, 1, 2)).tolist() == [0, 1, 2]
    assert buffer.add(frames(3)[0]).tolist() == [3]
    assert (len(buffer), buffer.write_count, buffer.batch_size) == (4, 4, 4)
    assert buffer[1:3]["number"].tolist() == [1, 2]
    buffer[0] = frames(9)[0]
    sample, info = buffer.sample(50, return_info=True)
    assert set(sample["number"].tolist()) == {9, 1, 2, 3}
    assert torch.equal(sample["number"], torch.tensor([9, 1, 2, 3])[info["index"]])
    sample["number"].zero_()  # the caller's own memory
    assert buffer.sample().shape == (4,)
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)


def negated(frames: Any, **_: Any) -> Any:
    return frames.clone().set("number", -frames["number"])


def test_calls_that_follow_from_the_others(buffer: RayReplayBuffer, tmp_path: Path) -> None:
    assert buffer.initialized
    assert not buffer.can_sample()
    buffer.extend(frames(0, 1, 2))
    assert (
        buffer.set_("number", torch.tensor([3, 4, 5])).set_at_("number", torch.tensor(9), 0).update_(frames(9, 8, 7)) is buffer
    )
    assert buffer.read_all_in_order(2)["number"].tolist() == [9, 8]
    buffer.write_all(frames(1))
    buffer.mark_update(torch.tensor([0]))
    assert buffer.stats()["size"] == 3
    sample, ages = buffer.sample(), buffer.stats()
    newest = torch.tensor([2, 1, 0])[[[1, 8, 7].index(number) for number in sample["number"].tolist()]].tolist()
    assert (ages["samples"], ages["sample_age_min"], ages["sample_age_max"]) == (1, min(newest), max(newest))
    assert buffer.next().shape == (4,)
    buffer.set_rng(torch.Generator().manual_seed(0))
    buffer.register_save_hook(negated)
    buffer.dump(tmp_path / "save")
    buffer.register_load_hook(negated)
    buffer.loads(tmp_path / "save")
    assert buffer["number"].tolist() == [1, 8, 7]
    buffer.insert_transform(0, negated).append_transform(negated, invert=True)
    assert buffer.extend(frames(6)).tolist() == [3]
    assert buffer["number"].tolist() == [1, 8, 7, -6]
    assert set(buffer.sample(40)["number"].tolist()) <= {-1, -8, -7, 6}
    with pytest.raises(OptionError, match="update_priority is for a TensorDictReplayBuffer"):
        buffer.extend(frames(6), update_priority=False)


def test_parts_are_set_and_transforms_added(buffer: RayReplayBuffer) -> None:
    buffer.extend(frames(1))
    doubled = buffer.append_transform(lambda data: data.set("double", data["number"] * 2))
    assert doubled is buffer
    assert buffer.sample(2)["double"].tolist() == [2, 2]
    buffer.set_sampler(RandomSampler())
    buffer.set_writer(ImmutableDatasetWriter())
    with pytest.raises(OptionError, match="ImmutableDatasetWriter"):
        buffer.extend(frames(1))
    buffer.set_storage(LazyTensorStorage(3))
    assert len(buffer.share()) == 0


def test_priorities_in_a_buffer_of_another_class() -> None:
    with RayReplayBuffer(
        replay_buffer_cls=TensorDictReplayBuffer,
        storage=partial(LazyTensorStorage, 4),
        sampler=PrioritizedSampler(4, alpha=1.0, beta=1.0, eps=0.0),
    ) as buffer:
        buffer.extend(frames(5, 6))
        buffer.update_priority(torch.tensor([0]), 0.0)
        sample = buffer.sample(8)
        assert sample["number"].tolist() == [6] * 8
        buffer.update_tensordict_priority(sample.set("td_error", torch.full((8,), 2.0)))
        assert sample["index"].tolist() == [1] * 8


def test_iteration(buffer: RayReplayBuffer) -> None:
    buffer.extend(frames(1))
    first, second = iter(buffer), iter(buffer)
    assert [next(one)["number"].tolist() for one in (first, second, first)] == [[1] * 4] * 3


def test_files_in_the_actor(tmp_path: Path) -> None:
    with RayReplayBuffer(storage=partial(LazyMemmapStorage, 4, scratch_dir=tmp_path / "scratch")) as buffer:
        buffer.extend(frames(1, 2))
        assert (tmp_path / "scratch" / "number.memmap").stat().st_size == 4 * 8
        buffer.dumps(tmp_path / "saved")
    with RayReplayBuffer(storage=LazyTensorStorage(4)) as twin:
        twin.loads(tmp_path / "saved")
        assert twin[:]["number"].tolist() == [1, 2]
        state = twin.state_dict()
        twin.empty()
        twin.load_state_dict(state)
        assert len(twin) == 2


def test_errors_are_those_of_the_buffer(buffer: RayReplayBuffer) -> None:
    with pytest.raises(CallOrderError, match="found it empty"):
        buffer.sample()
    buffer.extend(frames(1))
    with pytest.raises(SpecMismatch, match="missing"):
        buffer.extend(TensorDict({"other": torch.zeros(1)}, [1]))
    with pytest.raises(OptionError, match="batch_size: expected a positive integer"):
        RayReplayBuffer(batch_size=0)
    assert len(buffer) == 1


def test_actors_and_tasks_have_the_same_buffer(buffer: RayReplayBuffer) -> None:
    class Writer:
        def __init__(self, target: RayReplayBuffer) -> None:
            self.target = target

        def write(self, number: int) -> int:
            self.target.extend(frames(number, number))
            return len(self.target)

    @ray.remote(num_cpus=0)
    def length(target: RayReplayBuffer) -> int:
        return len(target)

    writers = [ray.remote(Writer).options(num_cpus=0).remote(buffer) for _ in range(2)]
    ray.get([writer.write.remote(number) for number, writer in enumerate(writers)])
    assert sorted(buffer[:]["number"].tolist()) == [0, 0, 1, 1]
    assert ray.get(length.remote(buffer)) == 4


def test_a_process_that_ray_did_not_start_has_it_too(buffer: RayReplayBuffer) -> None:
    program = """
import pickle, sys, torch, warnings
warnings.simplefilter("ignore")
from tensordict import TensorDict
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
buffer.extend(TensorDict({"number": torch.tensor([7])}, [1]))
import ray
ray.shutdown()
"""
    # With the environment of this moment: Ray has put a token into it.
    command = [sys.executable, "-c", program, pickle.dumps(buffer).hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert buffer[:]["number"].tolist() == [7]


def test_after_close_nothing_works() -> None:
    buffer = RayReplayBuffer(storage=LazyTensorStorage(4))
    sent = pickle.dumps(buffer)
    twin = pickle.loads(sent)
    assert repr(twin) == repr(buffer)
    buffer.close()
    buffer.shutdown()
    assert repr(buffer) == "RayReplayBuffer(closed)"
    calls: list[Any] = [lambda: len(buffer), lambda: buffer.sample(1), lambda: buffer.write_count, lambda: pickle.dumps(buffer)]
    for call in calls:
        with pytest.raises(ClosedError, match="this one was closed"):
            call()
    with pytest.raises(ClosedError, match="has ended, and its frames with it"):
        len(twin)


def test_an_actor_that_is_killed_is_named() -> None:
    buffer = RayReplayBuffer(storage=LazyTensorStorage(4))
    buffer.append_transform(lambda data: data.set("pid", torch.full((len(data),), os.getpid())))
    buffer.extend(frames(1))
    os.kill(int(buffer.sample(1)["pid"]), signal.SIGKILL)
    with pytest.raises(ClosedError, match="the actor that holds the buffer has ended"):
        buffer.sample(1)
    buffer.close()


@pytest.mark.parametrize("lost", ["a batch", "a load"])
def test_no_slice_runs_across_what_is_lost(lost: str) -> None:
    options: Any = {"storage": LazyTensorStorage(40), "sampler": SliceSampler(slice_len=2)}
    with RayReplayBuffer(**options, remote_config={"num_cpus": 0}) as buffer:
        postproc = WithoutIds(failing=1 if lost == "a batch" else -1)
        collector = SyncDataCollector(Unseen(), frames_per_batch=3, postproc=postproc, replay_buffer=buffer)
        collector.next()
        if lost == "a batch":
            with pytest.raises(LookupError):
                collector.next()
        else:
            collector.load_state_dict(collector.state_dict())
        collector.next()
        assert buffer[:]["next", "reward"].flatten().tolist() == [0, 1, 2, 0, 1, 2]
        assert steps_of_slices(buffer, 2) == {(0, 1), (1, 2)}


def test_trajectories_are_broken_by_hand(buffer: RayReplayBuffer) -> None:
    buffer.set_sampler(SliceSampler(slice_len=2))
    for _ in range(2):
        buffer.extend(TensorDict({"next": {"done": torch.zeros(2, 1, dtype=torch.bool)}}, [2]))
        buffer.break_trajectories()
    firsts = buffer.sample(400, return_info=True)[1]["index"].view(-1, 2)[:, 0]
    assert set(firsts.tolist()) == {0, 2}


def test_an_actor_that_ended_does_not_hide_what_failed() -> None:
    buffer = RayReplayBuffer(storage=LazyTensorStorage(4), remote_config={"num_cpus": 0})

    def failing(batch: Any) -> Any:
        buffer.close()
        raise LookupError("no such key")

    collector = SyncDataCollector(Unseen(), frames_per_batch=3, postproc=failing, replay_buffer=buffer)
    with pytest.raises(LookupError, match="no such key") as caught:
        collector.next()
    assert "could not record that a batch was lost: ClosedError" in caught.value.__notes__[0]
