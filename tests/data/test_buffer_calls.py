"""What a buffer can do beside writing and sampling: parts made at first use, transforms in order, edits, information."""

from __future__ import annotations

import copy
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
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.errors import OptionError, SpecMismatch


def frames(count: int, start: int = 0) -> TensorDict:
    return TensorDict({"a": torch.arange(start, start + count), "b": torch.ones(count, 2)}, [count])


# ---------------------------------------------------------------------- parts at first use


def test_parts_are_made_at_first_use() -> None:
    calls: list[str] = []

    def noting(name: str, make: Any) -> Any:
        return lambda: calls.append(name) or make()

    buffer = TensorDictReplayBuffer(
        storage=noting("storage", lambda: LazyTensorStorage(5)),
        sampler=noting("sampler", RandomSampler),
        transform_factory=noting("transform", lambda: lambda data: data),
        batch_size=2,
    )
    assert (buffer.initialized, calls) == (False, [])
    assert repr(buffer) == "TensorDictReplayBuffer(made at first use, batch_size=2)"
    assert buffer.stats() == {"size": 0, "write_count": 0, "initialized": False}
    buffer.extend(frames(3))
    assert (buffer.initialized, calls) == (True, ["storage", "sampler", "transform"])
    assert sorted(buffer.sample().keys()) == ["a", "b", "index"]
    assert calls == ["storage", "sampler", "transform"]


def test_a_factory_at_once() -> None:
    buffer = ReplayBuffer(transform_factory=lambda: lambda data: data + 1, delayed_init=False, batch_size=1)
    assert buffer.initialized
    buffer.extend(torch.arange(1))
    assert buffer.sample().tolist() == [1]


def test_copies_of_a_buffer_that_is_not_made_yet() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), delayed_init=True, batch_size=2)
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert not other.initialized
        other.extend(frames(3))
        assert len(other) == 3
    assert not buffer.initialized
    assert len(buffer) == 0


def test_an_error_at_first_use_can_be_mended() -> None:
    storages: list[Any] = [3, LazyTensorStorage(5)]
    buffer = ReplayBuffer(storage=lambda: storages.pop(0), delayed_init=True)
    with pytest.raises(OptionError, match="storage: expected a Storage of reap.data, got int: 3"):
        len(buffer)
    assert not buffer.initialized
    assert len(buffer) == 0


def test_attributes_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="'ReplayBuffer' object has no attribute 'nothing'"):
        _ = ReplayBuffer().nothing
    buffer = ReplayBuffer(delayed_init=True)
    with pytest.raises(AttributeError, match="'ReplayBuffer' object has no attribute 'nothing'"):
        _ = buffer.nothing


def test_prioritized_buffers_at_first_use() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=0.5, storage=LazyTensorStorage(3), delayed_init=True, batch_size=2
    )
    assert not buffer.initialized
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert buffer.sampler.max_size == 3


# ---------------------------------------------------------------------- options


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="expected either transform or transform_factory, got both"):
        ReplayBuffer(transform=lambda data: data, transform_factory=lambda: None)
    with pytest.raises(OptionError, match="update_priority is for a TensorDictReplayBuffer"):
        ReplayBuffer().extend(frames(2), update_priority=True)


@pytest.mark.parametrize(
    "sampler", [SamplerWithoutReplacement(drop_last=True), SliceSamplerWithoutReplacement(slice_len=2, drop_last=True)]
)
def test_leaving_out_the_last_needs_a_size(sampler: Any) -> None:
    with pytest.raises(OptionError, match="drop_last=True: expected a batch_size where the buffer is made"):
        ReplayBuffer(sampler=sampler)
    buffer = ReplayBuffer()
    with pytest.raises(OptionError, match="drop_last=True: expected a batch_size where the buffer is made"):
        buffer.set_sampler(sampler)
    assert isinstance(buffer.sampler, RandomSampler)
    assert ReplayBuffer(sampler=sampler, batch_size=4).sampler is sampler


