"""`ListStorage`: items of any kind in the ring, and what a sample of them is."""

from __future__ import annotations

import copy
import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import ListStorage
from reap.data.storages.lists import collated
from reap.data.writers import TensorDictRoundRobinWriter
from reap.errors import CallOrderError, OptionError, SpecMismatch


@tensorclass
class Point:
    x: torch.Tensor


def buffer_of(*items: Any, max_size: int = 4, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=ListStorage(max_size), **options)
    buffer.extend(list(items))
    return buffer


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_objects_of_any_kind_come_back_as_they_are() -> None:
    thing = object()
    buffer = buffer_of("a", 1, thing, None)
    assert buffer[:] == ["a", 1, thing, None]
    assert len(buffer) == buffer.write_count == 4


def test_the_oldest_are_overwritten() -> None:
    buffer = buffer_of("a", "b", "c")
    assert buffer.extend(["d", "e"]).tolist() == [3, 0]
    assert buffer[:] == ["e", "b", "c", "d"]
    assert (len(buffer), buffer.write_count) == (4, 5)


def test_more_than_there_is_room_for_keeps_the_last() -> None:
    buffer = buffer_of(*range(11))
    assert sorted(buffer[:]) == [7, 8, 9, 10]
    assert buffer.write_count == 11
    assert buffer[:][3] == 10


def test_one_item_at_a_time() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=ListStorage(3))
    assert buffer.add([1, 2]).tolist() == [0]
    buffer.add({"a": 1})
    assert buffer[:] == [[1, 2], {"a": 1}]


def test_rows_of_a_tensor_and_of_a_tensordict_are_items() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=ListStorage(5))
    buffer.extend(torch.arange(4).view(2, 2))
    buffer.extend(TensorDict({"a": torch.arange(2)}, [2]))
    buffer.extend(np.array([7]))
    assert [item.tolist() for item in buffer[:2]] == [[0, 1], [2, 3]]
    assert buffer[3]["a"].item() == 1
    assert buffer[4] == 7


@pytest.mark.parametrize("data", [range(3), deque(range(3)), (0, "b", 2), np.arange(3)])
def test_any_sequence_is_a_list_of_items(data: Any) -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=ListStorage(5))
    buffer.extend(data)
    assert buffer[:] == [*data]
    storage = ListStorage(5)
    storage.set(range(3), data)
    assert [storage[place] for place in range(3)] == [*data]


@pytest.mark.parametrize("data", [5, "word", b"word", {"a": 1}, torch.tensor(1.0)])
def test_what_is_no_list_of_items_is_refused(data: Any) -> None:
    buffer = buffer_of("a")
    with pytest.raises(SpecMismatch, match="expected a list of items"):
        buffer.extend(data)
    assert buffer[:] == ["a"]


def test_index_kinds() -> None:
    buffer = buffer_of("a", "b", "c")
    assert buffer[1] == "b"
    assert buffer[-1] == "c"
    assert buffer[1:] == ["b", "c"]
    assert buffer[torch.tensor([2, 0])] == ["c", "a"]
    assert buffer[[2, 0]] == ["c", "a"]
    assert buffer[np.array([1, 1])] == ["b", "b"]
    assert buffer[torch.tensor([True, False, True])] == ["a", "c"]
    assert buffer[...] == ["a", "b", "c"]
    with pytest.raises(IndexError):
        buffer[3]


def test_writing_over_items() -> None:
    buffer = buffer_of("a", "b", "c")
    buffer[0] = ["x"]
    buffer[1:] = ["y", "z"]
    assert buffer[:] == [["x"], "y", "z"]
    with pytest.raises(SpecMismatch, match="expected 2 items for this index, got 3"):
        buffer[:2] = [1, 2, 3]
    assert buffer[:] == [["x"], "y", "z"]


def test_samples_hold_each_item_as_often_as_chance_has_it() -> None:
    buffer = buffer_of("a", "b", "c", batch_size=3, generator=seeded())
    sample, info = buffer.sample(return_info=True)
    assert sample == [buffer[place] for place in info["index"].tolist()]
    assert set(buffer.sample(200)) == {"a", "b", "c"}


def test_tensors_of_one_shape_are_stacked() -> None:
    buffer = buffer_of(torch.tensor([0, 1]), torch.tensor([2, 3]))
    sample = buffer.sample(5)
    assert sample.shape == (5, 2)
    assert {tuple(row.tolist()) for row in sample} <= {(0, 1), (2, 3)}
    sample.zero_()
    assert buffer[:].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(2, dtype=torch.int64), "a"])
