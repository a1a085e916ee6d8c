"""`Transforms`: what changes samples, and what changes what is written."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass
from tensordict.nn import dispatch
from torch import nn

from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyTensorStorage, ListStorage
from reap.errors import OptionError, SpecMismatch


def numbers(*shape: int) -> TensorDict:
    count = torch.Size(shape).numel()
    return TensorDict({"a": torch.arange(count, dtype=torch.float32).view(shape)}, shape)


def doubled(data: Any) -> Any:
    return data.apply(lambda value: value * 2)


class Forward:
    def forward(self, data: Any) -> Any:
        return doubled(data)


class Inverse:
    def inv(self, data: Any) -> Any:
        return doubled(data)


class Both(Forward):
    def inv(self, data: Any) -> Any:
        return data.apply(lambda value: value + 100)


class Module(nn.Module):
    def forward(self, data: Any) -> Any:
        return doubled(data)


def stored_and_sampled(data: TensorDict, ndim: int = 1, **options: Any) -> tuple[list[float], set[float]]:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=ndim), **options)
    buffer.extend(data)
    return buffer[:]["a"].flatten().tolist(), set(buffer.sample(200)["a"].flatten().tolist())


@pytest.mark.parametrize(
    ("transform", "stored", "sampled"),
    [
        (Forward(), [0, 1, 2], {0, 2, 4}),
        (Module(), [0, 1, 2], {0, 2, 4}),
        (Inverse(), [0, 2, 4], {0, 2, 4}),
        (Both(), [100, 101, 102], {200, 202, 204}),
        (doubled, [0, 1, 2], {0, 2, 4}),
    ],
)
def test_a_transform_changes_samples_writes_or_both(transform: Any, stored: list[float], sampled: set[float]) -> None:
    assert stored_and_sampled(numbers(3), transform=transform) == (stored, sampled)


def test_a_function_that_flattens_changes_what_is_written() -> None:
    stored, sampled = stored_and_sampled(numbers(2, 3), transform=lambda data: data.reshape(-1))
    assert (stored, sampled) == ([0, 1, 2, 3, 4, 5], {0, 1, 2, 3, 4, 5})


def test_a_function_that_keeps_the_dimensions_changes_samples() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=doubled)
    buffer.extend(numbers(2, 3))
    assert buffer[:].shape == (2, 3)  # two items of three
    assert buffer[:]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert {tuple(item) for item in buffer.sample(50)["a"].tolist()} == {(0, 2, 4), (6, 8, 10)}


def test_what_the_first_write_decides_holds() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=lambda data: doubled(data.reshape(-1)))
    buffer.extend(numbers(2, 3))
    buffer.extend(numbers(3))
    assert buffer[:]["a"].tolist() == [0, 2, 4, 6, 8, 10, 0, 2, 4]
    assert buffer.sample(300)["a"].max() == 10


def test_flattening_into_two_dimensions() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=2), transform=lambda data: data.flatten(0, 1))
    buffer.extend(numbers(2, 2, 3))
    assert buffer[:].shape == (4, 3)
    assert buffer.sample(5).shape == (5,)


def test_a_write_transform_says_it_outright() -> None:
    assert stored_and_sampled(numbers(3), write_transform=doubled) == ([0, 2, 4], {0, 2, 4})


def test_appended_transforms_come_last() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=Forward(), batch_size=50)
    assert buffer.append_transform(lambda data: data.apply(lambda value: value + 1)) is buffer
    buffer.extend(numbers(3))
    assert set(buffer.sample()["a"].tolist()) == {1, 3, 5}
    buffer.append_transform(doubled)
    assert set(buffer.sample()["a"].tolist()) == {2, 6, 10}


def test_what_is_written_goes_through_the_last_inverse_first() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=Inverse())
    buffer.append_transform(Both())
    buffer.extend(numbers(2))
    assert buffer[:]["a"].tolist() == [200, 202]


@pytest.mark.parametrize("option", ["transform", "write_transform"])
def test_what_cannot_transform_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match=f"^{option}: expected a function, .* got int: 3"):
        ReplayBuffer(**{option: 3})  # pyright: ignore[reportArgumentType]


def test_a_transform_that_raises_leaves_the_buffer_as_it_was() -> None:
    def refuse(data: Any) -> Any:
        raise KeyError("no")

    buffer = ReplayBuffer(storage=LazyTensorStorage(10), write_transform=refuse)
    with pytest.raises(KeyError, match="no"):
        buffer.extend(numbers(3))
    assert (len(buffer), buffer.write_count) == (0, 0)


# ---------------------------------------------------------------------- writing over frames


@pytest.mark.parametrize("options", [{"transform": Inverse()}, {"write_transform": doubled}])
@pytest.mark.parametrize("index", [slice(1, 3), [1, 2], torch.tensor([False, True, True])])
def test_what_is_written_over_frames_goes_through_the_same(options: dict[str, Any], index: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), **options)
    buffer.extend(numbers(3))
    buffer[index] = TensorDict({"a": torch.tensor([10.0, 20.0])}, [2])
    assert buffer[:]["a"].tolist() == [0, 20, 40]
    buffer[0] = TensorDict({"a": torch.tensor(5.0)})
    assert buffer[:]["a"].tolist() == [10, 20, 40]


def test_an_inverse_of_any_kind_of_data() -> None:
    lists = ReplayBuffer(storage=ListStorage(4), write_transform=lambda items: [item * 2 for item in items])
    lists.extend([1, 2, 3])
    lists[1:] = [5, 6]
    lists[0] = 4
    assert lists[:] == [8, 10, 12]
    tensors = ReplayBuffer(storage=LazyTensorStorage(4), write_transform=lambda data: data * 2)
    tensors.extend(torch.arange(3))
    tensors[0] = torch.tensor(7)
    tensors[1:] = torch.tensor([8, 9])
    assert tensors[:].tolist() == [14, 16, 18]


def test_frames_of_rows_that_are_written_over() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2), transform=Inverse())
    buffer.extend(numbers(2, 3))
    buffer[1, 2] = TensorDict({"a": torch.tensor(50.0)})
    buffer[:, :2] = numbers(2, 2)
    assert buffer[:]["a"].tolist() == [[0, 2, 4], [4, 6, 100]]


def test_a_function_that_flattens_does_so_here_too() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=lambda data: doubled(data.reshape(-1)))
    buffer.extend(numbers(2, 3))
    buffer[:4] = numbers(2, 2)
    buffer[5] = TensorDict({"a": torch.tensor(50.0)})
    assert buffer[:]["a"].tolist() == [0, 2, 4, 6, 8, 100]
    samples = ReplayBuffer(storage=LazyTensorStorage(100), transform=doubled)
    samples.extend(numbers(3))
    samples[0] = TensorDict({"a": torch.tensor(9.0)})
    assert samples[:]["a"].tolist() == [9, 1, 2]


def test_data_that_a_transform_makes_unfit_change_nothing() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), write_transform=lambda data: torch.cat([data, data]))
    buffer.extend(numbers(3))
    with pytest.raises(SpecMismatch, match=r"expected data \[2\] for this index, got \[4\]; nothing was changed"):
        buffer[:2] = numbers(2)
    assert buffer[:]["a"].tolist() == [0, 1, 2, 0, 1, 2]


# ---------------------------------------------------------------------- modules of tensordict, as torchrl's transforms are


class Noting(nn.Module):
    """Leaves data as they are, and notes what they were."""

    in_keys = in_keys_inv = ("a",)
    out_keys = out_keys_inv = ("a",)

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Any] = []
        self.written: list[Any] = []

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: Any) -> Any:
        self.read.append(tensordict)
        return tensordict

    @dispatch(source="in_keys_inv", dest="out_keys_inv")
    def inv(self, tensordict: Any) -> Any:
        self.written.append(tensordict)
        return tensordict


@tensorclass
class Point:
    a: torch.Tensor


def test_a_module_of_tensordict_gets_lists_and_dicts_whole() -> None:
    noting, items = Noting(), ["a", "b"]
    buffer = ReplayBuffer(storage=ListStorage(4), transform=noting, batch_size=3)
    buffer.extend(items)
    buffer.add("c")
    assert noting.written == [items, ["c"]]
    sample = buffer.sample()
    assert noting.read == [sample]
    assert set(sample) <= {"a", "b", "c"}
    tensors = ReplayBuffer(storage=LazyTensorStorage(4), transform=Noting(), batch_size=3)
    tensors.extend({"a": torch.arange(2.0)})
    tensors[:1] = {"a": torch.tensor([5.0])}
    noted = tensors.transform[0]
    assert [data["a"].tolist() for data in noted.written] == [[0, 1], [5]]
    assert tensors.sample()["a"].shape == noted.read[0]["a"].shape == (3,)
    assert buffer_of_a_copy(tensors).sample()["a"].shape == (3,)


def buffer_of_a_copy(buffer: ReplayBuffer) -> ReplayBuffer:
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("invert", [False, True])
def test_a_module_of_tensordict_turned_around_gets_lists_too(invert: bool) -> None:
    noting = Noting()
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=2).append_transform(noting, invert=invert)
    buffer.extend(["a", "b"])
    buffer.sample()
    first, second = (noting.read, noting.written) if invert else (noting.written, noting.read)
    assert first == [["a", "b"]]
    assert len(second) == 1


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage])
@pytest.mark.parametrize("item", [TensorDict({"a": torch.ones(2)}, []), Point(a=torch.ones(2), batch_size=[])])
def test_one_item_has_a_dimension_of_time_for_transforms(storage: Any, item: Any) -> None:
    noting = Noting()
    buffer = ReplayBuffer(storage=storage(4), transform=noting, batch_size=3)
    assert buffer.add(item).tolist() in (0, [0])
    assert type(noting.written[0]) is type(item)
    assert noting.written[0].shape == (1,)
    assert buffer[0].shape == ()
    assert buffer.sample()["a" if isinstance(item, TensorDict) else slice(None)].shape[0] == 3


@pytest.mark.parametrize("index", [2, -2, 10])
def test_a_place_that_no_transform_can_have_is_refused(index: int) -> None:
    buffer = ReplayBuffer(transform=Forward())
    with pytest.raises(OptionError, match=f"insert_transform: expected an index from -1 to 1, got {index}"):
        buffer.insert_transform(index, Forward())
    assert len(buffer.insert_transform(-1, Both()).insert_transform(2, Both()).transform) == 3
