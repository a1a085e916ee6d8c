"""`ReplayBufferEnsemble`: which buffers a sample is made of, and what is known of its frames."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.storages import LazyTensorStorage, ListStorage
from reap.errors import CallOrderError, OptionError, SpecMismatch

PLACES = 10


def member(number: int, kind: Any = TensorDictReplayBuffer, key: str = "a", **options: Any) -> ReplayBuffer:
    """A buffer whose frames are 100 * number + place."""
    buffer = kind(storage=LazyTensorStorage(PLACES), **options)
    buffer.extend(TensorDict({key: torch.arange(5) + 100 * number}, [5]))
    return buffer


def ensemble(count: int = 3, seed: int = 0, **options: Any) -> ReplayBufferEnsemble:
    options.setdefault("generator", torch.Generator().manual_seed(seed))
    return ReplayBufferEnsemble(*map(member, range(count)), **options)


def test_each_buffer_once() -> None:
    sample, info = ensemble(batch_size=6, sample_from_all=True).sample(return_info=True)
    assert sample.shape == (3, 2)
    assert (sample["a"] // 100).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert sample["index", "buffer_ids"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(sample["a"] % 100, sample["index", "index"])
    assert bool((info["index"] == sample["index"]).all())


def test_buffers_as_likely_as_p_says() -> None:
    chosen = ensemble(p=[2, 0, 6], num_buffer_sampled=400).sample(400)["index", "buffer_ids"].reshape(-1)
    counts = chosen.bincount(minlength=3).tolist()
    assert counts[1] == 0
    assert abs(counts[0] - 100) < 5 * (400 * 0.25 * 0.75) ** 0.5


def test_all_are_alike_without_p() -> None:
    chosen = ensemble(num_buffer_sampled=300).sample(300)["index", "buffer_ids"].reshape(-1)
    assert all(abs(count - 100) < 5 * (300 * 2 / 9) ** 0.5 for count in chosen.bincount(minlength=3).tolist())


def test_a_number_of_buffers() -> None:
    sample = ensemble(num_buffer_sampled=2).sample(6)
    assert sample.shape == (2, 3)
    assert torch.equal(sample["a"] // 100, sample["index", "buffer_ids"])
    assert (sample["index", "buffer_ids"] == sample["index", "buffer_ids"][:, :1]).all()


def test_one_generator_for_all() -> None:
    first, second = ensemble(batch_size=6), ensemble(batch_size=6)
    assert all(torch.equal(first.sample()["a"], second.sample()["a"]) for _ in range(10))
    assert any(not torch.equal(first.sample()["a"], ensemble(batch_size=6, seed=1).sample()["a"]) for _ in range(3))


def test_buffers_with_other_keys_are_stacked_lazily() -> None:
    mixed = ReplayBufferEnsemble(member(0), member(1, key="b"), sample_from_all=True)
    sample = mixed.sample(4)
    assert isinstance(sample, LazyStackedTensorDict)
    assert (sample[0]["a"] < 5).all()
    assert (sample[1]["b"] >= 100).all()
    assert sample["index", "buffer_ids"].tolist() == [[0, 0], [1, 1]]


def test_plain_buffers_storages_and_lists() -> None:
    plain = ReplayBufferEnsemble(member(0, ReplayBuffer), member(1, ReplayBuffer), sample_from_all=True)
    sample, info = plain.sample(4, return_info=True)
    assert set(sample.keys()) == {"a", "index"}
    assert sample["index", "buffer_ids"].tolist() == [[0, 0], [1, 1]]
    assert torch.equal(sample["index", "index"], sample["a"] % 100)
    assert bool((info["index"] == sample["index"]).all())
    storages = ReplayBufferEnsemble(LazyTensorStorage(4), ListStorage(4), sample_from_all=True)
    storages[0].extend(torch.zeros(2, 3))
    storages[1].extend(["a"])
    assert [type(part) for part in storages.sample(4)] == [torch.Tensor, list]


def test_members_and_the_whole_have_their_transforms() -> None:
    def doubled(data: TensorDict) -> TensorDict:
        return data.set("a", data["a"] * 2)

    class Shape:
        def forward(self, data: TensorDict) -> TensorDict:
            return data.set("shape", torch.tensor(data.shape).expand(*data.shape, 2))

    both = ReplayBufferEnsemble(
        member(1, transform=doubled), member(2), sample_from_all=True, transform=lambda data: data.set("b", data["a"] + 1)
    ).append_transform(Shape())
    sample = both.sample(4)
    assert (sample["a"][0] >= 200).all()
    assert (sample["a"][0] % 2 == 0).all()
    assert torch.equal(sample["b"], sample["a"] + 1)
    assert sample["shape"][0, 0].tolist() == [2, 2]
    with pytest.raises(OptionError, match="transform: expected a function"):
        both.append_transform(3)


def test_collate_fn_gets_the_samples_of_the_buffers() -> None:
    joined = ensemble(sample_from_all=True, collate_fn=torch.cat).sample(6)
    assert joined.shape == (6,)
    assert (joined["a"] // 100).tolist() == [0, 0, 1, 1, 2, 2]


def test_priorities_reach_the_buffer_that_frames_are_of() -> None:
    members = [member(number, sampler=PrioritizedSampler(PLACES, alpha=1.0, beta=1.0, eps=0.0)) for number in range(2)]
    both = ReplayBufferEnsemble(*members, sample_from_all=True)
    sample, info = both.sample(10, return_info=True)
    assert info["priority_weight"].shape == (2, 5)
    both.update_priority(TensorDict({"buffer_ids": torch.zeros(5).long(), "index": torch.arange(5)}, [5]), 0.0)
    index = TensorDict({"buffer_ids": torch.tensor([[0], [1]]), "index": torch.tensor([[2], [3]])}, [2, 1])
    both.update_priority(index, torch.tensor([[5.0], [1e9]]))
    both.update_priority(sample["index"][:0], 1.0)
    drawn = both.sample(40)["index", "index"]
    assert (drawn[0] == 2).all()
    assert (drawn[1] == 3).all()


def test_priorities_where_members_differ_in_dimensions() -> None:
    rows = TensorDictReplayBuffer(storage=LazyTensorStorage(6, ndim=2), sampler=PrioritizedSampler(6, 1.0, 1.0, eps=0.0))
    rows.extend(TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3]))
    both = ReplayBufferEnsemble(member(1), rows, sample_from_all=True)
    _, info = both.sample(40, return_info=True)
    assert info["index"][1]["index"].shape == (20, 2)
    target = (info["index"][1]["index"] == torch.tensor([1, 2])).all(-1)
    both.update_priority(info["index"], torch.stack([torch.ones(20), target.double()]))
    assert set(both.sample(40)[1]["a"].tolist()) == {5}


def test_buffers_by_number_slice_and_place() -> None:
    three = ensemble(batch_size=4, p=[1, 2, 1])
    assert len(three) == 3
    assert three[1] is three.buffers[1]
    assert three[0, 2]["a"] == 2
    assert three[:, 2]["a"].tolist() == [2, 102, 202]
    assert three[1:, :2]["a"].tolist() == [[100, 101], [200, 201]]
    part = three[1:]
    assert part.buffers == three.buffers[1:]
    assert (part.sample()["a"] >= 100).all()
    assert part.sample()["index", "buffer_ids"].max() <= 1


def test_buffers_are_written_one_by_one() -> None:
    three = ensemble()
    for write in (three.extend, three.add):
        with pytest.raises(CallOrderError, match=r"ensemble\[0\].extend"):
            write(TensorDict({"a": torch.arange(3)}, [3]))
    three[0].extend(TensorDict({"a": torch.arange(3)}, [3]))
    assert three.write_count == 18
    three.empty()
    assert [len(buffer) for buffer in three.buffers] == [0, 0, 0]
    with pytest.raises(CallOrderError, match="found it empty"):
        three.sample(3)


def test_iteration() -> None:
    samples = [sample.shape for _, sample in zip(range(3), ensemble(batch_size=6), strict=False)]
    assert samples == [(3, 2)] * 3


@pytest.mark.parametrize("by", ["folder", "state"])
def test_samples_go_on_after_a_load(by: str, tmp_path: Path) -> None:
    source, target = ensemble(batch_size=6), ensemble(batch_size=6, seed=7, generator=None)
    source[1].extend(TensorDict({"a": torch.arange(3)}, [3]))
    source.sample()
    if by == "folder":
        source.dumps(tmp_path / "saved")
        source.dumps(tmp_path / "saved")
        target.loads(tmp_path / "saved")
    else:
        target.load_state_dict(source.state_dict())
    for _ in range(100):
        assert bool((source.sample() == target.sample()).all())


def test_a_load_that_one_buffer_refuses_changes_none(tmp_path: Path) -> None:
    source = ensemble(2)
    source[0].extend(TensorDict({"a": torch.arange(2)}, [2]))
    target = ReplayBufferEnsemble(member(5), member(6, key="b"))
    for load in (lambda: target.load_state_dict(source.state_dict()), lambda: target.loads(tmp_path / "saved")):
        source.dumps(tmp_path / "saved")
        with pytest.raises(SpecMismatch, match="storage that holds"):
            load()
        assert target[0][:]["a"].tolist() == [500, 501, 502, 503, 504]
    with pytest.raises(SpecMismatch, match="expected the states of 3 buffers, got 2"):
        ensemble(3).load_state_dict(source.state_dict())
    with pytest.raises(SpecMismatch, match="expected 3 saved buffers, found 2"):
        ensemble(3).loads(tmp_path / "saved")
    with pytest.raises(OptionError, match="expected a folder that dumps wrote"):
        ensemble(3).loads(tmp_path)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"p": [1, 1], "sample_from_all": True}, "either p or sample_from_all=True, got both"),
    ({"p": [1]}, "p: expected 2 numbers from 0 on"),
    ({"p": [0, 0]}, "p: expected 2 numbers from 0 on"),
    ({"p": "ab"}, "p: expected 2 numbers from 0 on"),
    ({"p": [1, -1]}, "p: expected 2 numbers from 0 on"),
    ({"p": [1, float("nan")]}, "p: expected 2 numbers from 0 on"),
    ({"p": [1, float("inf")]}, "p: expected 2 numbers from 0 on"),
    ({"num_buffer_sampled": 0}, "num_buffer_sampled: expected a positive integer"),
    ({"batch_size": 0}, "batch_size: expected a positive integer"),
    ({"transform": 1}, "transform: expected a function"),
]


@pytest.mark.parametrize(("options", "match"), WRONG)
def test_options_that_cannot_work(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        ensemble(2, **options)


def test_samples_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="at least one buffer"):
        ReplayBufferEnsemble()
    with pytest.raises(OptionError, match="expected buffers or storages of reap.data, got int"):
        ReplayBufferEnsemble(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="expected a batch_size"):
        ensemble().sample()
    with pytest.raises(OptionError, match="expected a multiple of 3, the number of buffers sampled, got 4"):
        ensemble().sample(4)
    assert repr(ensemble(1, sample_from_all=True)).endswith("sampled from: all)")


def test_samples_have_the_shapes_of_torchrl() -> None:
    data = pytest.importorskip("torchrl.data")
    theirs = []
    for number in range(3):
        buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(10))
        buffer.extend(TensorDict({"a": torch.arange(5) + 100 * number}, [5]))
        theirs.append(buffer)
    for options in ({"sample_from_all": True}, {"p": [0.5, 0.25, 0.25]}, {"num_buffer_sampled": 2}, {}):
        expected = data.ReplayBufferEnsemble(*theirs, batch_size=6, **options).sample()
        found = ensemble(3, batch_size=6, **options).sample()
        keys = sorted(expected.keys(True, True), key=str)
        assert sorted(found.keys(True, True), key=str) == keys
        assert [found[key].shape for key in keys] == [expected[key].shape for key in keys]


# ---------------------------------------------------------------------- indices

MEMBERS: dict[str, tuple[Any, list[int]]] = {
    "...": (..., [0, 1, 2]),
    "slice": (slice(None, None, 2), [0, 2]),
    "list": ([2, 0], [2, 0]),
    "range": (range(1, 3), [1, 2]),
    "tensor": (torch.tensor([2, 2]), [2, 2]),
    "array": (np.array([-1, 0]), [-1, 0]),
    "mask": (torch.tensor([True, False, True]), [0, 2]),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_members_by_every_kind_of_index(kind: str) -> None:
    three = ensemble(batch_size=12, p=[1, 2, 1])
    index, numbers = MEMBERS[kind]
    part = three[index]
    assert part.buffers == tuple(three.buffers[number] for number in numbers)
    assert set((part.sample()["a"] // 100).flatten().tolist()) <= {number % 3 for number in numbers}
    expected = [100 * (number % 3) for number in numbers]
    assert three[index, 2]["a"].tolist() == [first + 2 for first in expected]
    assert three[index, :2]["a"].tolist() == [[first, first + 1] for first in expected]
    assert three[index, ...]["a"].shape == (len(numbers), 5)


def test_one_member_and_its_contents() -> None:
    three = ensemble()
    for number in (1, -2, torch.tensor(1), np.int64(1)):
        assert three[number] is three.buffers[1]
        assert three[number, [0, 3]]["a"].tolist() == [100, 103]
    rows = ReplayBufferEnsemble(*[ReplayBuffer(storage=LazyTensorStorage(6, ndim=2)) for _ in range(2)])
    for number, buffer in enumerate(rows.buffers):
        buffer.extend(TensorDict({"a": torch.arange(6).view(2, 3) + 100 * number}, [2, 3]))
    assert rows[..., 1, 2]["a"].tolist() == [5, 105]
    assert rows[0, 1, 2]["a"] == 5


@pytest.mark.parametrize("index", ["a", None, 1.5, torch.zeros(1, 1).long(), [[0]], torch.tensor([True])])
def test_what_is_no_index_of_a_member(index: Any) -> None:
    with pytest.raises(OptionError, match=r"expected a number, slice, range, list or tensor of numbers, or \.\.\., for its 3"):
        ensemble()[index]
    with pytest.raises(IndexError):
        ensemble()[3]
    with pytest.raises(OptionError, match="expected at least one buffer"):
        ensemble()[[]]


def test_contents_are_written_over() -> None:
    three = ensemble()
    three[0, 1] = TensorDict({"a": torch.tensor(7)})
    three[1:, 2] = TensorDict({"a": torch.tensor([8, 9])}, [2])
    assert [buffer[:]["a"].tolist() for buffer in three.buffers] == [
        [0, 7, 2, 3, 4],
        [100, 101, 8, 103, 104],
        [200, 201, 9, 203, 204],
    ]
    with pytest.raises(CallOrderError, match=r"expected two indices, .* ensemble\[0, 2\] = data"):
        three[0] = ReplayBuffer()


# ---------------------------------------------------------------------- trajectories, trees, samples made ahead


def test_items_that_are_trajectories() -> None:
    members = [TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(5)) for _ in range(2)]
    for number, buffer in enumerate(members):
        buffer.extend(TensorDict({"a": torch.arange(12).view(3, 4) + 100 * number}, [3, 4]))
    both = ReplayBufferEnsemble(*members, sample_from_all=True)
    sample, info = both.sample(20, return_info=True)
    assert sample.batch_size == (2, 10, 4)
    assert sample["index"].batch_size == (2, 10, 4)
    assert info["index"].batch_size == (2, 10)
    assert torch.equal(sample["a"], 100 * sample["index", "buffer_ids"] + 4 * sample["index", "index"] + torch.arange(4))
    largest = sample["a"][:, :, -1:] * torch.tensor([0, 0, 1, 0])
    both.update_priority(sample["index"], largest)
    powers = [buffer.sampler.state_dict()["powers"][:3] for buffer in members]
    for number, own in enumerate(powers):
        drawn = sample["index", "index"][number, :, 0].unique()
        assert own[drawn].tolist() == [100 * number + 4 * place + 3 for place in drawn.tolist()]
    both.update_priority(info["index"], torch.zeros(2, 1).expand(2, 10))
    for number, buffer in enumerate(members):
        drawn = info["index"]["index"][number].unique()
        assert not buffer.sampler.state_dict()["powers"][:3][drawn].any()


def test_dicts_and_tuples() -> None:
    members = [ReplayBuffer(storage=storage(5)) for storage in (LazyTensorStorage, ListStorage)]
    for number, buffer in enumerate(members):
        buffer.extend({"x": torch.arange(3) + 100 * number, "pair": (torch.zeros(3, 2),)})
    sample, info = ReplayBufferEnsemble(*members, sample_from_all=True).sample(8, return_info=True)
    assert sample["pair"][0].shape == (2, 4, 2)
    ragged = [ReplayBuffer(storage=ListStorage(2)) for _ in range(2)]
    for buffer in ragged:
        buffer.extend([torch.zeros(2), torch.zeros(3)])
    for _ in range(20):
        parts = ReplayBufferEnsemble(*ragged, sample_from_all=True).sample(4)
        assert len(parts) == 2
        assert all(len(part) == 2 and set(map(len, part)) <= {2, 3} for part in parts)
    assert torch.equal(sample["x"], 100 * info["index"]["buffer_ids"] + info["index"]["index"])


def with_b(data: TensorDict) -> TensorDict:
    return data.set("b", data["a"] + 1)


def test_samples_made_ahead_are_those_of_one_that_makes_none() -> None:
    plain, ahead = ensemble(batch_size=6), ensemble(batch_size=6, prefetch=3)
    for _ in range(10):
        first, second = plain.sample(return_info=True), ahead.sample(return_info=True)
        assert bool((first[0] == second[0]).all())
        assert bool((first[1]["index"] == second[1]["index"]).all())
    assert ahead.sample(3).shape == (3, 1)
    ahead.append_transform(with_b)
    sample = ahead.sample()
    assert torch.equal(sample["b"], sample["a"] + 1)
    assert ahead[1:].sample(4).shape == (2, 2)
    ahead.empty()
    with pytest.raises(CallOrderError, match="found it empty"):
        ahead.sample()
    twin = pickle.loads(pickle.dumps(ahead))
    twin[0].extend(TensorDict({"a": torch.arange(3)}, [3]))
    assert twin[[0]].sample(3)["a"].max() < 3
    with pytest.raises(OptionError, match="prefetch: expected a positive integer"):
        ensemble(prefetch=-1)


@pytest.mark.parametrize("by", ["folder", "state"])
def test_samples_made_ahead_go_on_after_a_load(by: str, tmp_path: Path) -> None:
    source, target = ensemble(batch_size=6, prefetch=2), ensemble(batch_size=6, seed=7, prefetch=2)
    source.sample()
    target.sample()
    if by == "folder":
        source.dumps(tmp_path / "saved")
        target.loads(tmp_path / "saved")
    else:
        target.load_state_dict(source.state_dict())
    for _ in range(20):
        assert bool((source.sample() == target.sample()).all())
