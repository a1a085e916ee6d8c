"""Dicts, tuples and lists of tensors in buffers: taken apart, stored leaf by leaf, and returned in their form."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torch import Tensor

from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.uniform import SamplerWithoutReplacement
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from reap.errors import SpecMismatch

TENSORS = {"RAM": LazyTensorStorage, "files": LazyMemmapStorage}
STORAGES = {**TENSORS, "list": ListStorage}

every = pytest.mark.parametrize("storage", STORAGES)
tensors = pytest.mark.parametrize("storage", TENSORS)


class Step(NamedTuple):
    obs: Any
    reward: Any


def x(n: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + n)


def y(n: int, start: int = 0) -> Tensor:
    return torch.arange(2.0 * start, 2.0 * (start + n)).view(n, 2)


FORMS: dict[str, Any] = {
    "tuple": lambda n, start=0: (x(n, start), y(n, start)),
    "dict": lambda n, start=0: {"x": x(n, start), "y": y(n, start)},
    "named tuple": lambda n, start=0: Step(x(n, start), {"y": y(n, start)}),
    "nested": lambda n, start=0: {"a": [x(n, start), (y(n, start), {"b": x(n, start) > 1})], "c": ({0: y(n, start)},)},
}
forms = pytest.mark.parametrize("form", FORMS)


def shape_of(data: Any) -> Any:
    """The containers of data, with shapes and dtypes for the tensors."""
    if isinstance(data, Tensor):
        return tuple(data.shape), data.dtype
    if isinstance(data, dict):
        return {name: shape_of(value) for name, value in data.items()}
    assert type(data) in {tuple, list, Step}
    return type(data), [shape_of(value) for value in data]


def leaves(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    parts = data.values() if isinstance(data, dict) else data
    return [leaf for part in parts for leaf in leaves(part)]


def equal(one: Any, other: Any) -> bool:
    return shape_of(one) == shape_of(other) and all(map(torch.equal, leaves(one), leaves(other)))


def item_of(data: Any, number: int) -> Any:
    if isinstance(data, Tensor):
        return data[number]
    if isinstance(data, dict):
        return {name: item_of(value, number) for name, value in data.items()}
    parts = [item_of(value, number) for value in data]
    return Step(*parts) if isinstance(data, Step) else type(data)(parts)


def new(storage: str, size: int = 10, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=STORAGES[storage](size), **options)


def edit(buffer: ReplayBuffer, data: Any) -> None:
    buffer[1:3] = data


def places_and_items(buffer: ReplayBuffer, count: int = 60) -> tuple[Any, list[int]]:
    sample, info = buffer.sample(count, return_info=True)
    return sample, info["index"].tolist()


# ---------------------------------------------------------------------- what comes in comes out


@every
@forms
def test_a_batch_is_written_leaf_by_leaf(form: str, storage: str) -> None:
    buffer, data = new(storage), FORMS[form](5)
    assert buffer.extend(data).tolist() == [0, 1, 2, 3, 4]
    sample, places = places_and_items(buffer)
    assert set(places) == {0, 1, 2, 3, 4}
    assert shape_of(sample) == shape_of(FORMS[form](60))
    assert all(torch.equal(found, given[places]) for found, given in zip(leaves(sample), leaves(data), strict=True))
    assert equal(buffer[3], item_of(data, 3))


@every
@forms
def test_items_one_by_one_in_a_list_and_over_the_oldest(form: str, storage: str) -> None:
    """The three ways to write the same."""
    whole, listed, added = new(storage, 4), new(storage, 4), new(storage, 4)
    whole.extend(FORMS[form](6))
    listed.extend([item_of(FORMS[form](6), number) for number in range(6)])
    for number in range(6):
        assert added.add(item_of(FORMS[form](6), number)).tolist() == [number % 4]
    for buffer, kept in ((whole, [2, 3, 4, 5]), (listed, [2, 3, 4, 5]), (added, [4, 5, 2, 3])):
        assert (len(buffer), buffer.write_count) == (4, 6)
        assert all(equal(buffer[place], item_of(FORMS[form](6), number)) for place, number in enumerate(kept))


@tensors
@forms
def test_indices_of_every_kind(form: str, storage: str) -> None:
    buffer, data = new(storage), FORMS[form](5)
    buffer.extend(data)
    indices: list[Any] = [
        slice(None),
        slice(1, 3),
        [2, 0],
        torch.tensor([4, 4]),
        torch.tensor([True, False, True, False, True]),
    ]
    for index in [*indices, np.array([1, 2]), ..., -1]:
        found = buffer[index]
        assert type(found) is type(data)
        assert all(torch.equal(one, given[index]) for one, given in zip(leaves(found), leaves(data), strict=True))


@every
@forms
def test_items_are_written_over(form: str, storage: str) -> None:
    buffer, other = new(storage), FORMS[form](2, 50)
    buffer.extend(FORMS[form](5))
    buffer[3] = item_of(other, 0)
    buffer[[0, 1]] = other
    buffer[4:] = [item_of(other, 1)]
    expected = [item_of(other, 0), item_of(other, 1), item_of(FORMS[form](5), 2), item_of(other, 0), item_of(other, 1)]
    assert all(map(equal, [buffer[place] for place in range(5)], expected))


def test_lists_are_items_at_the_root_and_a_form_elsewhere() -> None:
    buffer = new("RAM")
    buffer.extend([[torch.tensor(1), torch.tensor([2.0])], [torch.tensor(3), torch.tensor([4.0])]])
    buffer.add([torch.tensor(5), torch.tensor([6.0])])
    assert equal(buffer[:], [torch.tensor([1, 3, 5]), torch.tensor([[2.0], [4.0], [6.0]])])
    alike = new("RAM")
    alike.extend([torch.zeros(2), torch.ones(2)])
    assert alike[:].tolist() == [[0, 0], [1, 1]]


@every
def test_arrays_and_numbers_become_tensors(storage: str) -> None:
    buffer = new(storage)
    buffer.extend({"x": np.arange(3)[::-1], "y": np.arange(3, dtype=">f4")})
    frozen = np.ones(())
    frozen.setflags(write=False)
    buffer.add({"x": np.array(7), "y": np.array(0.5, np.float32)})
    sample = buffer.sample(30)
    assert shape_of(sample) == {"x": ((30,), torch.int64), "y": ((30,), torch.float32)}
    assert [(int(buffer[place]["x"]), float(buffer[place]["y"])) for place in range(4)] == [(2, 0), (1, 1), (0, 2), (7, 0.5)]
    other = new(storage)
    other.extend([(frozen,)])
    assert equal(other[0], (torch.ones((), dtype=torch.float64),))


def test_numbers_in_items_of_a_tensor_storage() -> None:
    buffer = new("RAM")
    buffer.add((torch.zeros(2), 1, 0.5, True))
    buffer.extend([(torch.zeros(2), 2, 1.5, False)])
    assert equal(buffer[:], (torch.zeros(2, 2), torch.tensor([1, 2]), torch.tensor([0.5, 1.5]), torch.tensor([True, False])))


def test_arrays_and_numbers_by_themselves() -> None:
    buffer = new("RAM")
    buffer.extend(np.arange(3))
    buffer.add(3)
    buffer.add(np.int64(4))
    buffer.extend([np.array(5), 6])
    buffer[0] = np.array(9)
    buffer[1:3] = np.array([7, 8])
    assert buffer[:].tolist() == [9, 7, 8, 3, 4, 5, 6]
    with pytest.raises(SpecMismatch, match=r"'data': expected \(\) torch.int64 for each item, .* got \(\) torch.float32"):
        buffer.add(1.5)
    listed = new("list")
    listed.extend([np.zeros(2), np.ones(2)])
    assert listed[:].tolist() == [[0, 0], [1, 1]]


@every
def test_what_was_written_may_change_afterwards(storage: str) -> None:
    array, tensor = np.zeros(2), torch.zeros(2, requires_grad=True)
    buffer = new(storage)
    buffer.extend({"a": array, "t": tensor})
    buffer.add({"a": array[0], "t": tensor[0]} if storage != "list" else {"a": np.array(array[0]), "t": tensor[0]})
    array += 1
    with torch.no_grad():
        tensor += 1
    for place in range(3):
        assert (float(buffer[place]["a"]), float(buffer[place]["t"]), buffer[place]["t"].requires_grad) == (0, 0, False)
    sample = buffer.sample(20)
    sample["t"] += 5
    assert float(buffer[0]["t"]) == 0


def test_names_may_come_in_another_order() -> None:
    buffer = new("RAM")
    buffer.extend({"x": x(2), "y": y(2)})
    buffer.extend(OrderedDict(y=y(1), x=x(1)))
    assert list(buffer[:]) == ["x", "y"]
    assert buffer[:]["x"].tolist() == [0, 1, 0]


def test_rows_and_time_are_kept_apart() -> None:
    data: Any = {"a": torch.arange(12).view(2, 3, 2), "b": (torch.arange(6).view(2, 3),)}
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    buffer.extend(data)
    buffer.add({"a": torch.zeros(2, 2).long(), "b": (torch.zeros(2).long(),)})
    assert equal(buffer[:, :3], data)
    assert equal(buffer[..., 1], {"a": data["a"][:, 1], "b": (data["b"][0][:, 1],)})
    sample, info = buffer.sample(30, return_info=True)
    rows, columns = info["index"]
    assert torch.equal(sample["a"], buffer[:]["a"][rows, columns])
    buffer[1, 2] = {"a": torch.tensor([70, 71]), "b": (torch.tensor(72),)}
    assert equal(buffer[1, 2], {"a": torch.tensor([70, 71]), "b": (torch.tensor(72),)})
    turned = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2), dim_extend=0)
    turned.extend({"a": data["a"].transpose(0, 1), "b": (data["b"][0].transpose(0, 1),)})
    assert equal(turned[:], data)


def test_observations_once() -> None:
    obs, following = torch.arange(30.0).view(6, 5), torch.arange(5.0, 35).view(6, 5)
    data = {"obs": obs, "next": {"obs": following, "pair": (x(6), x(6))}}
    buffer = ReplayBuffer(storage=LazyTensorStorage(8, observations_once=True))
    buffer.extend(data)
    assert equal(buffer[:], data)
    assert equal(buffer[2], item_of(data, 2))
    sample, places = places_and_items(buffer)
    assert torch.equal(sample["next"]["obs"], following[places])


def test_frames_that_are_masked_are_left_out() -> None:
    buffer = new("RAM")
    buffer.extend({"x": x(4), "collector": {"mask": torch.tensor([True, False, True, False])}})
    assert buffer[:]["x"].tolist() == [0, 2]


# ---------------------------------------------------------------------- with the rest of a buffer


@every
@pytest.mark.parametrize("prefetch", [None, 2])
def test_transforms_get_the_form(storage: str, prefetch: int | None) -> None:
    def doubled(sample: Any) -> Any:
        assert type(sample) is dict
        return {"x": sample["x"] * 2, "pair": tuple(sample["pair"])}

    def negative(data: Any) -> Any:
        return [{**item, "x": -item["x"]} for item in data] if isinstance(data, list) else {**data, "x": -data["x"]}

    buffer = new(storage, transform=doubled, write_transform=negative, prefetch=prefetch)
    buffer.extend({"x": x(3), "pair": [x(3), y(3)]})
    buffer[1] = {"x": torch.tensor(8), "pair": [torch.tensor(1), y(3)[1]]}
    samples = [buffer.sample(30) for _ in range(3)]
    assert {number for sample in samples for number in sample["x"].tolist()} == {0, -16, -4}
    assert all(type(sample["pair"]) is tuple for sample in samples)


@every
@pytest.mark.parametrize("how", ["folder", "state"])
@forms
def test_a_save_goes_on(form: str, storage: str, how: str, tmp_path: Path) -> None:
    made = [new(storage, batch_size=4, prefetch=2, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    for buffer in made:
        buffer.extend(FORMS[form](5))
    made[1].extend(FORMS[form](3, 50))
    made[0].sample()
    if how == "folder":
        made[0].dumps(tmp_path / "saved")
        made[1].loads(tmp_path / "saved")
    else:
        made[1].load_state_dict(made[0].state_dict())
    assert len(made[1]) == 5
    for _ in range(6):
        assert equal(made[0].sample(), made[1].sample())


@tensors
def test_a_save_into_a_buffer_that_holds_nothing(storage: str, tmp_path: Path) -> None:
    buffer, fresh = new(storage), new(storage)
    buffer.extend(FORMS["nested"](3))
    buffer.dumps(tmp_path / "saved")
    fresh.loads(tmp_path / "saved")
    fresh.loads(tmp_path / "saved")
    assert equal(fresh[:], FORMS["nested"](3))
    assert TensorDict.load_memmap(tmp_path / "saved")["a", "1", "0"][:3].equal(y(3))
    named = new(storage)
    named.extend(FORMS["named tuple"](3))
    named.dumps(tmp_path / "named")
    with pytest.raises(SpecMismatch, match="a buffer of Step, a named tuple, and a state loads no classes; write one item"):
        new(storage).loads(tmp_path / "named")
    with pytest.raises(SpecMismatch, match="a buffer of Step, a named tuple"):
        fresh.loads(tmp_path / "named")
    assert equal(fresh[:], FORMS["nested"](3))


def _write(buffer: ReplayBuffer) -> None:
    assert equal(buffer[:], FORMS["nested"](3))
    buffer.extend(FORMS["nested"](2, 3))
    assert buffer.sample(5)["a"][1][0].shape == (5, 2)


@pytest.mark.processes
@tensors
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_other_processes_write_and_sample(storage: str, start: str) -> None:
    buffer = new(storage, shared=True)
    buffer.extend(FORMS["nested"](3))
    context: Any = multiprocessing.get_context(start)
    child = context.Process(target=_write, args=(buffer,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert equal(buffer[:], FORMS["nested"](5))


def test_a_buffer_that_is_shared_after_the_write() -> None:
    buffer = new("RAM")
    buffer.extend(FORMS["nested"](3))
    twin = pickle.loads(pickle.dumps(buffer.share()))
    twin.extend(FORMS["nested"](2, 3))
    assert equal(buffer[:], FORMS["nested"](5))


def test_functions_that_make_dicts_of_tensordicts() -> None:
    """Rows that are flattened have streams of their own, and masked frames are left out."""
    made = new(
        "RAM", write_transform=lambda data: {"x": data["x"].reshape(-1), "collector": {"mask": data["mask"].reshape(-1)}}
    )
    mask = torch.tensor([[True, True, False], [True, False, True]])
    made.extend(TensorDict({"x": torch.arange(6).view(2, 3), "mask": mask}, [2, 3]))
    assert made[:]["x"].tolist() == [0, 1, 3, 5]
    assert len(set((made.storage.control.origins[:4] >> 1).tolist())) == 2


def test_a_handle_of_a_shared_buffer() -> None:
    buffer = new("RAM", shared=True)
    twin = pickle.loads(pickle.dumps(buffer))
    twin.extend(FORMS["named tuple"](3))
    assert equal(buffer[:], FORMS["named tuple"](3))
    buffer.extend(FORMS["named tuple"](2, 3))
    assert equal(twin[:], FORMS["named tuple"](5))


def test_samplers_find_leaves_by_their_names() -> None:
    episodes = new("RAM", sampler=SliceSampler(slice_len=2, traj_key=("info", "episode"), end_key=("flags", "0")))
    episodes.extend({"x": x(6), "info": {"episode": torch.tensor([0, 0, 0, 1, 1, 2])}, "flags": (torch.zeros(6, 1).bool(),)})
    assert {tuple(pair) for pair in episodes.sample(400)["x"].view(-1, 2).tolist()} == {(0, 1), (1, 2), (3, 4)}
    prioritized = new("RAM", sampler=PrioritizedSampler(10, 1.0, 1.0, eps=0.0))
    index = prioritized.extend((x(3), y(3)))
    prioritized.update_priority(index, torch.tensor([0.0, 1.0, 0.0]))
    assert set(prioritized.sample(50)[0].tolist()) == {1}
    once = new("RAM", sampler=SamplerWithoutReplacement(shuffle=False), batch_size=2)
    once.extend((x(4),))
    assert [sample[0].tolist() for sample in once] == [[0, 1], [2, 3]]


@every
def test_the_items_of_greatest_value(storage: str) -> None:
    best = new(storage, 2, writer=TensorDictMaxValueWriter("score"))
    assert best.extend({"score": torch.tensor([3, 1, 2]), "x": (x(3),)}).tolist() == [0, -1, 1]
    assert best.add({"score": torch.tensor(9), "x": (torch.tensor(7),)}).tolist() == [1]
    best[0] = {"score": torch.tensor(1), "x": (torch.tensor(6),)}
    assert best.extend({"score": torch.tensor([2]), "x": (torch.tensor([5]),)}).tolist() == [0]
    assert sorted((int(best[place]["score"]), int(best[place]["x"][0])) for place in range(2)) == [(2, 5), (9, 7)]


@every
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, TensorDictPrioritizedReplayBuffer])
def test_buffers_of_tensordicts_make_tensordicts_of_dicts(kind: Any, storage: str) -> None:
    options: Any = {"alpha": 1.0, "beta": 1.0} if kind is TensorDictPrioritizedReplayBuffer else {}
    buffer = kind(storage=STORAGES[storage](10), **options)
    buffer.extend({"x": x(3), "next": {"y": y(3)}})
    buffer.add({"x": torch.tensor(3), "next": {"y": torch.zeros(2)}})
    buffer[0] = {"x": torch.tensor(9), "next": {"y": torch.zeros(2)}}
    sample = buffer.sample(20)
    assert torch.equal(sample["x"], torch.tensor([9, 1, 2, 3])[sample["index"]])
    for data in ((x(3), y(3)), {"x": [x(3)]}):
        with pytest.raises(SpecMismatch, match="expected a TensorDict, or dicts of tensors that make one, got"):
            buffer.extend(data)
    assert len(buffer) == 4


# ---------------------------------------------------------------------- what cannot be stored

WRONG: dict[str, tuple[Any, str]] = {
    "first dimensions": ({"a": x(5), "b": (y(4),)}, r"\('b', '0'\): expected to begin with \[5\], as 'a' does, found \[4, 2\]"),
    "no first dimension": ({"a": x(5), "b": torch.tensor(1)}, r"'b': expected at least 1 dimensions for the batch, found \[\]"),
    "text": ({"a": x(5), "b": ["word"]}, r"\('b', '0'\): expected dense tensors, arrays or numbers, found str: 'word'"),
    "array of text": ({"a": np.array(["word"])}, r"'a': expected an array of numbers, found <U4 \[1\]"),
    "a TensorDict inside": ((TensorDict({}, [5]),), r"'0': expected dense tensors, arrays or numbers, found TensorDict"),
    "sparse": ({"a": (torch.zeros(5).to_sparse(),)}, r"\(.a., .0.\): expected a dense tensor with values, found one of layout"),
    "TensorDicts": ((TensorDict({}), TensorDict({})), r"'0': expected dense tensors, arrays or numbers, found TensorDict"),
    "nothing": ({"a": []}, "expected one tensor at least in a dict, found none"),
    "empty": ((), "expected one tensor at least in a tuple, found none"),
    "a name": ({(1, 2): x(5)}, r"the names of a dict: expected strings or integers, found \(1, 2\)"),
    "two names": (
        {"a": {0: x(5), "0": x(5)}},
        r"the names under 'a': expected no two that are written alike, found \[0, '0'\]",
    ),
}


@tensors
@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_stored_is_named(wrong: str, storage: str) -> None:
    buffer = new(storage)
    data, match = WRONG[wrong]
    with pytest.raises(SpecMismatch, match=match):
        buffer.extend(data)
    assert not buffer.storage.is_initialised
    assert buffer.write_count == 0


OTHERS: dict[str, tuple[Any, str]] = {
    "another form": (
        {"a": [x(2), y(2)]},
        r"expected a dict\('a': tuple\(Tensor, Tensor\)\), as it holds, got a dict\('a': list",
    ),
    "another length": ({"a": (x(2),)}, r"got a dict\('a': tuple\(Tensor\)\)"),
    "a tensor": (x(2), "as it holds, got a Tensor"),
    "a TensorDict": (TensorDict({"a": x(2)}, [2]), "as it holds, got a TensorDict"),
    "another shape": ({"a": (x(2), torch.zeros(2, 3))}, r"\('a', '1'\): expected \(2,\) torch.float32 for each item"),
    "another dtype": ({"a": (x(2).float(), y(2))}, r"\('a', '0'\): expected \(\) torch.int64 for each item"),
    "another name": ({"b": (x(2), y(2))}, r"as it holds, got a dict\('b'"),
}


@tensors
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("how", ["extend", "add", "over"])
def test_later_writes_are_of_the_same_form(other: str, how: str, storage: str) -> None:
    buffer = new(storage)
    buffer.extend({"a": (x(5), y(5))})
    data, match = OTHERS[other]
    item = data[0] if isinstance(data, Tensor | TensorDict) else item_of(data, 0)
    write = {"extend": lambda: buffer.extend(data), "add": lambda: buffer.add(item), "over": lambda: edit(buffer, data)}[how]
    with pytest.raises(SpecMismatch, match=match):
        write()
    assert buffer.write_count == 5
    assert equal(buffer[:], {"a": (x(5), y(5))})


ITEMS: dict[str, tuple[list[Any], str]] = {
    "another form": ([(x(2),), [x(2)]], r"item 1 of a list: expected a tuple\(Tensor\), as item 0 is, got a list\(Tensor\)"),
    "a shape": (
        [(x(2),), (x(3),)],
        r"item 1 of a list: '0': expected \(2,\) torch.int64, as item 0 has, got \(3,\) torch.int64",
    ),
    "a dtype": (
        [x(2), x(2), x(2).float()],
        r"item 2 of a list: 'data': expected \(2,\) torch.int64, .* got \(2,\) torch.float32",
    ),
    "a key": (
        [TensorDict({"a": x(2)}), TensorDict({"a": x(2), "b": x(2)})],
        "item 1 of a list: 'b': expected nothing, as item 0",
    ),
    "a TensorDict's dtype": ([TensorDict({"a": x(2)}), TensorDict({"a": x(2) > 0})], "item 1 of a list: 'a': expected .*int64"),
}


@tensors
@pytest.mark.parametrize("wrong", ITEMS)
def test_items_that_are_not_alike_are_named(wrong: str, storage: str) -> None:
    data, match = ITEMS[wrong]
    with pytest.raises(SpecMismatch, match=match):
        new(storage).extend(data)


@tensors
@pytest.mark.parametrize("items", [[{"a": x(2)}, {"a": x(2), "b": x(2)}], [{"a": x(2)}, {"a": x(2).float()}]])
def test_stacks_of_what_is_not_alike_are_refused(items: Any, storage: str) -> None:
    """No entry is left out, and none cast."""
    buffer = new(storage)
    with pytest.raises(SpecMismatch, match="item 1 of a stack: '[ab]': expected"):
        buffer.extend(lazy_stack([TensorDict(item) for item in items]))


def test_dicts_in_a_buffer_of_tensordicts() -> None:
    buffer = new("RAM")
    buffer.extend(TensorDict({"x": x(3), "next": {"y": y(3)}}, [3]))
    buffer.add({"x": torch.tensor(3), "next": {"y": y(1)[0]}})
    buffer[0] = {"next": {"y": y(1)[0]}, "x": torch.tensor(9)}
    assert buffer[:]["x"].tolist() == [9, 1, 2, 3]
    assert isinstance(buffer.sample(2), TensorDict)
    with pytest.raises(SpecMismatch, match="expected a TensorDict, as it holds, got a tuple"):
        buffer.extend((x(3),))


def test_items_of_a_list_may_differ() -> None:
    buffer = new("list")
    items: list[Any] = [{"a": x(2)}, {"a": x(3)}, ({"a": x(2)},), {"b": x(2)}, {}, {"a": "word"}]
    for item in items:
        buffer.add(item)
        sample = buffer.sample(40)
        assert isinstance(sample, list if len(buffer) > 1 else dict)
    assert buffer[4:] == [{}, {"a": "word"}]
    with pytest.raises(SpecMismatch, match=r"'b': expected to begin with \[2\], as 'a' does, found \[3\]"):
        buffer.extend({"a": x(2), "b": x(3)})
    assert len(buffer) == 6
