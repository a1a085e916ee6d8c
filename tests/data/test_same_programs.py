"""Programs for replay buffers that give the same with torchrl's classes and with those of reap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, lazy_stack, tensorclass

import reap.data
from tests.data import torchrl_trees
from tests.neighbours import since_torchrl_013

torchrl_data = pytest.importorskip("torchrl.data")
storages = pytest.importorskip("torchrl.data.replay_buffers.storages")

Program = Callable[[Any], Any]
PROGRAMS: dict[str, Program] = {}
LATER: set[str] = set()


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def later(function: Program) -> Program:
    """A program that needs a torchrl that is not the oldest."""
    LATER.add(function.__name__)
    return function


@tensorclass  # pyright: ignore[reportArgumentType]
class Pair:
    a: torch.Tensor
    b: torch.Tensor


def frames(count: int, start: int = 0) -> TensorDict:
    """Frames `[count]` whose values say which they are."""
    number = torch.arange(start, start + count)
    return TensorDict({"a": number, "next": TensorDict({"reward": number.float().unsqueeze(-1)}, [count])}, [count])


def rows(count: int, time: int, start: int = 0) -> TensorDict:
    """Frames `[count, time]`."""
    return TensorDict({"a": start + torch.arange(count * time).view(count, time)}, [count, time])


def shown(value: Any) -> Any:
    """A value in a form that can be compared."""
    if isinstance(value, LazyStackedTensorDict):
        return "lazy", [shown(item) for item in value.unbind(value.stack_dim)]
    if isinstance(value, TensorDictBase):
        return sorted((str(key), shown(item)) for key, item in value.items()), list(value.batch_size)
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, Pair):
        return "Pair", shown(value.to_tensordict())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


def outcome(function: Callable[[], Any]) -> Any:
    """The result of a call, or that it is refused: torchrl and reap have other errors."""
    try:
        return shown(function())
    except (IndexError, ValueError, RuntimeError, TypeError, NotImplementedError):
        return "refused"


# ---------------------------------------------------------------------- writing and reading


@program
def writes_wrap_around(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(5), batch_size=3)
    first, second = buffer.extend(frames(4)), buffer.extend(frames(3, 4))
    return first, second, len(buffer), buffer.write_count, buffer[:], buffer[2], buffer[-1], buffer[1:3]


@program
def single_items(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(3), batch_size=3)
    return [int(buffer.add(frames(1, number)[0])) for number in range(4)], buffer[:]


@program
def devices_of_what_is_read(data: Any) -> Any:
    found = []
    for make in (data.LazyTensorStorage, data.LazyMemmapStorage, data.ListStorage):
        for device in (None, "cpu"):
            buffer = data.ReplayBuffer(storage=make(5), batch_size=2)
            buffer.extend(frames(3).to(device) if device else frames(3))
            read = buffer.sample(), buffer[:], buffer[1]
            found.append([(str(one.device), str(one["next"].device)) for one in read])
    given = data.ReplayBuffer(storage=data.TensorStorage(frames(3)), batch_size=2)
    return found, str(given[:].device), str(given.sample().device)


@program
def the_index_of_what_is_read(data: Any) -> Any:
    found = []
    for storage in (data.LazyTensorStorage(4), data.ListStorage(4)):
        buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=4)
        buffer.extend(frames(3))
        buffer.extend(frames(3, 3))
        found += [buffer[:], buffer[1], buffer[[0, 2]], buffer[1:3]]
    found.append(buffer.storage.get(1)["a"])
    return found, data.ReplayBuffer(storage=data.LazyTensorStorage(4), writer=data.TensorDictRoundRobinWriter()).extend(
        frames(2)
    )


@program
def the_index_of_trajectories(data: Any) -> Any:
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4), batch_size=4)
    buffer.extend(rows(2, 3))
    return buffer[:], buffer[1], buffer["index"]


@program
def samples_that_are_written_again(data: Any) -> Any:
    buffers = [data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(6), batch_size=2) for _ in range(2)]
    buffers[0].extend(frames(3))
    sample = buffers[0].sample()
    buffers[0].extend(sample)
    buffers[1].extend(buffers[0].sample())
    buffers[1].extend(frames(2, 7))
    return len(buffers[0]), buffers[0]["index"], sorted(buffers[1][:].keys()), buffers[1]["index"], buffers[1][2:]


@program
def the_index_is_not_an_edit(data: Any) -> Any:
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4), batch_size=2)
    buffer.extend(frames(4))
    buffer[0:2] = buffer[[2, 3]].set("index", torch.tensor([0, 1]))
    return buffer[:]


@program
def keys_as_indices(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(3), batch_size=3)
    buffer.extend(frames(3))
    buffer["a"] = torch.tensor([7, 8, 9])
    buffer["next", "reward"] = torch.ones(3, 1)
    return buffer["a"], buffer["next", "reward"], buffer[:]


@program
@later
def indices_of_all_kinds(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(9), batch_size=3)
    buffer.extend(frames(6))
    mask = torch.tensor([True, False, True, False, False, True])
    return buffer[[0, 3]], buffer[torch.tensor([5, 1])], buffer[mask], buffer[::2], outcome(lambda: buffer[6])


@program
def edits_with_fewer_and_more_keys(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(5), batch_size=3)
    buffer.extend(frames(5))
    buffer[1:3] = TensorDict({"a": torch.tensor([20, 30])}, [2])
    buffer[0:2] = TensorDict({"a": torch.tensor([1, 2]), "new": torch.ones(2)}, [2])
    buffer[4] = TensorDict({"a": torch.tensor(50)}, [])
    buffer[torch.tensor([3])] = TensorDict({"a": torch.tensor([40]), "new": torch.tensor([3.0])}, [1])
    return buffer[:], buffer.extend(TensorDict({**dict(frames(1).items()), "new": torch.zeros(1)}, [1]))


@program
def edits_are_broadcast(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4))
    buffer.extend(torch.arange(8.0).view(4, 2))
    buffer[1:3] = torch.tensor(5.0)
    buffer[0] = torch.tensor([9.0, 8.0])
    return buffer[:]


@program
def edits_of_several_rows(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(8, ndim=2))
    buffer.extend(rows(2, 4))
    buffer[1, 2:4] = TensorDict({"a": torch.tensor([50, 60])}, [2])
    return buffer[:]


@program
def tensors_and_trees(data: Any) -> Any:
    found = []
    for value in (torch.arange(4), {"x": torch.arange(4), "y": (torch.ones(4), [torch.zeros(4, 2)])}):
        buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(6), batch_size=2)
        buffer.extend(value)
        found.append((len(buffer), buffer[:], buffer[1]))
    return found


@program
def tensorclasses(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(6), batch_size=2)
    buffer.extend(Pair(a=torch.arange(4), b=torch.ones(4, 2), batch_size=[4]))  # pyright: ignore[reportCallIssue]
    return type(buffer.sample()).__name__, buffer[:].a, buffer[3].b


@program
def emptied(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4))
    buffer.extend(frames(3))
    buffer.empty(empty_write_count=False)
    first = len(buffer), buffer.write_count
    buffer.extend(frames(2, 9))
    buffer.empty()
    return first, len(buffer), buffer.write_count, outcome(lambda: buffer.sample(2))


@program
@later
def all_of_it_at_once(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4))
    buffer.extend(frames(4))
    buffer.set_("a", torch.tensor([4, 3, 2, 1]))
    buffer.set_at_("a", torch.tensor([9, 9]), slice(0, 2))
    buffer.update_({"a": buffer["a"] * 2})
    buffer.write_all(frames(4, 70))
    stats = buffer.stats()
    return (
        buffer.read_all_in_order(),
        buffer.read_all_in_order(2),
        {key: stats[key] for key in ("size", "capacity", "write_count")},
    )


# ---------------------------------------------------------------------- lists


@program
def ragged_lazy_stacks(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.ListStorage(5), batch_size=2)
    index = buffer.extend(lazy_stack([TensorDict({"a": torch.arange(n)}, []) for n in (2, 3, 4)]))
    return index, [buffer[number] for number in range(3)], buffer[:], buffer[[0, 2]]


@program
def lists_without_a_size(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.ListStorage(), collate_fn=list, batch_size=4)
    for number in range(3):
        buffer.extend(list(range(1000 * number, 1000 * number + 1000)))
    return len(buffer), buffer[2999], buffer.storage.get(range(3)), len(buffer.sample())


@program
def lists_where_a_function_joins_items(data: Any) -> Any:
    buffer = data.ReplayBuffer(collate_fn=torch.stack, batch_size=5)
    buffer.extend(list(torch.arange(3)))
    return buffer.sample().shape, buffer[[0, 2]]


@program
def items_of_any_kind(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.ListStorage(4), collate_fn=lambda items: items, batch_size=2)
    return buffer.extend(["a", 1, None]), buffer.extend([{"b": 2}, "e"]), buffer[:], buffer[1]


@program
def lazy_stack_storages(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyStackStorage(stack_dim=-1), batch_size=2)
    for length in (1, 2):
        buffer.add(TensorDict({"a": torch.arange(length), "b": torch.zeros(3)}, []))
    sample = buffer.sample()
    return type(sample).__name__, sample.batch_size == torch.Size([2]), buffer[:], buffer[0]


# ---------------------------------------------------------------------- storages by themselves


@program
def storages_are_set_and_read(data: Any) -> Any:
    storage = data.LazyTensorStorage(5)
    storage.set(range(3), frames(3))
    storage.set(3, frames(1, 3)[0])
    held = len(storage), storage.get(slice(None)), storage[1], [item["a"] for item in storage], 3 in storage, 4 in storage
    storage.set([0, 1], frames(2, 50))
    return held, storage.get(slice(0, 4))


@program
def tensor_storages(data: Any) -> Any:
    given = frames(4)
    storage = data.TensorStorage(given)
    buffer = data.ReplayBuffer(storage=storage, batch_size=2)
    before = len(buffer), storage.max_size, buffer[:]
    buffer.extend(frames(1, 60))
    wrong = outcome(lambda: data.TensorStorage(None)), outcome(lambda: data.TensorStorage(torch.zeros(3), max_size=4))
    return before, given["a"], wrong


@program
def list_storages_are_set_and_read(data: Any) -> Any:
    storage = data.ListStorage(3)
    storage.set(range(2), ["a", "b"])
    storage.set(2, "c")
    storage.set(0, "d")
    return len(storage), storage.get([0, 2]), storage[1], outcome(lambda: data.ListStorage(3).set(2, "x"))


@program
def states_of_storages(data: Any) -> Any:
    storage, other = data.LazyTensorStorage(5), data.LazyTensorStorage(5)
    storage.set(range(3), frames(3))
    other.load_state_dict(storage.state_dict())
    return len(other), other.get(slice(None))


@program
def saves_of_storages(data: Any) -> Any:
    storage, other = data.LazyTensorStorage(5), data.LazyTensorStorage(5)
    storage.set(range(3), frames(3))
    folder = Path.cwd() / data.__name__
    storage.dumps(folder)
    other.loads(folder)
    return len(other), other.get(slice(None))


@program
@later
def hooks_of_saves(data: Any) -> Any:
    buffers = [data.ReplayBuffer(storage=data.LazyTensorStorage(4)) for _ in range(2)]
    buffers[0].extend(frames(4))
    buffers[0].register_save_hook(lambda held, path: held.clone().set("a", held["a"] + 100))
    buffers[1].register_load_hook(lambda held, out: held.clone().set("a", held["a"] * 2))
    folder = Path.cwd() / f"hooks-{data.__name__}"
    buffers[0].dumps(folder)
    buffers[1].loads(folder)
    return buffers[0]["a"], buffers[1]["a"]


# ---------------------------------------------------------------------- several rows


@program
def indices_of_several_rows(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(12, ndim=2), batch_size=8)
    buffer.extend(rows(3, 4))
    sample, info = buffer.sample(return_info=True)
    index = info["index"]
    return type(index).__name__, len(index), [part.shape for part in index], sample.shape, len(buffer), buffer.dim_extend


@program
def max_size_that_rows_do_not_divide(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(10, ndim=2), batch_size=2)
    buffer.extend(rows(3, 4))
    buffer.extend(rows(3, 1, 90))
    return len(buffer), buffer[:].shape


# ---------------------------------------------------------------------- samplers and writers


@program
@later
def epochs(data: Any) -> Any:
    storage = data.LazyTensorStorage(10)
    storage.set(range(10), frames(10))
    sampler = data.SamplerWithoutReplacement(shuffle=False)
    drawn = [sampler.sample(storage, 4)[0] for _ in range(3)]
    early = outcome(lambda: data.ReplayBuffer(sampler=data.SamplerWithoutReplacement(drop_last=True)))
    buffer = data.ReplayBuffer(storage=storage, sampler=data.SamplerWithoutReplacement(drop_last=True), batch_size=4)
    return drawn, sampler.ran_out, early, [len(sample) for sample in buffer], buffer.can_sample()


@program
def samples_one_by_one(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4), sampler=data.SamplerWithoutReplacement(), batch_size=2)
    buffer.extend(frames(4))
    return [len(buffer.next()), len(buffer.next()), buffer.next() is None, len(buffer.next())]


@program
def writers_by_themselves(data: Any) -> Any:
    storage, writer = data.LazyTensorStorage(3), data.RoundRobinWriter()
    writer.register_storage(storage)
    return writer.extend(frames(2)), int(writer.add(frames(1, 2)[0])), writer.extend(frames(2, 3)), storage.get(slice(None))


@program
def slices_by_themselves(data: Any) -> Any:
    storage = data.LazyTensorStorage(10)
    storage.set(range(10), TensorDict({"episode": torch.arange(10) // 5, "step": torch.arange(10) % 5}, [10]))
    index, info = data.SliceSampler(slice_len=5, traj_key="episode").sample(storage, 10)
    index = index[0] if isinstance(index, tuple) else index
    return index.view(2, 5) % 5, info["next", "truncated"].view(-1), info["next", "done"].view(-1)


# ---------------------------------------------------------------------- priorities

DRAWS = 20_000


def drawn(buffer: Any) -> Any:
    """Each frame that is drawn, with its weight, and how often it is, to one place.

    Programs have frames that are drawn in tenths, so that chance does not change what is rounded.
    """
    sample, info = buffer.sample(return_info=True)
    index = info["index"]
    flat = index if isinstance(index, torch.Tensor) else torch.stack(list(index), -1)
    assert sample.batch_size == torch.Size([DRAWS])
    found = {}
    for number in flat.unique(dim=0).tolist():
        hit = (flat == torch.as_tensor(number)).reshape(DRAWS, -1).all(-1)
        weights = {round(weight, 4) for weight in info["priority_weight"][hit].tolist()}
        found[str(number)] = weights.pop() if len(weights) == 1 else weights, round(float(hit.float().mean()), 1)
    return found


@program
@later
def priorities_that_are_set(data: Any) -> Any:
    sampler = data.PrioritizedSampler(5, alpha=2.0, beta=0.5)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(5), sampler=sampler, batch_size=DRAWS)
    index = buffer.extend(frames(4))
    buffer.update_priority(index, torch.tensor([1.0, 2.0, 3.0, 4.0]).sqrt())
    first = drawn(buffer)
    buffer.update_priority(torch.tensor([0]), 2.0)
    buffer.update_priority(index[1:], torch.tensor([1.0, 1.0, 2.0]))
    sample, info = buffer.sample(return_info=True)
    return first, drawn(buffer), sorted(sample.keys()), sorted(set(info) - {"_weight"}), info["priority_weight"].dtype


@program
@later
def new_frames_have_the_largest_priority(data: Any) -> Any:
    sampler = data.PrioritizedSampler(4, alpha=1.0, beta=1.0)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4), sampler=sampler, batch_size=DRAWS)
    buffer.update_priority(buffer.extend(frames(2)), torch.tensor([2.0, 4.0]))
    buffer.extend(frames(1, 2))
    first = drawn(buffer)
    buffer.update_priority(torch.tensor([2]), 3.0)
    buffer.add(frames(1, 3)[0])
    buffer.update_priority(torch.tensor([3]), 1.0)
    second = drawn(buffer)
    buffer.extend(frames(2, 4))
    buffer.update_priority(torch.tensor([1, 2, 3]), torch.tensor([2.0, 3.0, 1.0]))
    return first, second, drawn(buffer)


@program
@later
def priorities_of_samples(data: Any) -> Any:
    buffer = data.TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=0.4, storage=data.LazyTensorStorage(4), batch_size=DRAWS, priority_key="loss"
    )
    buffer.extend(frames(4))
    whole = buffer[:].clone()
    whole["loss"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    buffer.update_tensordict_priority(whole)
    sample = buffer.sample()
    return drawn(buffer), sorted(set(sample.keys()) - {"_weight"}), sample["priority_weight"].shape, sample["index"].shape


@program
@later
def priorities_that_come_with_the_data(data: Any) -> Any:
    sampler = data.PrioritizedSampler(4, alpha=1.0, beta=1.0)
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(4), sampler=sampler, batch_size=DRAWS, priority_key="loss"
    )
    buffer.extend(frames(4).set("loss", torch.tensor([4.0, 3.0, 2.0, 1.0])))
    first = drawn(buffer)
    sample = buffer.sample()
    sample["loss"] = sample["index"].float() + 1
    buffer.update_tensordict_priority(sample)
    return first, drawn(buffer)


@program
@later
def priorities_of_trajectories(data: Any) -> Any:
    found = []
    for reduction in ("max", "min", "mean"):
        buffer = data.TensorDictReplayBuffer(
            storage=data.LazyTensorStorage(2),
            sampler=data.PrioritizedSampler(2, alpha=1.0, beta=1.0, reduction=reduction),
            batch_size=DRAWS,
            priority_key="loss",
        )
        buffer.extend(rows(2, 3))
        buffer.update_tensordict_priority(buffer[:].set("loss", torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.5, 7.0]])))
        sample, info = buffer.sample(return_info=True)
        pairs = {(int(i), round(float(w), 4)) for i, w in zip(info["index"], info["priority_weight"], strict=True)}
        found.append((sorted(pairs), sample["index"].shape, sample["priority_weight"].shape))
    return found


@program
@later
def priorities_of_several_rows(data: Any) -> Any:
    sampler = data.PrioritizedSampler(6, alpha=1.0, beta=1.0)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(6, ndim=2), sampler=sampler, batch_size=DRAWS)
    buffer.extend(rows(2, 3))
    sample, info = buffer.sample(return_info=True)
    buffer.update_priority(info["index"], torch.tensor([1.0, 2.0, 2.0, 1.0, 1.0, 3.0])[sample["a"]])
    sample, info = buffer.sample(return_info=True)
    weights = {(int(a), round(float(w), 4)) for a, w in zip(sample["a"], info["priority_weight"], strict=True)}
    return sorted(weights), [round(float(part), 1) for part in sample["a"].bincount() / DRAWS]


@program
@later
def exponents_that_change(data: Any) -> Any:
    sampler = data.PrioritizedSampler(3, alpha=1.0, beta=1.0)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(3), sampler=sampler, batch_size=DRAWS)
    buffer.update_priority(buffer.extend(frames(3)), torch.tensor([2.0, 3.0, 5.0]))
    first = drawn(buffer)
    sampler.beta = 0.0
    return first, drawn(buffer), sampler.alpha, sampler.beta


@program
@later
def without_an_exponent_all_are_alike(data: Any) -> Any:
    sampler = data.PrioritizedSampler(5, alpha=0.0, beta=1.0)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(5), sampler=sampler, batch_size=DRAWS)
    buffer.update_priority(buffer.extend(frames(5)), torch.tensor([2.0, 3.0, 5.0, 1.0, 9.0]))
    return drawn(buffer)


@program
def the_largest_priority_that_is_still_there(data: Any) -> Any:
    found = []
    for within in (False, True):
        sampler = data.PrioritizedSampler(3, alpha=1.0, beta=1.0, max_priority_within_buffer=within)
        buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(3), sampler=sampler, batch_size=DRAWS)
        buffer.update_priority(buffer.extend(frames(3)), torch.tensor([8.0, 1.0, 2.0]))
        buffer.update_priority(torch.tensor([0]), 1.0)
        found.append(round(float(sampler.default_priority), 4))
    return found


@program
def wrong_priorities(data: Any) -> Any:
    sampler = data.PrioritizedSampler(3, alpha=1.0, beta=1.0)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(3), sampler=sampler, batch_size=DRAWS)
    empty = outcome(buffer.sample)
    buffer.extend(frames(3))
    return (
        empty,
        outcome(lambda: buffer.update_priority(torch.tensor([0, 1]), torch.tensor([1.0, 2.0, 3.0]))),
        outcome(lambda: data.PrioritizedSampler(3, alpha=-1.0, beta=1.0)),
        outcome(lambda: data.PrioritizedSampler(3, alpha=1.0, beta=-1.0)),
    )


@program
@later
def slices_by_priority(data: Any) -> Any:
    sampler = data.PrioritizedSliceSampler(10, alpha=1.0, beta=1.0, num_slices=DRAWS // 4, traj_key="episode")
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(10), sampler=sampler, batch_size=DRAWS // 2)
    held = TensorDict({"a": torch.arange(10), "episode": torch.tensor([0] * 5 + [1] * 5)}, [10])
    buffer.update_priority(buffer.extend(held), torch.tensor([1.0, 2, 2, 1, 9, 1, 1, 1, 1, 9]))
    sample, info = buffer.sample(return_info=True)
    slices = sample["a"].view(-1, 2)
    share = slices[:, 0].bincount(minlength=10) / len(slices)
    return (
        bool((slices[:, 1] == slices[:, 0] + 1).all()),
        [round(float(part), 1) for part in share],
        sorted(set(sample.keys()) - {"_weight"}),
        sample["priority_weight"].shape,
        sorted({(int(a), round(float(w), 4)) for a, w in zip(sample["a"], sample["priority_weight"].view(-1), strict=True)})[
            ::2
        ],
        sample["next", "truncated"].view(-1, 2)[:3],
        {"index", "priority_weight"} <= set(info),
    )


# ---------------------------------------------------------------------- transforms


@program
@later
def transforms_in_order(data: Any) -> Any:
    buffer = data.ReplayBuffer(
        storage=data.LazyTensorStorage(4), batch_size=4, sampler=data.SamplerWithoutReplacement(shuffle=False)
    )
    buffer.extend(frames(4))
    buffer.append_transform(lambda sample: sample.set("a", sample["a"] + 1))
    buffer.insert_transform(0, torchrl_transform(10))
    return buffer.sample()["a"], len(buffer.transform)


def torchrl_transform(factor: int) -> Any:
    transforms = pytest.importorskip("torchrl.envs.transforms")

    class Times(transforms.Transform):
        def _call(self, next_tensordict: Any) -> Any:
            return next_tensordict.set("a", next_tensordict["a"] * factor)

        def forward(self, tensordict: Any) -> Any:
            return self._call(tensordict)

        def _inv_call(self, tensordict: Any) -> Any:
            return tensordict.set("a", tensordict["a"] + 1000)

    return Times()


@program
def transforms_turned_around(data: Any) -> Any:
    buffer = data.ReplayBuffer(
        storage=data.LazyTensorStorage(4), batch_size=4, sampler=data.SamplerWithoutReplacement(shuffle=False)
    )
    buffer.append_transform(torchrl_transform(10), invert=True)
    buffer.extend(frames(4))
    return buffer.storage.get(slice(None))["a"], buffer.sample()["a"]


@program
def parts_that_are_replaced(data: Any) -> Any:
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(4), batch_size=2)
    parts = data.SamplerWithoutReplacement(), data.TensorDictRoundRobinWriter(), data.LazyTensorStorage(5)
    before = buffer.sampler, buffer.writer, buffer.storage
    given = buffer.set_sampler(parts[0]), buffer.set_writer(parts[1]), buffer.set_storage(parts[2])
    return [one is other for one, other in zip(before, given, strict=True)], buffer.sampler is parts[0]


@program
@later
def made_at_first_use(data: Any) -> Any:
    calls: list[str] = []

    def storage() -> Any:
        calls.append("storage")
        return data.LazyTensorStorage(4)

    def transform() -> Any:
        calls.append("transform")
        return lambda sample: sample.set("a", sample["a"] + 1)

    buffer = data.TensorDictReplayBuffer(storage=storage, transform_factory=transform, batch_size=2)
    before = buffer.initialized, list(calls)
    index = buffer.extend(frames(1))
    return before, index, buffer.initialized, calls, buffer.sample()["a"]


@program
def wrong_arguments(data: Any) -> Any:
    return [
        outcome(call)
        for call in (
            lambda: data.ReplayBuffer(transform=lambda x: x, transform_factory=lambda: None),
            lambda: data.ReplayBuffer().sample(),
            lambda: data.ReplayBuffer(batch_size=3).sample(),
        )
    ]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[since_torchrl_013] * (name in LATER)) for name in PROGRAMS])
def test_the_same_comes_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_WARNINGS", "0")
    torchrl_trees.provide(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = shown(PROGRAMS[name](torchrls()))
    results = [theirs, shown(PROGRAMS[name](reap.data))]
    assert results[0] == results[1]
    assert results[1] != "refused"


def torchrls() -> ModuleType:
    """torchrl's names, those that its `data` does not have included."""
    module = ModuleType("torchrl_data")
    vars(module).update(vars(storages) | vars(pytest.importorskip("torchrl.data.replay_buffers")) | vars(torchrl_data))
    module.__name__ = "torchrl_data"
    return module