def test_tensors_that_differ_stay_a_list(other: Any) -> None:
    items = [torch.zeros(2), other]
    assert collated(items) is items
    assert collated([]) == []


def test_tensordicts_are_stacked_and_lazily_where_entries_differ() -> None:
    dense = collated([TensorDict({"a": torch.tensor(number)}) for number in (1, 2)])
    assert type(dense) is TensorDict
    assert dense["a"].tolist() == [1, 2]
    ragged = [TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)})]
    assert isinstance(collated(ragged), LazyStackedTensorDict)
    assert collated(ragged).batch_size == (2,)
    assert collated(ragged)[1]["a"].shape == (3,)
    keys = [TensorDict({"a": torch.zeros(2)}), TensorDict({"b": torch.zeros(2)})]
    assert isinstance(collated(keys), LazyStackedTensorDict)
    lengths = [TensorDict({}, [2]), TensorDict({}, [3])]
    assert collated(lengths) is lengths


def test_tensorclasses_are_stacked() -> None:
    stacked = collated([Point(x=torch.tensor(1), batch_size=[]), Point(x=torch.tensor(2), batch_size=[])])
    assert isinstance(stacked, Point)
    assert stacked.x.tolist() == [1, 2]


def test_collate_fn_gets_the_list() -> None:
    given = []
    buffer = buffer_of(torch.zeros(1), torch.ones(1), collate_fn=lambda items: given.append(items) or "made")
    assert buffer.sample(2) == "made"
    assert [type(items) for items in given] == [list]
    assert len(given[0]) == 2


def test_trajectories_of_different_lengths() -> None:
    episodes = [TensorDict({"a": torch.full((length,), length)}, [length]) for length in (2, 5)]
    buffer = buffer_of(*episodes, collate_fn=lambda items: torch.cat([item["a"] for item in items]), generator=seeded())
    assert set(buffer.sample(20).tolist()) == {2, 5}


def test_tensors_are_copied_when_they_are_written() -> None:
    value, data = torch.zeros(2, requires_grad=True), TensorDict({"a": torch.zeros(2)}, [2])
    buffer = buffer_of(value)
    buffer.extend(data)
    data["a"] += 1
    with torch.no_grad():
        value += 1
    assert buffer[0].tolist() == [0, 0]
    assert not buffer[0].requires_grad
    assert [item["a"].item() for item in buffer[1:]] == [0, 0]


def test_index_in_the_samples() -> None:
    buffer = buffer_of(
        TensorDict({"a": torch.tensor(5)}), TensorDict({"a": torch.tensor(6)}), writer=TensorDictRoundRobinWriter()
    )
    sample = buffer.sample(8)
    assert sample["a"].tolist() == (sample["index"] + 5).tolist()


def test_transforms_see_items() -> None:
    buffer: ReplayBuffer = ReplayBuffer(
        storage=ListStorage(4), write_transform=lambda items: [item * 2 for item in items], transform=sorted
    )
    buffer.extend([3, 1])
    assert buffer[:] == [6, 2]
    assert {tuple(buffer.sample(2)) for _ in range(50)} == {(2, 2), (2, 6), (6, 6)}


def test_empty() -> None:
    buffer = buffer_of("a", "b")
    buffer.empty()
    assert (len(buffer), buffer[:], buffer.write_count) == (0, [], 0)
    with pytest.raises(CallOrderError, match="found it empty"):
        buffer.sample(1)
    buffer.extend(["c"])
    assert buffer[:] == ["c"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_is_independent(copied: Any) -> None:
    buffer = buffer_of("a", torch.zeros(1))
    twin = copied(buffer)
    twin.extend(["c"])
    twin[1] = "other"
    assert (buffer[0], buffer[1].tolist(), len(buffer)) == ("a", [0.0], 2)
    assert twin[:] == ["a", "other", "c"]


def test_options_that_cannot_work() -> None:
    with pytest.raises(OptionError, match="expected ndim=1, got 2"):
        ListStorage(4, ndim=2)
    with pytest.raises(OptionError, match="max_size: expected a positive integer, got 0"):
        ListStorage(0)
    with pytest.raises(OptionError, match="a ListStorage cannot be shared between processes; use a LazyTensorStorage"):
        ReplayBuffer(storage=ListStorage(4), shared=True)
    with pytest.raises(OptionError):
        ListStorage(4).leaf(("a",))
    assert repr(ListStorage(4)) == "ListStorage(max_size=4)"