def test_a_sampler_for_a_buffer_that_makes_its_own() -> None:
    assert PrioritizedReplayBuffer(alpha=0.5, beta=0.5, sampler=None).sampler.default_priority == 1.0
    wrong: Any = RandomSampler()
    with pytest.raises(OptionError, match=r"makes its own sampler, got RandomSampler\(\); use ReplayBuffer\(sampler=...\)"):
        PrioritizedReplayBuffer(alpha=0.5, beta=0.5, sampler=wrong)


def test_parts_are_returned_when_they_are_replaced() -> None:
    buffer = ReplayBuffer(batch_size=2)
    storage, sampler, writer = buffer.storage, buffer.sampler, buffer.writer
    assert buffer.set_sampler(RandomSampler()) is sampler
    assert buffer.set_storage(ListStorage(3), collate_fn=list) is storage
    assert buffer.set_writer(type(writer)()) is writer
    buffer.extend(["a", "b"])
    assert sorted(set(buffer.sample(40))) == ["a", "b"]


# ---------------------------------------------------------------------- transforms


class Step:
    """Multiplies samples, and adds to data that are written."""

    def __init__(self, factor: int, summand: int) -> None:
        self.factor, self.summand = factor, summand

    def forward(self, data: Any) -> Any:
        return data * self.factor

    def inv(self, data: Any) -> Any:
        return data + self.summand


def once(**options: Any) -> ReplayBuffer:
    sampler = SamplerWithoutReplacement(shuffle=False)
    return ReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=1, **options)


@pytest.mark.parametrize("iterated", [False, True])
def test_a_copy_by_pickle_has_the_same_attributes(iterated: bool) -> None:
    buffer = once()
    both = ReplayBufferEnsemble(buffer, once(), sample_from_all=True, batch_size=4)
    names = [sorted(vars(one)) for one in (buffer, both)]
    buffer.extend(torch.arange(4))
    if iterated:
        buffer.next()
    assert [sorted(vars(pickle.loads(pickle.dumps(one)))) for one in (buffer, both)] == names


def test_transforms_before_and_after_others() -> None:
    added, doubled = (lambda data: data + 1), Step(2, 0)
    buffer = once(transform=added)
    assert buffer.insert_transform(0, doubled) is buffer
    buffer.append_transform(Step(10, 100))
    assert [*buffer.transform] == [doubled, added, buffer.transform[2]]
    assert len(buffer.transform) == 3
    buffer.extend(torch.tensor([5]))
    assert buffer.storage[:].tolist() == [105]
    assert buffer.sample().tolist() == [(105 * 2 + 1) * 10]


def test_a_transform_turned_around() -> None:
    buffer = once().append_transform(Step(2, 100), invert=True).append_transform(lambda data: data * 3, invert=True)
    buffer.extend(torch.tensor([5]))
    assert buffer.storage[:].tolist() == [30]
    assert buffer.sample().tolist() == [130]


def test_a_function_keeps_its_decision_when_others_come_before_it() -> None:
    buffer = once(transform=lambda data: data.reshape(-1))
    buffer.extend(torch.tensor([[1, 2]]))
    buffer.insert_transform(0, lambda data: data * 10)
    buffer.extend(torch.tensor([[3, 4]]))
    assert buffer.storage[:].tolist() == [1, 2, 3, 4]
    assert buffer.sample().tolist() == [10]


def test_a_transform_that_keeps_data_for_later() -> None:
    class Pairs:
        def __init__(self) -> None:
            self.waiting: list[Any] = []

        def inv(self, data: Any) -> Any:
            self.waiting.append(data)
            if len(self.waiting) % 2:
                return None
            return torch.cat(self.waiting[-2:])

    for ndim, shape in ((1, (0,)), (2, (0, 2))):
        buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=ndim), transform=Pairs())
        data = torch.arange(2).view(*[1] * (ndim - 1), 2)
        assert buffer.extend(data).shape == shape
        assert len(buffer) == 0
        assert len(buffer.extend(data)) == 4


