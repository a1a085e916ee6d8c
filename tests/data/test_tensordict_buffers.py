"""Buffers whose samples know their index, and buffers that sample by priority: the names, keys and priorities of each."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages import LazyMemmapStorage, LazyStackStorage, LazyTensorStorage, ListStorage
from reap.data.writers import RoundRobinWriter, TensorDictRoundRobinWriter
from reap.errors import OptionError, SpecMismatch
from tests.warm import Program


def frames(*shape: int, **more: torch.Tensor) -> TensorDict:
    return TensorDict({"n": torch.arange(torch.Size(shape).numel()).view(shape), **more}, shape)


def prioritized(size: int = 8, ndim: int = 1, **options: Any) -> TensorDictPrioritizedReplayBuffer:
    options = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, **options}
    return TensorDictPrioritizedReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim), **options)


def powers(buffer: ReplayBuffer) -> list[float]:
    """(priority + eps) ** alpha by place, once all that was written is known."""
    buffer.update_priority(torch.empty(0, dtype=torch.int64), 1.0)
    return buffer.sampler.state_dict()["powers"].tolist()


# ---------------------------------------------------------------------- samples


@pytest.mark.parametrize("prefetch", [0, 2])
def test_samples_have_their_index(prefetch: int) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=20, prefetch=prefetch)
    buffer.extend(frames(6))
    sample, info = buffer.sample(return_info=True)
    assert sample["index"].equal(info["index"])
    assert sample["index"].equal(sample["n"])
    assert buffer[:]["index"].tolist() == buffer["index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert buffer.storage.get(slice(None)).keys() == {"n"}
    buffer.set_sampler(RandomSampler())


def test_items_of_a_list_may_be_tensorclasses() -> None:
    @tensorclass
    class Point:
        n: torch.Tensor

    buffer = TensorDictReplayBuffer(storage=ListStorage(4), batch_size=5)
    buffer.add(Point(n=torch.tensor(3), batch_size=[]))
    buffer.extend([Point(n=torch.tensor(4), batch_size=[])])
    assert [item.n.item() for item in buffer.storage.get([0, 1])] == [3, 4]
    assert set(buffer.sample().n.tolist()) <= {3, 4}
    with pytest.raises(SpecMismatch, match="expected a TensorDict, got Point"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(4)).add(Point(n=torch.tensor(3), batch_size=[]))


def test_samples_of_rows_have_an_index_for_each_dimension() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=2), batch_size=20)
    buffer.extend(frames(2, 3))
    sample = buffer.sample()
    assert sample["index"].shape == (20, 2)
    assert buffer[:]["index"].tolist() == [[[0, 0], [0, 1], [0, 2]], [[1, 0], [1, 1], [1, 2]]]
    assert buffer[1]["index"].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert buffer[1, 2]["index"].tolist() == [1, 2]
    assert buffer[:][tuple(sample["index"].unbind(-1))]["n"].equal(sample["n"])


def test_samples_have_what_the_sampler_knows() -> None:
    buffer = prioritized(4)
    index = buffer.extend(frames(4))
    buffer.update_priority(index, torch.tensor([1.0, 2.0, 4.0, 8.0]))
    sample = buffer.sample(50)
    assert set(sample.keys()) == {"n", "index", "priority_weight", "_weight"}
    assert sample["priority_weight"].equal(torch.tensor([1.0, 0.5, 0.25, 0.125])[sample["index"]])
    assert sample["_weight"].equal(sample["priority_weight"])


def test_transforms_see_the_index() -> None:
    buffer = TensorDictReplayBuffer(transform=lambda data: data.select("index"))
    buffer.extend(frames(6))
    assert set(buffer.sample(3).keys()) == {"index"}


def test_what_was_sampled_can_be_written_to_another_buffer() -> None:
    buffer, other = TensorDictReplayBuffer(), TensorDictReplayBuffer()
    buffer.extend(frames(6))
    sample = buffer.sample(4)
    other.extend(sample)
    again = other.sample(4)
    assert again["index"].max() < 4
    assert again["n"].equal(sample["n"][again["index"]])


def test_its_parts() -> None:
    buffer = TensorDictReplayBuffer()
    assert type(buffer.writer) is TensorDictRoundRobinWriter
    assert (buffer.priority_key, buffer.storage.max_size) == ("td_error", 1_000)
    writer = RoundRobinWriter()
    assert TensorDictReplayBuffer(writer=writer).writer is writer
    for made in (
        PrioritizedReplayBuffer(alpha=0.5, beta=0.25, eps=0.125, storage=lambda: LazyTensorStorage(7)),
        TensorDictPrioritizedReplayBuffer(alpha=0.5, beta=0.25, eps=0.125, storage=LazyTensorStorage(7), reduction="mean"),
    ):
        sampler = made.sampler
        assert isinstance(sampler, PrioritizedSampler)
        assert (sampler.alpha, sampler.beta, sampler.eps, sampler.max_capacity) == (0.5, 0.25, 0.125, 7)
    assert sampler.reduction == "mean"
    nested = TensorDictReplayBuffer(priority_key=("agent", "td_error"))
    assert nested.priority_key == ("agent", "td_error")
    with pytest.raises(OptionError, match="alpha: expected"):
        PrioritizedReplayBuffer(alpha=-1.0, beta=1.0)


@tensorclass
class Frame:
    """A frame that is no TensorDict."""

    n: torch.Tensor


@pytest.mark.parametrize("data", [torch.arange(3), Frame(torch.arange(3), batch_size=[3])])
def test_other_data_are_refused(data: Any) -> None:
    buffer = TensorDictReplayBuffer()
    with pytest.raises(
        SpecMismatch, match="TensorDictReplayBuffer: expected a TensorDict, got .*; a ReplayBuffer holds other data"
    ):
        buffer.extend(data)
    assert len(buffer) == 0


def test_items_in_a_list() -> None:
    buffer = TensorDictReplayBuffer(storage=ListStorage(10))
    buffer.extend(list(frames(4)))
    sample = buffer.sample(20)
    assert sample["index"].equal(sample["n"])


# ---------------------------------------------------------------------- priorities


@pytest.mark.parametrize("ndim", [1, 2])
def test_priorities_of_a_sample(ndim: int) -> None:
    buffer = prioritized(8, ndim)
    buffer.extend(frames(*((2, 4) if ndim == 2 else (8,))))
    sample = buffer.sample(200)
    sample["td_error"] = (1.0 + sample["n"]).unsqueeze(-1)
    buffer.update_tensordict_priority(sample[:100])
    buffer.update_tensordict_priority(sample[100:].view(10, 10))
    assert powers(buffer) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    buffer.update_tensordict_priority(sample[:0])
    buffer.update_tensordict_priority(sample[0].update({"td_error": torch.tensor(9.0)}))
    assert powers(buffer)[int(sample["n"][0])] == 9.0


def test_the_priority_may_lie_deeper() -> None:
    buffer = prioritized(4, priority_key=("agent", "error"))
    buffer.extend(frames(4))
    buffer.update_tensordict_priority(
        TensorDict({"index": torch.tensor([1, 3]), "agent": {"error": torch.tensor([5.0, 6.0])}}, [2])
    )
    assert powers(buffer) == [1.0, 5.0, 1.0, 6.0]


@pytest.mark.parametrize(("reduction", "expected"), [("max", 8.0), ("min", 1.0), ("mean", 4.0), ("median", 3.0)])
def test_several_priorities_for_a_frame(reduction: str, expected: float) -> None:
    buffer = prioritized(2, reduction=reduction)
    errors = torch.tensor([[1.0, 8.0, 3.0]])
    buffer.extend(frames(1, td_error=errors))
    assert powers(buffer) == [expected, 0]
    buffer.update_tensordict_priority(TensorDict({"index": torch.tensor([0]), "td_error": errors * 2}, [1]))
    assert powers(buffer) == [2 * expected, 0]


def test_frames_that_are_written_with_a_priority_have_it() -> None:
    buffer = prioritized(6)
    buffer.extend(frames(4, td_error=torch.tensor([0.5, 3.0, 0.0, 2.0])))
    assert powers(buffer) == [0.5, 3.0, 0.0, 2.0, 0, 0]
    buffer.update_priority(torch.tensor([1]), 0.25)
    buffer.add(TensorDict({"n": torch.tensor(9), "td_error": torch.tensor(0.125)}))
    assert powers(buffer) == [0.5, 0.25, 0.0, 2.0, 0.125, 0]
    buffer.extend(frames(2, td_error=torch.tensor([7.0, 8.0])))
    assert powers(buffer) == [8.0, 0.25, 0.0, 2.0, 0.125, 7.0]


def test_without_the_key_they_have_the_largest_so_far() -> None:
    buffer = prioritized(4)
    buffer.update_priority(buffer.extend(frames(2)), 5.0)
    buffer.extend(frames(2))
    assert powers(buffer) == [5.0] * 4


def test_rows_that_are_written_with_a_priority() -> None:
    buffer = prioritized(8, 2)
    buffer.extend(frames(2, 3, td_error=torch.arange(1.0, 7.0).view(2, 3, 1)))
    assert powers(buffer) == [1.0, 2.0, 3.0, 0, 4.0, 5.0, 6.0, 0]


def test_another_sampler_reads_them_too() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3), priority_key="p")
    buffer.extend(frames(3, p=torch.tensor([4.0, 5.0, 6.0])))
    buffer.set_sampler(PrioritizedSampler(3, 1.0, 1.0, eps=0.0))
    assert powers(buffer) == [4.0, 5.0, 6.0]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_what_is_written_with_a_priority_that_is_none_is_refused(bad: float) -> None:
    buffer = prioritized(4)
    buffer.extend(frames(2, td_error=torch.tensor([1.0, 2.0])))
    with pytest.raises(OptionError, match="priority: expected finite numbers from 0 on"):
        buffer.extend(frames(2, td_error=torch.tensor([1.0, bad])))
    assert (len(buffer), powers(buffer)) == (2, [1.0, 2.0, 0, 0])
    signed = TensorDictReplayBuffer(sampler=SamplerWithoutReplacement())
    signed.extend(frames(2, td_error=torch.tensor([1.0, bad])))  # to other samplers it is a value like any other


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("index", "found nothing under 'index'; without an index, call update_priority"),
        ("td_error", "nothing under 'td_error'"),
    ],
)
def test_a_sample_without_what_it_needs(missing: str, words: str) -> None:
    buffer = prioritized(4)
    buffer.extend(frames(4))
    with pytest.raises(SpecMismatch, match=words):
        buffer.update_tensordict_priority(buffer.sample(2).set("td_error", torch.ones(2)).exclude(missing))


def test_not_as_many_priorities_as_frames() -> None:
    buffer = prioritized(4)
    buffer.extend(frames(4))
    with pytest.raises(SpecMismatch, match=r"one or several for each of 2 frames, got \[3\]"):
        buffer.update_tensordict_priority(TensorDict({"index": torch.tensor([0, 1]), "td_error": torch.ones(3)}, []))


def test_samplers_without_priorities_take_none() -> None:
    buffer = TensorDictReplayBuffer()
    buffer.extend(frames(4))
    buffer.update_tensordict_priority(buffer.sample(2))


# ---------------------------------------------------------------------- processes

ACTOR = """
import pickle, sys
import torch
from tensordict import TensorDict
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
first = int(sys.argv[2])
for number in range(first, first + 25):
    n = torch.arange(100 * number, 100 * number + 100)
    buffer.extend(TensorDict({"n": n, "td_error": 1.0 + n % 10}, [100]))
    if number == first:
        print("begun", flush=True)
