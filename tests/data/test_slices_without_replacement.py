"""`SliceSamplerWithoutReplacement`: epochs, what ends them, and what is written meanwhile."""

from __future__ import annotations

import pickle
from itertools import chain
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError


def episodes(lengths: list[int], first: int = 0) -> TensorDict:
    """Episodes of these lengths, numbered from `first` on."""
    rows = [(first + number, step) for number, length in enumerate(lengths) for step in range(length)]
    table = torch.tensor(rows)
    return TensorDict({"episode": table[:, 0], "step": table[:, 1]}, [len(rows)])


def sliced(lengths: list[int], batch_size: int, capacity: int = 200, **options: Any) -> ReplayBuffer:
    options = {"slice_len": 3, **options}
    sampler = SliceSamplerWithoutReplacement(**options)
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=batch_size)
    buffer.extend(episodes(lengths))
    return buffer


def drawn(data: TensorDict) -> list[int]:
    """The episode of each slice of three frames."""
    assert (data["step"].view(-1, 3).diff(dim=1) == 1).all()
    return data["episode"].view(-1, 3)[:, 0].tolist()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_trajectory_once_in_an_epoch(prefetch: int) -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), sampler=sampler, batch_size=9, prefetch=prefetch)
    buffer.extend(episodes([3, 5, 2, 9, 4, 3, 3, 1, 30]))
    for _ in range(3):
        samples = [drawn(data) for data in buffer]
        assert [len(sample) for sample in samples] == [3, 3, 1]
        assert sorted(chain.from_iterable(samples)) == [0, 1, 3, 4, 5, 6, 8]
    buffer.empty()


def test_in_the_order_of_writing_without_shuffle() -> None:
    buffer = sliced([3, 5, 2, 9, 4], batch_size=6, shuffle=False)
    assert [drawn(data) for data in buffer] == [[0, 1], [3, 4]]


def test_all_starts_of_a_trajectory_come() -> None:
    buffer = sliced([5], batch_size=3)
    assert {int(buffer.sample()["step"][0]) for _ in range(60)} == {0, 1, 2}


def test_drop_last_leaves_out_what_makes_no_whole_sample() -> None:
    buffer = sliced([3] * 7, batch_size=9, drop_last=True)
    for _ in range(2):
        samples = [drawn(data) for data in buffer]
        assert [len(sample) for sample in samples] == [3, 3]
        assert len(set(chain.from_iterable(samples))) == 6
    with pytest.raises(CallOrderError, match=r"at least 3 trajectories.*found 2 that are long enough"):
        sliced([3, 2, 3], batch_size=9, drop_last=True).sample()


def test_what_is_written_meanwhile_comes_in_the_next_epoch_and_what_is_overwritten_does_not() -> None:
    buffer = sliced([3] * 6, batch_size=6, capacity=18, shuffle=False)
    assert drawn(buffer.sample()) == [0, 1]
    buffer.extend(episodes([3, 4], first=6))  # the frames of 0, 1 and one of 2 are gone
    assert drawn(buffer.sample()) == [3, 4]
    assert drawn(buffer.sample()) == [5]
    assert buffer.sampler.ran_out
    assert drawn(buffer.sample()) == [3, 4]


def test_another_length_of_slices_begins_a_new_epoch() -> None:
    buffer = sliced([4] * 4, batch_size=6, slice_len=None, num_slices=2, shuffle=False)
    assert drawn(buffer.sample()) == [0, 1]
    assert buffer.sample(8)["episode"].view(2, 4)[:, 0].tolist() == [0, 1]
    assert buffer.sample(8)["episode"].view(2, 4)[:, 0].tolist() == [2, 3]


def test_a_buffer_that_was_loaded_goes_on_with_the_epoch() -> None:
    buffer = sliced([3, 4, 5, 6, 7, 8, 9], batch_size=6)
    buffer.sample()
    loaded = sliced([3], batch_size=6)
    loaded.load_state_dict(buffer.state_dict())
    for index in range(10):
        if index == 5:
            for each in (buffer, loaded):
                each.extend(episodes([5] * 34, first=20))
        torch.manual_seed(index)
        sample = buffer.sample()
        torch.manual_seed(index)
        assert (loaded.sample() == sample).all()
        assert loaded.sampler.ran_out == buffer.sampler.ran_out