def test_multi_steps_of_torchrl() -> None:
    transforms = pytest.importorskip("torchrl.envs.transforms")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50), batch_size=4)
    buffer.append_transform(transforms.MultiStepTransform(3, 0.5))
    for start in range(0, 12, 2):
        count = torch.arange(start, start + 2).unsqueeze(-1)
        flags = {name: torch.zeros(2, 1, dtype=torch.bool) for name in ("done", "terminated")}
        after = TensorDict({"observation": count + 1, "reward": torch.ones(2, 1), **flags}, [2])
        buffer.extend(TensorDict({"observation": count, "next": after, **flags}, [2]))
    assert len(buffer) == 9
    assert buffer["next", "reward"].flatten().tolist() == [1.75] * 9
    assert (buffer["next", "observation"] - buffer["observation"]).flatten().tolist() == [3] * 9


# ---------------------------------------------------------------------- edits


def test_edits_broadcast_and_cast() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(frames(5))
    buffer[1:3] = TensorDict({"a": torch.tensor(9, dtype=torch.int32), "b": torch.zeros(2, dtype=torch.float64)}, [])
    buffer[4] = TensorDict({"a": torch.tensor([7])}, [1])
    assert buffer["a"].tolist() == [0, 9, 9, 3, 7]
    assert buffer["b"].sum(1).tolist() == [2, 0, 0, 2, 2]
    assert (buffer["a"].dtype, buffer["b"].dtype) == (torch.int64, torch.float32)
    buffer["b"] = torch.tensor([5.0, 6.0])
    assert buffer["b"].tolist() == [[5, 6]] * 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TensorDict({"a": torch.zeros(2)}, [2]), r"'a': expected \(\) torch.int64 for each item, .* got \(\) torch.float32"),
        (TensorDict({"b": torch.zeros(2, 3)}, [2]), r"'b': expected \(2,\) torch.float32 for each item, .* got \(3,\)"),
        (TensorDict({"a": torch.zeros(3).long()}, [3]), r"expected data \[2\] for this index, got \[3\]"),
        (torch.zeros(2), "expected a TensorDict, as it holds, got a Tensor"),
    ],
)
def test_edits_that_do_not_fit(data: Any, message: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(frames(5))
    with pytest.raises(SpecMismatch, match=message):
        buffer[1:3] = data
    assert buffer["a"].tolist() == [0, 1, 2, 3, 4]


def test_new_keys() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=4)
    buffer.extend(frames(3))
    buffer[1] = TensorDict({"next": TensorDict({"value": torch.tensor(4.0)}, []), "name": "x"}, [])
    assert buffer["next", "value"].tolist() == [0, 4, 0]
    assert buffer[1]["name"] == "x"
    buffer.extend(
        TensorDict({**dict(frames(1).items()), "next": TensorDict({"value": torch.ones(1)}, [1]), "name": ["y"]}, [1])
    )
    assert buffer["next", "value"].tolist() == [0, 4, 0, 1]
    with pytest.raises(SpecMismatch, match="expected the keys of the first write; missing"):
        buffer.extend(frames(1))


def test_new_keys_are_shared_afterwards_and_saved() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(frames(3))
    buffer[:] = TensorDict({"c": torch.arange(3)}, [3])
    other = ReplayBuffer(storage=LazyTensorStorage(5))
    other.load_state_dict(buffer.state_dict())
    assert other["c"].tolist() == [0, 1, 2]
    buffer.share()
    twin = pickle.loads(pickle.dumps(buffer))
    assert twin["c"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("storage", ["shared", "files", "once"])
def test_new_keys_where_there_is_no_room_for_them(storage: str) -> None:
    made = {
        "shared": lambda: LazyTensorStorage(5, shared_init=True),
        "files": lambda: LazyMemmapStorage(5),
        "once": lambda: LazyTensorStorage(5, observations_once=True),
    }[storage]()
    buffer = ReplayBuffer(storage=made)
    buffer.extend(frames(3))
    with pytest.raises(SpecMismatch, match=r"new keys \['c'\]: .* laid out at the first write"):
        buffer[0] = TensorDict({"c": torch.ones(())}, [])
    buffer[0] = TensorDict({"a": torch.tensor(9)}, [])
    assert buffer["a"].tolist() == [9, 1, 2]


# ---------------------------------------------------------------------- information


def test_information_in_the_sample_or_beside_it() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), batch_size=64)
    buffer.extend(frames(3))
    buffer.update_priority(torch.arange(3), torch.tensor([1.0, 2.0, 4.0]))
    assert sorted(buffer.sample(include_info=False).keys()) == ["a", "b"]
    sample, info = buffer.sample(return_info=True, include_info=False)
    assert (sorted(sample.keys()), sorted(info)) == (["a", "b"], ["_weight", "index", "priority_weight"])
    weights = {int(one["a"]): float(one["priority_weight"]) for one in buffer.sample(include_info=True)}
    assert weights == {0: 1.0, 1: 0.5, 2: 0.25}