print("done", flush=True)
"""


@pytest.mark.processes
def test_workers_write_priorities_and_the_learner_has_its_own() -> None:
    """Four writers of 2,500 frames each; the learner samples and changes priorities meanwhile."""
    buffer = prioritized(10_000, shared=True)
    zeroed: set[int] = set()
    with ExitStack() as stack:
        handle = pickle.dumps(buffer).hex()
        programs = [stack.enter_context(Program(ACTOR, handle, str(25 * number))) for number in range(4)]
        assert programs[0].stdout.readline() == "begun\n"
        while len(buffer) < 10_000:
            sample = buffer.sample(64)
            assert zeroed.isdisjoint(sample["n"].tolist())
            sample["td_error"] = torch.where(sample["n"] % 3 == 0, 0.0, sample["td_error"])
            buffer.update_tensordict_priority(sample)
            zeroed.update(sample["n"][sample["n"] % 3 == 0].tolist())
        for program in programs:
            assert program.stdout.read().endswith("done\n"), program.stderr.read()
            assert program.wait(100) == 0
    assert zeroed
    assert (len(buffer), buffer.write_count) == (10_000, 10_000)
    expected = [0.0 if n in zeroed else 1.0 + n % 10 for n in buffer[:]["n"].tolist()]
    assert powers(buffer) == expected


# ---------------------------------------------------------------------- items that are trajectories

STORAGES = {"RAM": LazyTensorStorage, "files": LazyMemmapStorage, "list": ListStorage}
every = pytest.mark.parametrize("storage", STORAGES)


def of_trajectories(storage: str, kind: Any = TensorDictPrioritizedReplayBuffer, **options: Any) -> Any:
    """A buffer of three trajectories of four frames, the frames of which are numbered."""
    if kind is TensorDictPrioritizedReplayBuffer:
        options = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, **options}
    buffer = kind(storage=STORAGES[storage](5), **options)
    buffer.extend(frames(3, 4))
    return buffer


@every
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, TensorDictPrioritizedReplayBuffer])
def test_samples_of_trajectories_have_the_index_of_each_frame(kind: Any, prefetch: int, storage: str) -> None:
    buffer = of_trajectories(storage, kind, prefetch=prefetch, batch_size=30)
    sample, info = buffer.sample(return_info=True)
    assert sample.batch_size == (30, 4)
    assert info["index"].shape == (30,)
    assert sample["index"].equal(info["index"].unsqueeze(1).expand(30, 4))
    assert sample["n"].equal(4 * sample["index"] + torch.arange(4))
    if kind is TensorDictPrioritizedReplayBuffer:
        assert sample["priority_weight"].equal(torch.ones(30, 4))
    plain = ReplayBuffer(storage=STORAGES[storage](5), writer=TensorDictRoundRobinWriter())
    plain.extend(frames(3, 4))
    assert plain.sample(7)["index"].shape == (7, 4)


@every
@pytest.mark.parametrize(("reduction", "expected"), [("max", [2, 5, 0]), ("mean", [0.5, 2.75, 0]), ("min", [0, 1, 0])])
def test_a_trajectory_has_what_is_made_of_the_priorities_of_its_frames(
    reduction: str, expected: list[float], storage: str
) -> None:
    errors = torch.tensor([[0.0, 0, 2, 0], [1, 5, 4, 1], [0, 0, 0, 0]])
    for parts in (
        lambda sample: [sample],
        list,
        lambda sample: sample.split(2),
        lambda sample: [sample.reshape(-1)],
        lambda sample: [sample.reshape(-1)[torch.randperm(12)]],
    ):
        buffer = of_trajectories(storage, reduction=reduction)
        sample = buffer.sample(40)
        places = [int((sample["index"][:, 0] == number).nonzero()[0]) for number in range(3)]
        sample = sample[places].set("td_error", errors)
        for part in parts(sample):
            buffer.update_tensordict_priority(part)
        assert powers(buffer)[:3] == expected
    several = of_trajectories(storage, reduction=reduction)
    sample = several.sample(1)
    several.update_tensordict_priority(sample.set("td_error", torch.stack([errors[1:2], torch.zeros(1, 4)], -1)))
    made = {"max": 5.0, "mean": 11 / 8, "min": 0.0}[reduction]
    assert powers(several)[int(sample["index"][0, 0])] == made


@every
def test_trajectories_begin_with_their_priority(storage: str) -> None:
    errors = torch.tensor([[0.0, 7.0], [1.0, 2.0]])
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=STORAGES[storage](5))
    buffer.extend(frames(2, 2, td_error=errors))
    buffer.add(frames(2, td_error=errors[1]))
    assert powers(buffer)[:3] == [7, 2, 2]
    buffer[0] = frames(2, td_error=torch.tensor([3.0, 4.0]))
    assert powers(buffer)[:3] == [4, 2, 2]
    wrong = errors - 10
    for write in (lambda: buffer.extend(frames(2, 2, td_error=wrong)), lambda: buffer.add(frames(2, td_error=wrong[0]))):
        with pytest.raises(OptionError, match="expected finite numbers from 0 on"):
            write()
    assert len(buffer) == 3


def test_trajectories_of_rows() -> None:
    buffer = prioritized(8, ndim=2)
    buffer.extend(frames(2, 3, 4))
    sample = buffer.sample(20)
    assert sample.batch_size == (20, 4)
    assert sample["index"].shape == (20, 4, 2)
    assert sample["n"].equal(12 * sample["index"][..., 0] + 4 * sample["index"][..., 1] + torch.arange(4))
    sample["td_error"] = torch.zeros(20, 4)
    sample["td_error"][:, 1] = sample["n"][:, 0].float()
    buffer.update_tensordict_priority(sample)
    buffer.update_tensordict_priority(sample.reshape(-1))
    places = sample["index"][:, 0, 0] * 4 + sample["index"][:, 0, 1]
    assert torch.tensor(powers(buffer))[places].equal(sample["n"][:, 0].double())


def test_trajectories_of_several_lengths_come_in_a_list() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=ListStorage(5))
    for length in (2, 5):
        buffer.add(frames(length))
    sample = buffer.sample(20)
    assert isinstance(sample, list)
    assert {(len(item), int(item["index"].unique()), item["priority_weight"].shape) for item in sample} == {
        (2, 0, (2,)),
        (5, 1, (5,)),
    }
    assert buffer[1]["index"].tolist() == [1] * 5
    assert "index" not in buffer.storage[1].keys()
    buffer.update_tensordict_priority([item.set("td_error", item["n"].double()) for item in sample])
    assert powers(buffer)[:2] == [1, 4]


@pytest.mark.parametrize("stack_dim", [0, -1])
def test_trajectories_of_several_lengths_come_in_a_lazy_stack(stack_dim: int) -> None:
    storage = LazyStackStorage(5, stack_dim=stack_dim)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=storage, batch_size=20)
    for length in (2, 5):
        buffer.add(frames(length))
    sample = buffer.sample()
    assert isinstance(sample, LazyStackedTensorDict)
    assert {(len(item), int(item["index"].unique()), item["priority_weight"].shape) for item in sample.tensordicts} == {
        (2, 0, (2,)),
        (5, 1, (5,)),
    }
    for item in sample.tensordicts:
        item["td_error"] = item["n"].double()
    buffer.update_tensordict_priority(sample)
    assert powers(buffer)[:2] == [1, 4]
    plain = TensorDictReplayBuffer(storage=LazyStackStorage(5, stack_dim=stack_dim), batch_size=20)
    plain.extend([frames(2), frames(5)])
    assert {(len(item), int(item["index"].unique())) for item in plain.sample().tensordicts} == {(2, 0), (5, 1)}


def test_trajectories_in_a_list_after_a_write_that_was_broken_off() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=ListStorage(5))
    buffer.storage.ring.give_up(buffer.storage.ring.claim(1))
    buffer.extend([frames(3), frames(3)])
    assert buffer.storage.item_dims == 1
    sample = torch.stack([buffer[1], buffer[2]])
    sample["index"] = torch.tensor([[1], [2]]).expand(2, 3)
    sample["td_error"] = torch.tensor([[1.0, 7.0, 2.0], [5.0, 3.0, 4.0]])
    buffer.update_tensordict_priority(sample)
    assert powers(buffer)[1:3] == [7, 5]


@every
def test_trajectories_of_greatest_value(storage: str) -> None:
    buffer = of_trajectories(storage, TensorDictReplayBuffer, writer=TensorDictMaxValueWriter("n"), batch_size=10)
    assert buffer.sample()["n"].shape == (10, 4)
