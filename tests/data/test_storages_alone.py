"""Storages, samplers and writers by themselves: options, items by number, states, saves, hooks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from reap.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ListStorageCheckpointer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    Storage,
    StorageCheckpointerBase,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
    TensorStorageCheckpointer,
)
from reap.errors import CallOrderError, OptionError, SpecMismatch


def frames(count: int, start: int = 0) -> TensorDict:
    return TensorDict({"a": torch.arange(start, start + count), "b": torch.ones(count, 2)}, [count])


def filled(storage: Storage, count: int = 4) -> Storage:
    storage.set(range(count), frames(count))
    return storage


# ---------------------------------------------------------------------- options


def test_storages_of_tensors_have_a_common_base(tmp_path: Path) -> None:
    for made in (LazyTensorStorage(2), LazyMemmapStorage(2, scratch_dir=tmp_path), TensorStorage(torch.arange(2))):
        assert isinstance(made, TensorStorage)
        assert isinstance(made, Storage)
    assert isinstance(LazyStackStorage(2), ListStorage)


@pytest.mark.parametrize("option", ["compilable", "consolidated"])
def test_options_that_change_no_content(option: str) -> None:
    assert filled(LazyTensorStorage(5, **{option: True}))[:]["a"].tolist() == [0, 1, 2, 3]


def test_the_device_of_the_first_frames() -> None:
    storage = LazyTensorStorage(5, device="auto")
    filled(storage)
    assert storage.device == torch.device("cpu")
    assert TensorStorage(torch.arange(3), device="auto").device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_of_the_first_frames_is_cuda() -> None:
    storage = LazyTensorStorage(5, device="auto")
    filled(storage)
    assert storage[:].device.type == "cpu"
    other = LazyTensorStorage(5, device="auto")
    other.set(range(4), frames(4).to("cuda"))
    assert other[:]["a"].device.type == "cuda"


def test_shared_before_the_first_write(tmp_path: Path) -> None:
    for storage in (LazyTensorStorage(5, shared_init=True), LazyMemmapStorage(5, scratch_dir=tmp_path, shared_init=True)):
        assert storage.control.is_shared
        other = pickle.loads(pickle.dumps(storage))
        filled(other)
        assert storage[:]["a"].tolist() == [0, 1, 2, 3]


def test_files_that_go_with_the_storage(tmp_path: Path) -> None:
    kept, removed = LazyMemmapStorage(5, scratch_dir=tmp_path / "kept"), None
    removed = LazyMemmapStorage(5, scratch_dir=tmp_path / "removed", auto_cleanup=True)
    for storage in (kept, removed):
        filled(storage)
    del storage
    assert (tmp_path / "removed" / "a.memmap").exists()
    del kept, removed
    assert (tmp_path / "kept" / "a.memmap").exists()
    assert not (tmp_path / "removed").exists()


def test_options_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cleanup_memmap: expected True, got False: shared memory leaves no files"):
        LazyTensorStorage(5, cleanup_memmap=False)
    with pytest.raises(OptionError, match="auto_cleanup=False: expected a scratch_dir"):
        LazyMemmapStorage(5, auto_cleanup=False)
    with pytest.raises(OptionError, match="device: expected 'cpu', where priorities are kept, got 'cuda'"):
        PrioritizedSampler(5, 0.5, 0.5, device="cuda")
    assert PrioritizedSampler(5, 0.5, 0.5, device="cpu").device == torch.device("cpu")
    assert SliceSampler(slice_len=2, use_gpu=True).slice_len == 2


def test_data_for_a_storage_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="TensorStorage: expected data, got None"):
        TensorStorage(None)
    with pytest.raises(OptionError, match="expected max_size=3, as the data have, got max_size=4"):
        TensorStorage(torch.arange(3), 4)
    with pytest.raises(OptionError, match="expected data with 2 dimensions that are not empty, got"):
        TensorStorage(torch.arange(3), ndim=2)


# ---------------------------------------------------------------------- given tensors


def test_given_tensors_are_the_memory() -> None:
    given = frames(4)
    buffer = ReplayBuffer(storage=TensorStorage(given, 4), batch_size=2)
    assert (len(buffer), buffer.write_count) == (4, 4)
    assert buffer.extend(frames(3, 10)).tolist() == [0, 1, 2]
    assert given["a"].tolist() == [10, 11, 12, 3]
    given["a"][3] = 7
    assert buffer["a"].tolist() == [10, 11, 12, 7]


def test_given_rows() -> None:
    storage = TensorStorage(TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3]), ndim=2)
    assert (storage.shape, len(storage), storage.max_size) == ((2, 3), 6, 6)
    assert storage.flatten()[:]["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert storage.flatten().flatten().ndim == 1


def test_given_trees_and_copies() -> None:
    storage = TensorStorage({"x": torch.arange(3), "y": (torch.ones(3),)})
    copy = pickle.loads(pickle.dumps(storage))
    storage.set(0, {"x": torch.tensor(9), "y": (torch.tensor(5.0),)})
    assert storage[:]["x"].tolist() == [9, 1, 2]
    assert copy[:]["x"].tolist() == [0, 1, 2]
    strided = torch.arange(8)[::2]
    buffer = ReplayBuffer(storage=TensorStorage(strided))
    buffer[0] = torch.tensor(70)
    assert (buffer[:].tolist(), strided.tolist()) == ([70, 2, 4, 6], [0, 2, 4, 6])


# ---------------------------------------------------------------------- lists


def test_lists_grow() -> None:
    storage = ListStorage()
    buffer = ReplayBuffer(storage=storage, batch_size=4, collate_fn=list)
    for start in range(0, 6_000, 1_500):
        buffer.extend(list(range(start, start + 1_500)))
    assert (len(buffer), buffer[5_999], storage.get([0, 1_024, 4_096])) == (6_000, 5_999, [0, 1_024, 4_096])
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.get(slice(5_998, None)) == [5_998, 5_999]
    other = ListStorage()
    other.load_state_dict(storage.state_dict())
    assert other.get(slice(5_998, None)) == [5_998, 5_999]
    buffer.empty()
    buffer.extend(["a"])
    assert buffer[:] == ["a"]
    assert repr(storage) == "ListStorage(max_size=no limit)"


def test_a_broken_write_into_a_list_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer(storage=ListStorage(), collate_fn=list)
    buffer.extend(list(range(1_020)))
    with monkeypatch.context() as broken:
        broken.setattr(buffer.storage.ring, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            buffer.extend(list(range(20)))
    assert len(buffer) == 1_020
    buffer.extend(["b"])
    assert (len(buffer), buffer[-1]) == (1_021, "b")


def test_items_are_moved_to_the_device() -> None:
    buffer = ReplayBuffer(storage=ListStorage(3, device="cpu"))
    buffer.extend([torch.zeros(1), {"a": (torch.ones(1), "text")}, "b"])
    assert buffer[1] == {"a": (torch.ones(1), "text")}
    with pytest.raises(OptionError, match="expected 'cpu' or 'cuda', got 'nowhere'"):
        ListStorage(3, device="nowhere")


def test_lazy_stacks_of_items_of_several_shapes() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(4, stack_dim=-1), batch_size=3)
    buffer.extend(lazy_stack([TensorDict({"a": torch.zeros(2, n)}, [2]) for n in (1, 2)]))
    assert buffer[:].batch_size == (2, 2)
    assert buffer.sample().stack_dim == 1
    assert buffer.storage[[1]].batch_size == (2, 1)
    other = ReplayBuffer(storage=LazyStackStorage(4), batch_size=2)
    other.extend(["a", "b"])
    with pytest.raises(SpecMismatch, match="LazyStackStorage: expected TensorDicts, got str"):
        other.sample()


# ---------------------------------------------------------------------- items by number


@pytest.mark.parametrize(
    "numbers",
    [range(4), [0, 1, 2, 3], torch.arange(4), slice(0, 4), slice(None)],
    ids=["range", "list", "tensor", "slice", "all"],
)
def test_the_first_items(numbers: Any) -> None:
    storage = LazyTensorStorage(6)
    storage[numbers] = frames(4)
    assert storage[:]["a"].tolist() == [0, 1, 2, 3]


def test_some_held_and_some_next() -> None:
    storage = filled(LazyTensorStorage(6))
    storage.set([1, 3, 4, 5], frames(4, 10))
    assert storage[:]["a"].tolist() == [0, 10, 2, 11, 12, 13]
    storage.set(-1, frames(1, 90)[0])
    storage.set(torch.tensor(0), frames(1, 80)[0])
    assert storage[:]["a"].tolist() == [80, 10, 2, 11, 12, 90]


def test_numbers_that_cannot_be() -> None:
    storage = filled(LazyTensorStorage(6))
    for numbers in ([5], [5, 4], [4, 5, 6], [-5]):
        with pytest.raises(OptionError, match="expected numbers below 4, which it holds, then the next ones up to 5"):
            storage.set(numbers, frames(len(numbers)))
    with pytest.raises(OptionError, match="expected one number for each of 3 items, got 2"):
        storage.set([0, 1], frames(3))
    with pytest.raises(OptionError, match="expected a storage with ndim=1, got ndim=2"):
        LazyTensorStorage(6, ndim=2).set(0, frames(1))
    with pytest.raises(CallOrderError, match="expected something to be written"):
        LazyTensorStorage(6).get(0)
    assert (storage.contains(torch.tensor([0, 4, -4])).tolist(), 3 in storage, 4 in storage) == (
        [True, False, True],
        True,
        False,
    )


def test_items_one_by_one() -> None:
    assert [int(item["a"]) for item in filled(LazyTensorStorage(6))] == [0, 1, 2, 3]
    assert list(LazyTensorStorage(6)) == []
    rows = ReplayBuffer(storage=LazyTensorStorage(6, ndim=2))
    rows.extend(torch.arange(6).view(2, 3))
    assert [column.tolist() for column in rows.storage] == [[0, 3], [1, 4], [2, 5]]
    assert (rows.storage.shape, LazyTensorStorage(6, ndim=2).shape) == ((2, 3), (0, 0))


def test_slices_do_not_join_what_was_set_apart() -> None:
    storage = LazyTensorStorage(8)
    held = TensorDict({"done": torch.zeros(4, 1, dtype=torch.bool), "a": torch.arange(4)}, [4])
    storage.set(range(4), held)
    storage.set(range(4, 8), held)
    index, _ = SliceSampler(slice_len=4, end_key="done").sample(storage, 80)
    assert {tuple(one) for one in index.view(-1, 4).tolist()} == {(0, 1, 2, 3), (4, 5, 6, 7)}


# ---------------------------------------------------------------------- states and saves

STORAGES: dict[str, Callable[[], Storage]] = {
    "RAM": lambda: LazyTensorStorage(6),
    "files": lambda: LazyMemmapStorage(6),
    "list": lambda: ListStorage(6),
    "lazy stack": lambda: LazyStackStorage(6),
}


@pytest.mark.parametrize("made", STORAGES.values(), ids=STORAGES)
def test_a_storage_is_loaded(made: Callable[[], Storage], tmp_path: Path) -> None:
    storage = filled(made())
    by_state, by_folder, by_checkpointer = made(), made(), made()
    by_state.load_state_dict(storage.state_dict())
    storage.save(tmp_path / "save")
    by_folder.load(tmp_path / "save")
    storage.checkpointer.dumps(storage, tmp_path / "again")
    by_checkpointer.checkpointer.loads(by_checkpointer, tmp_path / "again")
    for other in (by_state, by_folder, by_checkpointer):
        assert len(other) == 4
        assert [int(item["a"]) for item in other] == [0, 1, 2, 3]


def test_a_state_is_a_copy() -> None:
    storage = filled(LazyTensorStorage(6))
    state = storage.state_dict()
    storage.set(0, frames(1, 50)[0])
    assert state["frames"]["a",].tolist() == [0, 1, 2, 3]


def test_saves_of_something_else(tmp_path: Path) -> None:
    filled(LazyTensorStorage(6)).dumps(tmp_path / "save")
    with pytest.raises(SpecMismatch, match="max_size=7, got max_size=6"):
        LazyTensorStorage(7).loads(tmp_path / "save")
    with pytest.raises(SpecMismatch, match="expected a state from state_dict or dumps"):
        LazyTensorStorage(6).load_state_dict({"something": "else"})
    with pytest.raises(OptionError):
        LazyTensorStorage(6).loads(tmp_path / "nothing")


@pytest.mark.parametrize("path", ["storage", "buffer"])
def test_hooks(path: str, tmp_path: Path) -> None:
    buffer, other = ReplayBuffer(storage=LazyTensorStorage(6)), ReplayBuffer(storage=LazyTensorStorage(6))
    buffer.extend(frames(4))
    seen = []
    buffer.register_save_hook(lambda held, path: seen.append(path) or held.exclude("b"))
    buffer.storage.register_save_hook(lambda held, path: held.clone().set("a", held["a"] + 1))
    other.register_load_hook(lambda held, out: held.clone().set("b", torch.zeros(4, 2)))
    (saving, loading) = (buffer.storage, other.storage) if path == "storage" else (buffer, other)
    saving.dumps(tmp_path / "save")
    assert not (tmp_path / "save" / "b.memmap").exists()
    loading.loads(tmp_path / "save")
    assert (other["a"].tolist(), float(other["b"].sum()), len(seen)) == ([1, 2, 3, 4], 0.0, 1)
    assert buffer["a"].tolist() == [0, 1, 2, 3]


def test_hooks_that_cannot_be(tmp_path: Path) -> None:
    storage = filled(LazyTensorStorage(6))
    with pytest.raises(OptionError, match="hook: expected a function, got int: 3"):
        storage.register_save_hook(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="a save of items has no tensors for a hook"):
        ListStorage().register_load_hook(lambda held, out: held)
    storage.register_save_hook(lambda held, path: None)
    with pytest.raises(SpecMismatch, match="hook of a save: expected it to return a TensorDict, got NoneType"):
        storage.dumps(tmp_path / "save")
    assert not (tmp_path / "save").exists()


def test_checkpointers_of_a_buffer(tmp_path: Path) -> None:
    checkpointer = TensorStorageCheckpointer()
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), checkpointer=checkpointer)
    assert buffer.storage.checkpointer is checkpointer
    assert isinstance(ReplayBuffer(checkpointer=TensorStorageCheckpointer).storage.checkpointer, StorageCheckpointerBase)
    assert isinstance(ListStorage().checkpointer, ListStorageCheckpointer)

    class Own(StorageCheckpointerBase):
        def dumps(self, storage: Any, path: str | Path) -> None:
            Path(path).write_text(str(len(storage)))

    storage = filled(LazyTensorStorage(6))
    storage.checkpointer = Own()
    storage.dumps(tmp_path / "count")
    assert (tmp_path / "count").read_text() == "4"
    with pytest.raises(OptionError, match=r"checkpointer: expected the format of reap, got Own\(\), which writes another"):
        ReplayBuffer(checkpointer=Own)
    with pytest.raises(OptionError, match="checkpointer: expected a StorageCheckpointerBase of reap.data, got int: 3"):
        ReplayBuffer(checkpointer=3)


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "random": RandomSampler,
    "once": lambda: SamplerWithoutReplacement(shuffle=False),
    "priorities": lambda: PrioritizedSampler(6, alpha=1.0, beta=1.0, eps=0.0),
    "slices": lambda: SliceSampler(slice_len=2, traj_key="a"),
    "slices once": lambda: SliceSamplerWithoutReplacement(slice_len=2, traj_key="a"),
    "slices by priority": lambda: PrioritizedSliceSampler(6, 1.0, 1.0, eps=0.0, slice_len=2, traj_key="a"),
}


@pytest.mark.parametrize("made", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_by_themselves(made: Callable[[], Sampler], tmp_path: Path) -> None:
    storage = LazyTensorStorage(6)
    storage.set(range(6), TensorDict({"a": torch.arange(6) // 3}, [6]))
    sampler = made()
    assert sampler.can_sample(storage, 2)
    assert not sampler.can_sample(LazyTensorStorage(6), 2)
    index, info = sampler.sample(storage, 2)
    assert index.shape == (2,)
    assert all(len(value) == 2 for value in info.values())
    sampler.extend(index)
    sampler.add(0)
    sampler.mark_update(index, storage=storage)
    assert sampler.default_priority == 1.0
    sampler.dumps(tmp_path / "sampler")
    other = made()
    other.loads(tmp_path / "sampler")
    assert str(other.state_dict()) == str(sampler.state_dict())
    with pytest.raises(OptionError, match="sampler: expected a storage of reap.data, got int: 3"):
        sampler.sample(3, 2)  # pyright: ignore[reportArgumentType]


def test_indices_of_several_rows_by_a_sampler() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(6, ndim=2))
    buffer.extend(torch.arange(6).view(2, 3))
    rows, columns = RandomSampler().sample(buffer.storage, 50)[0]
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {(row, column) for row in (0, 1) for column in (0, 1, 2)}


def test_frames_that_changed_get_the_priority_of_new_ones() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 1.0, 1.0, eps=0.0), batch_size=400)
    index = buffer.extend(torch.arange(3))
    buffer.update_priority(index, torch.tensor([1.0, 2.0, 4.0]))
    assert buffer.sampler.default_priority == 4.0
    buffer.mark_update(index[:1])
    weights = buffer.sample(return_info=True)[1]["priority_weight"]
    assert sorted(set(weights.tolist())) == [0.5, 1.0]


def test_a_writer_by_itself(tmp_path: Path) -> None:
    storage, writer = LazyTensorStorage(6, ndim=2), RoundRobinWriter(compilable=True)
    with pytest.raises(CallOrderError, match=r"writer: expected a storage to write to, found none; call register_storage"):
        writer.extend(frames(2))
    writer.register_storage(storage)
    assert writer.extend(torch.arange(4).view(2, 2)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert writer.add(torch.tensor([8, 9])).tolist() == [[0, 2], [1, 2]]
    assert storage[:].tolist() == [[0, 1, 8], [2, 3, 9]]
    with pytest.raises(SpecMismatch, match="expected at least 2 batch dimensions"):
        writer.extend(torch.arange(2))
    with pytest.raises(CallOrderError):
        pickle.loads(pickle.dumps(writer)).extend(frames(2))
    writer.dumps(tmp_path / "writer")
    writer.loads(tmp_path / "writer")
    with pytest.raises(OptionError, match="expected a storage with ndim=1, got ndim=2"):
        TensorDictMaxValueWriter().register_storage(storage)


# ---------------------------------------------------------------------- torchrl's objects


def test_objects_of_torchrl_are_refused_with_the_conversion() -> None:
    theirs = pytest.importorskip("torchrl.data")
    advice = "that is torchrl's: use the class of this name from reap.data, with the same arguments"
    wrong: list[Callable[[], Any]] = [
        lambda: ReplayBuffer(storage=theirs.LazyTensorStorage(3)),
        lambda: ReplayBuffer(sampler=theirs.RandomSampler()),
        lambda: ReplayBuffer(writer=theirs.RoundRobinWriter()),
        lambda: TensorDictReplayBuffer(storage=lambda: theirs.ListStorage(3)),
        lambda: ReplayBuffer().set_sampler(theirs.RandomSampler()),
        lambda: ReplayBuffer().set_storage(theirs.ListStorage(3)),
        lambda: ReplayBuffer().set_writer(theirs.RoundRobinWriter()),
        lambda: RandomSampler().sample(theirs.ListStorage(3), 2),
        lambda: RoundRobinWriter().register_storage(theirs.ListStorage(3)),
    ]
    for call in wrong:
        with pytest.raises(OptionError, match=advice):
            call()


def test_a_spec_is_no_transform() -> None:
    theirs = pytest.importorskip("torchrl.data")
    with pytest.raises(OptionError, match="transform: expected a function, or an object with forward or inv"):
        ReplayBuffer(transform=theirs.Unbounded(3))


@pytest.mark.parametrize("whole", [True, False], ids=["a buffer", "a storage"])
def test_hooks_see_nested_tensordicts_with_their_own_size(tmp_path: Path, whole: bool) -> None:
    seen: list[torch.Size] = []

    def note(frames: TensorDict, **_options: object) -> TensorDict:
        seen.append(frames["agents"].batch_size)
        return frames

    def made() -> ReplayBuffer:
        buffer = ReplayBuffer(storage=LazyTensorStorage(10))
        buffer.storage.register_save_hook(note)
        buffer.storage.register_load_hook(note)
        return buffer

    first, second = made(), made()
    agents = TensorDict({"reward": torch.arange(12.0).reshape(4, 3)}, [4, 3])
    first.extend(TensorDict({"agents": agents}, [4]))
    (first if whole else first.storage).dumps(tmp_path / "save")
    (second if whole else second.storage).loads(tmp_path / "save")
    assert seen == [torch.Size([4, 3])] * 2
    assert second[:]["agents"].batch_size == torch.Size([4, 3])
    assert torch.equal(second[:]["agents", "reward"], agents["reward"])
