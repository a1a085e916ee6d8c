"""Writers: where new items go, and what their data know of it."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.storages import LazyTensorStorage, ListStorage
from reap.data.writers import ImmutableDatasetWriter, RoundRobinWriter, TensorDictRoundRobinWriter
from reap.errors import OptionError, SpecMismatch


@tensorclass
class Scored:
    score: torch.Tensor


def scored(*values: float) -> TensorDict:
    return TensorDict({"score": torch.tensor(values, dtype=torch.float32), "number": torch.arange(len(values))}, [len(values)])


def best(max_size: int = 3, rank_key: Any = "score", **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(max_size), writer=TensorDictMaxValueWriter(rank_key, **options))


def kept(buffer: ReplayBuffer) -> list[float]:
    return buffer[:]["score"].tolist()


# Round robin, and none


def test_samples_know_where_their_frames_lie() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(4), writer=TensorDictRoundRobinWriter(), batch_size=8)
    data = scored(5, 6, 7)
    buffer.extend(data)
    sample, info = buffer.sample(return_info=True)
    assert torch.equal(sample["index"], info["index"])
    assert torch.equal(sample["number"], sample["index"])
    assert "index" not in data.keys()


def test_index_of_several_dimensions() -> None:
    storage = LazyTensorStorage(6, ndim=2)
    buffer: ReplayBuffer = ReplayBuffer(storage=storage, writer=TensorDictRoundRobinWriter())
    buffer.extend(TensorDict({"place": torch.arange(6).view(2, 3)}, [2, 3]))
    sample = buffer.sample(9)
    assert sample["index"].shape == (9, 2)
    assert torch.equal(sample["index"] @ torch.tensor([3, 1]), sample["place"])


def test_a_round_robin_writer_adds_nothing() -> None:
    buffer: ReplayBuffer = ReplayBuffer(writer=RoundRobinWriter())
    buffer.extend(scored(1))
    assert set(buffer.sample(1).keys()) == {"score", "number"}


def test_data_that_must_not_change() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(scored(1, 2))
    buffer.set_writer(ImmutableDatasetWriter())
    for write in (lambda: buffer.extend(scored(3)), lambda: buffer.add(scored(3)[0])):
        with pytest.raises(OptionError, match="ImmutableDatasetWriter, which writes nothing"):
            write()
    assert kept(buffer) == [1, 2]
    assert len(buffer.sample(3)) == 3
    buffer.set_writer(TensorDictRoundRobinWriter())
    buffer.extend(scored(3))
    assert kept(buffer) == [1, 2, 3]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (RoundRobinWriter, "RoundRobinWriter()"),
        (TensorDictRoundRobinWriter(), "TensorDictRoundRobinWriter()"),
        (ImmutableDatasetWriter, "ImmutableDatasetWriter()"),
    ],
)
def test_writers_are_given_or_made(made: Any, expected: str) -> None:
    buffer: ReplayBuffer = ReplayBuffer(writer=made)
    assert repr(buffer.writer) == expected
    with pytest.raises(OptionError, match="writer: expected a Writer of reap.data, got int"):
        buffer.set_writer(3)  # pyright: ignore[reportArgumentType]


# Greatest values


def test_the_greatest_values_are_kept() -> None:
    buffer = best(4)
    assert buffer.extend(scored(5, 1, 3)).tolist() == [0, 1, 2]
    assert buffer.extend(scored(2, 9, 0, 4)).tolist() == [-1, 1, -1, 3]
    assert kept(buffer) == [5, 9, 3, 4]
    assert (len(buffer), buffer.write_count) == (4, 6)
    assert buffer.extend(scored(0, 0)).tolist() == [-1, -1]
    assert buffer.extend(scored(4, 4)).tolist() == [2, -1]
    assert kept(buffer) == [5, 9, 4, 4]
    assert buffer.write_count == 7


def test_other_entries_come_with_the_value() -> None:
    buffer = best(2)
    buffer.extend(scored(1, 5, 3))
    assert sorted(zip(kept(buffer), buffer[:]["number"].tolist(), strict=True)) == [(3.0, 2), (5.0, 1)]


def test_one_item_at_a_time() -> None:
    buffer = best(2)
    assert [buffer.add(scored(value)[0]).tolist() for value in (3, 5, 4, 1)] == [[0], [1], [0], [-1]]
    assert kept(buffer) == [4, 5]


def test_any_order_of_writes_against_a_sorted_list() -> None:
    numbers = random.Random(0)
    for _ in range(50):
        size = numbers.randint(1, 6)
        buffer, seen = best(size), []
        for _ in range(numbers.randint(1, 6)):
            values = [float(numbers.randint(0, 9)) for _ in range(numbers.randint(1, 9))]
            places = buffer.extend(scored(*values)).tolist()
            seen += values
            assert sorted(kept(buffer)) == sorted(seen)[-size:]
            assert [kept(buffer)[place] for place in places if place >= 0] == [
                value for value, place in zip(values, places, strict=True) if place >= 0
            ]


REDUCED = {"sum": [0, 2], "max": [0, 2], "min": [1, 2], "mean": [0, 2], "median": [1, 2]}


@pytest.mark.parametrize("reduction", REDUCED)
def test_reductions(reduction: str) -> None:
    rows = torch.tensor([[1.0, 9, 5, -1], [4, 4, 4, 0], [3, 7, 6, 0]])  # sums 14, 12, 16; medians 1, 4, 3
    buffer = best(2, rank_key=("next", "reward"), reduction=reduction)
    buffer.extend(TensorDict({"next": {"reward": rows}, "number": torch.arange(3)}, [3]))
    assert set(buffer[:]["number"].tolist()) == set(REDUCED[reduction])


def test_values_are_rewards_unless_told() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(1), writer=TensorDictMaxValueWriter())
    buffer.extend(TensorDict({"next": {"reward": torch.tensor([[1.0], [3.0], [2.0]])}}, [3]))
    assert buffer[:]["next", "reward"].tolist() == [[3.0]]


def test_trajectories_are_ranked_as_a_whole() -> None:
    buffer = best(1)
    buffer.extend(TensorDict({"score": torch.tensor([[9, 0, 0], [4, 4, 4]])}, [2, 3]))
    assert buffer[:]["score"].tolist() == [[4, 4, 4]]
    assert buffer.sample(2).shape == (2, 3)


def test_large_integers_are_compared_exactly() -> None:
    buffer = best(1)
    buffer.extend(TensorDict({"score": torch.tensor([2**60, 2**60 + 1])}, [2]))
    assert buffer[0]["score"] == 2**60 + 1


def test_tensorclasses_and_items_in_lists() -> None:
    buffer = best(1)
    buffer.extend(Scored(score=torch.tensor([1.0, 2.0]), batch_size=[2]))
    assert buffer[0].score == 2
    listed: ReplayBuffer = ReplayBuffer(storage=ListStorage(2), writer=TensorDictMaxValueWriter("score"))
    listed.extend([TensorDict({"score": torch.ones(length)}, [length]) for length in (3, 1, 2, 4)])
    assert sorted(len(item) for item in listed[:]) == [3, 4]
    assert listed.extend(scored(9, 1)).tolist() == [0, -1]
    with pytest.raises(SpecMismatch, match="expects data to be a tensor collection, whose entries can be ranked, got 'word'"):
        listed.extend(["word"])


def test_values_written_by_others_count() -> None:
    buffer = best(2)
    buffer.extend(scored(5, 6))
    buffer[0] = scored(1)[0]
    assert buffer.extend(scored(2)).tolist() == [0]
    assert kept(buffer) == [2, 6]
    buffer.set_writer(TensorDictMaxValueWriter("score"))
    assert buffer.extend(scored(3)).tolist() == [0]
    assert kept(buffer) == [3, 6]


def test_a_write_that_was_broken_off_has_no_value() -> None:
    buffer = best(4)
    buffer.extend(scored(1))
    buffer.storage.ring.give_up(buffer.storage.ring.claim(1))
    assert buffer.extend(scored(5, 4)).tolist() == [2, 3]
    assert buffer.extend(scored(2, 9)).tolist() == [-1, 0]
    assert kept(buffer) == [9, 5, 4]
    buffer.set_writer(TensorDictMaxValueWriter("score"))
    assert buffer.extend(scored(3, 6)).tolist() == [-1, 3]
    assert kept(buffer) == [9, 5, 6]


def test_after_empty_everything_is_new() -> None:
    buffer = best(2)
    buffer.extend(scored(5, 6))
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)
    assert buffer.extend(scored(1, 2, 0)).tolist() == [0, 1, -1]
    assert kept(buffer) == [1, 2]


def test_a_refused_write_changes_nothing() -> None:
    buffer = best(2)
    buffer.extend(scored(5, 6))
    with pytest.raises(SpecMismatch, match="NaN under 'score'"):
        buffer.extend(scored(7, float("nan")))
    with pytest.raises(SpecMismatch, match="with the rank_key 'score', got the keys \\['other'\\]"):
        buffer.extend(TensorDict({"other": torch.zeros(1)}, [1]))
    with pytest.raises(SpecMismatch, match="missing"):
        buffer.extend(TensorDict({"score": torch.ones(1) * 9}, [1]))
    assert kept(buffer) == [5, 6]
    assert buffer.extend(scored(5.5)).tolist() == [0]
    assert kept(buffer) == [5.5, 6]


def test_each_item_is_a_stream_of_its_own() -> None:
    buffer = best(4)
    buffer.extend(scored(1, 2, 3))
    buffer.extend(scored(4, 5))
    streams = buffer.storage.control.origins >> 1
    assert len(set(streams.tolist())) == 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_goes_on_by_itself(copied: Any) -> None:
    buffer = best(2)
    buffer.extend(scored(5, 6))
    twin = copied(buffer)
    assert twin.extend(scored(7)).tolist() == [0]
    assert kept(buffer) == [5, 6]
    assert buffer.extend(scored(5.5)).tolist() == [0]


def test_storages_that_cannot_be_ranked() -> None:
    with pytest.raises(OptionError, match="expected a storage with ndim=1, got ndim=2"):
        ReplayBuffer(storage=LazyTensorStorage(4, ndim=2), writer=TensorDictMaxValueWriter())
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(4, ndim=2))
    with pytest.raises(OptionError, match="expected a storage with ndim=1, got ndim=2"):
        buffer.set_writer(TensorDictMaxValueWriter())
    assert isinstance(buffer.writer, RoundRobinWriter)
    ranked = best()
    with pytest.raises(OptionError, match="expected a storage with ndim=1, got ndim=2"):
        ranked.set_storage(LazyTensorStorage(4, ndim=2))
    assert ranked.storage.ndim == 1
    ranked.extend(scored(1))
    ranked.share()
    with pytest.raises(OptionError, match="expected a buffer of one process, got a shared one"):
        ranked.extend(scored(2))
    with pytest.raises(OptionError, match="reduction: expected one of 'sum', 'max', 'min', 'mean', 'median', got 'most'"):
        TensorDictMaxValueWriter(reduction="most")
    assert repr(TensorDictMaxValueWriter("score")) == "TensorDictMaxValueWriter(rank_key='score', reduction='sum')"


def test_frames_and_places_are_those_of_torchrl() -> None:
    replay_buffers = pytest.importorskip("torchrl.data")
    theirs = replay_buffers.TensorDictReplayBuffer(
        storage=replay_buffers.LazyTensorStorage(5), writer=replay_buffers.TensorDictMaxValueWriter(rank_key="score")
    )
    ours, numbers = best(5), random.Random(1)
    for _ in range(12):
        data: TensorDictBase = scored(*(float(value) for value in numbers.sample(range(1000), 3)))
        assert sorted(ours.extend(data).tolist()) == sorted(theirs.extend(data.clone()).tolist())
        assert sorted(kept(ours)) == sorted(theirs[:]["score"].tolist())
        assert ours.write_count == theirs.write_count