def test_frames_overwritten_while_they_are_taken() -> None:
    """A draw whose frames are written over is made again: in the same trajectories as far as they are there."""
    buffer = sliced([3] * 6, batch_size=9, capacity=18, shuffle=False)
    storage, sampler = buffer.storage, buffer.sampler
    draw = sampler.draw(storage, 9, None)
    reading = storage.ring.begin_reading()
    buffer.extend(episodes([4], first=6))
    bad = storage.ring.touched(draw.places.numpy() % 18, reading)
    again = sampler.redraw(draw, bad, storage, None)
    assert again.places.tolist() == [6, 7, 8]
    assert drawn(buffer.sample()) == [3, 4, 5]


def test_no_choice_over_frames() -> None:
    with pytest.raises(OptionError, match="expected no uniform_over"):
        SliceSamplerWithoutReplacement(slice_len=3, uniform_over="frames")


def test_an_edit_changes_nothing_in_the_turn_of_other_trajectories() -> None:
    def made() -> ReplayBuffer:
        sampler = SliceSamplerWithoutReplacement(slice_len=2, shuffle=False)
        buffer = ReplayBuffer(storage=LazyTensorStorage(14), sampler=sampler, batch_size=2)
        buffer.extend(TensorDict({"episode": torch.arange(12) // 2, "place": torch.arange(12)}, [12]))
        return buffer

    def episodes(buffer: ReplayBuffer, count: int) -> list[int]:
        return [int(buffer.sample()["episode"][0]) for _ in range(count)]

    buffer = made()
    assert episodes(buffer, 2) == [0, 1]
    buffer[9] = buffer[9].clone()
    assert episodes(buffer, 4) == [2, 3, 4, 5]
    assert episodes(buffer, 6) == [0, 1, 2, 3, 4, 5]
    buffer = made()
    assert episodes(buffer, 2) == [0, 1]
    buffer[6] = TensorDict({"episode": torch.tensor(9), "place": torch.tensor(6)}, [])
    assert episodes(buffer, 3) == [2, 4, 5], "of 3 one frame is left; what is new waits for the next epoch"


@pytest.mark.parametrize("what", ["sampler", "buffer"])
def test_a_copy_goes_on_in_the_middle_of_the_epoch(what: str) -> None:
    """Also where trajectories consist of several pieces, were made longer, or overwritten in part since."""
    buffer = sliced([6] * 9, 6, capacity=60, shuffle=False)
    assert drawn(buffer.sample()) == [0, 1]
    if what == "sampler":
        buffer.set_sampler(pickle.loads(pickle.dumps(buffer.sampler)))
    else:
        buffer = pickle.loads(pickle.dumps(buffer))
    assert drawn(buffer.sample()) == [2, 3]
    copied = pickle.dumps(buffer.sampler)
    buffer.extend(episodes([4] * 8, first=20))  # 54 + 32 frames: those before frame 26 are gone, episode 4 keeps 4 of 6
    buffer.set_sampler(pickle.loads(copied))
    assert [drawn(data) for data in buffer] == [[4, 5], [6, 7], [8]]


def test_a_copy_goes_on_with_trajectories_of_several_writers() -> None:
    storage = LazyTensorStorage(60)
    writers = [ReplayBuffer(storage=storage) for _ in range(2)]
    sampler = SliceSamplerWithoutReplacement(slice_len=3, traj_key="episode", shuffle=False)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=3)
    for step in range(6):
        for number, writer in enumerate(writers):
            writer.extend(TensorDict({"episode": torch.tensor([number]), "step": torch.tensor([step])}, [1]))
    assert drawn(buffer.sample()) == [0]
    buffer.set_sampler(pickle.loads(pickle.dumps(sampler)))
    assert [drawn(data) for data in buffer] == [[1]]


def test_a_copy_starts_an_epoch_in_another_buffer() -> None:
    one, other = sliced([3] * 4, 3, shuffle=False), sliced([3] * 4, 3, shuffle=False)
    one.sample()
    other.set_sampler(pickle.loads(pickle.dumps(one.sampler)))
    assert [drawn(data) for data in other] == [[0], [1], [2], [3]]
    assert [drawn(data) for data in one] == [[1], [2], [3]]


def test_a_copy_made_after_an_epoch_starts_the_next() -> None:
    buffer = sliced([3] * 4, 12, shuffle=False)
    assert [drawn(data) for data in buffer] == [[0, 1, 2, 3]]
    buffer.set_sampler(pickle.loads(pickle.dumps(buffer.sampler)))
    assert [drawn(data) for data in buffer] == [[0, 1, 2, 3]]