@pytest.mark.parametrize("cls", [LazyTensorStorage, ListStorage])
def test_priorities_in_the_data_that_do_not_count(cls: Any) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=cls(6), batch_size=400)
    data = TensorDict({"a": torch.arange(2), "td_error": torch.tensor([1.0, 3.0])}, [2])
    buffer.extend(data, update_priority=None)
    assert {round(one, 4) for one in buffer.sample()["priority_weight"].tolist()} == {1.0, 0.3333}
    index = buffer.extend(data.set("td_error", torch.tensor([9.0, 0.5])), update_priority=False)
    assert buffer.sampler.default_priority == 3.0
    sample = buffer.sample()
    assert {round(one, 4) for one in sample["priority_weight"][sample["index"] >= int(index[0])].tolist()} == {0.3333}
    buffer.extend(data, update_priority=True)
    buffer.sample()
    assert buffer.sampler.default_priority == 9.0


def test_an_index_of_several_dimensions_is_a_tuple() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(6, ndim=2), batch_size=20
    )
    buffer.extend(TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3]))
    sample, info = buffer.sample(return_info=True)
    rows, columns = info["index"]
    assert (3 * rows + columns).tolist() == sample["a"].tolist()
    assert torch.stack(info["index"], -1).equal(sample["index"])
    assert buffer[:]["a"][info["index"]].equal(sample["a"])
    buffer.update_priority(info["index"], 4.0)
    assert buffer.sampler.default_priority == 4.0
    both = ReplayBufferEnsemble(buffer, batch_size=4, sample_from_all=True)
    assert both.sample()["index", "index"].shape == (1, 4, 2)


def test_an_ensemble_one_by_one() -> None:
    buffers = [PrioritizedReplayBuffer(alpha=1.0, beta=1.0), ReplayBuffer()]
    for buffer in buffers:
        buffer.extend(torch.arange(3))
    both = ReplayBufferEnsemble(*buffers, batch_size=4, sample_from_all=True, transform=torch.exp)
    assert both.insert_transform(0, torch.zeros_like).share() is both
    assert both.next().tolist() == [[1, 1], [1, 1]]
    assert len(both.transform) == 2
    assert len(pickle.loads(pickle.dumps(both))) == 2
    both.set_rng(torch.Generator().manual_seed(0))
    assert both.buffers[0].state_dict()["generator"] is not None


# ---------------------------------------------------------------------- torch.compile


@pytest.mark.timeout(300)
@pytest.mark.parametrize("of", ["buffer", "storage", "writer"])
def test_compiled_code_calls_the_buffer(of: str) -> None:
    storage = LazyTensorStorage(20, compilable=of == "storage")
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=storage, batch_size=4, compilable=True if of == "buffer" else None
    )
    if of == "writer":
        buffer = TensorDictReplayBuffer(storage=storage, writer=type(buffer.writer)(compilable=True), batch_size=4)
    assert buffer.compilable

    def step(values: torch.Tensor) -> torch.Tensor:
        index = buffer.extend(TensorDict({"a": values * 2, "td_error": values}, [5]))
        sample = buffer.sample()
        buffer.update_tensordict_priority(sample)
        return sample["a"] + 0 * index[:1]

    compiled = torch.compile(step, backend="eager")
    for number in range(3):
        assert compiled(torch.arange(5.0) + 5 * number).shape == (4,)
    assert buffer["a"].tolist() == [2.0 * number for number in range(15)]
    assert pickle.loads(pickle.dumps(buffer)).compilable


def test_a_buffer_is_not_compilable_unless_it_is_told() -> None:
    assert not ReplayBuffer().compilable
    assert not ReplayBuffer(storage=ListStorage(3, compilable=True), compilable=False).compilable
    assert ReplayBuffer(storage=ListStorage(3, compilable=True)).compilable
