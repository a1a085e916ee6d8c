"""Saving a buffer and going on from that: nothing is lost, nothing half written is read, nothing refused changes anything."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import signal
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.saving import folders
from reap.data.saving.rest import REST
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from reap.errors import CallOrderError, OptionError, SpecMismatch
from tests import warm
from tests.data.claims import claimed
from tests.pairwise import by_default, each_value, pairwise

Saved = Callable[[ReplayBuffer, ReplayBuffer, Path], None]


@tensorclass
class Point:
    x: torch.Tensor


def frames(start: int, count: int, rows: tuple[int, ...] = ()) -> TensorDict:
    """Frames that say which they are, in entries of several kinds."""
    number = torch.arange(start, start + count).expand(*rows, count).clone()
    return TensorDict(
        {
            "number": number,
            "next": {"half": number.to(torch.bfloat16), "even": number % 2 == 0},
            "nothing": torch.zeros(*rows, count, 0),
            "row": torch.arange(len(rows) + 1).expand(*rows, count, len(rows) + 1).clone(),
        },
        [*rows, count],
    )


def made(storage: Any = None, **options: Any) -> ReplayBuffer:
    generator = torch.Generator().manual_seed(5)
    return ReplayBuffer(storage=LazyTensorStorage(10) if storage is None else storage, generator=generator, **options)


def by_folder(source: ReplayBuffer, target: ReplayBuffer, path: Path) -> None:
    source.dumps(path / "saved")
    target.loads(path / "saved")


def by_state(source: ReplayBuffer, target: ReplayBuffer, path: Path) -> None:
    torch.save(source.state_dict(), path / "state.pt")
    target.load_state_dict(torch.load(path / "state.pt", weights_only=True))


WAYS = [by_folder, by_state]
both = pytest.mark.parametrize("moved", WAYS)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, TensorDictBase):
        return one.batch_size == other.batch_size and bool((one == other).all())
    if isinstance(one, tuple):
        return all(map(alike, one, other))
    return torch.equal(one, other)


def assert_same_samples(one: ReplayBuffer, other: ReplayBuffer, size: int = 4, count: int = 100) -> None:
    for _ in range(count):
        (first, first_info), (second, second_info) = one.sample(size, return_info=True), other.sample(size, return_info=True)
        assert alike(first, second)
        assert first_info.keys() == second_info.keys()
        assert all(alike(first_info[key], second_info[key]) for key in first_info)


# What comes back


@both
@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize("written", [4, 10, 27])
def test_samples_go_on_as_if_the_buffer_had_never_stopped(
    moved: Saved, prefetch: int | None, written: int, tmp_path: Path
) -> None:
    with_prefetch = {"prefetch": prefetch, "batch_size": 4}
    buffer, twin = made(**with_prefetch), made(**with_prefetch)
    for start in range(0, written, 3):
        buffer.extend(frames(start, 3))
    buffer.sample()
    moved(buffer, twin, tmp_path)
    assert alike(buffer[:], twin[:])
    assert (len(twin), twin.write_count) == (len(buffer), buffer.write_count)
    assert_same_samples(buffer, twin)
    for one in (buffer, twin):
        one.extend(frames(100, 5))
    assert buffer[:]["number"].tolist() == twin[:]["number"].tolist()
    if prefetch is None:  # else chance decides which samples are made before the write
        assert_same_samples(buffer, twin, count=5)


@both
@pytest.mark.parametrize("rows", [(2,), (2, 3)])
@pytest.mark.parametrize("written", [2, 9])
def test_rows_stay_apart(moved: Saved, rows: tuple[int, ...], written: int, tmp_path: Path) -> None:
    ndim = len(rows) + 1
    buffer, twin = made(LazyTensorStorage(24, ndim=ndim)), made(LazyTensorStorage(24, ndim=ndim))
    for start in range(written):
        buffer.extend(frames(start, 1, rows))
    moved(buffer, twin, tmp_path)
    assert alike(buffer[:], twin[:])
    assert_same_samples(buffer, twin, count=10)
    for one in (buffer, twin):
        one.extend(frames(50, 3, rows))
    assert alike(buffer[:], twin[:])


def steps(start: int, count: int, length: int = 5) -> TensorDict:
    """Frames of episodes of this length, one behind the other."""
    number = torch.arange(start, start + count)
    done = (number % length == length - 1).unsqueeze(-1)
    flags = {"done": done, "terminated": done, "truncated": torch.zeros_like(done)}
    return TensorDict({"number": number, "collector": {"traj_ids": number // length}, "next": flags}, [count])


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "without replacement, drop_last": lambda: SamplerWithoutReplacement(drop_last=True),
    "prioritised": lambda: PrioritizedSampler(40, 0.7, 0.5),
    "slices": lambda: SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")),
    "slices by end": lambda: SliceSampler(num_slices=3, end_key=("next", "done"), strict_length=False),
    "slices, cached": lambda: SliceSampler(slice_len=3, traj_key=("collector", "traj_ids"), cache_values=True),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=3, traj_key=("collector", "traj_ids")),
}


@pytest.mark.parametrize(
    ("sampler", "written", "prefetch", "moved"), each_value(pairwise(list(SAMPLERS), [18, 70], [None, 2], WAYS))
)
def test_every_sampler_goes_on(moved: Saved, sampler: str, written: int, prefetch: int | None, tmp_path: Path) -> None:
    options = {"batch_size": 6, "prefetch": prefetch}
    buffer, twin = (made(LazyTensorStorage(40), sampler=SAMPLERS[sampler](), **options) for _ in range(2))
    for start in range(0, written, 4):
        buffer.extend(steps(start, 4))
        if start >= 12:
            buffer.sample()
    twin.extend(steps(1000, 9))
    moved(buffer, twin, tmp_path)
    assert_same_samples(buffer, twin, size=6)
    if prefetch is None:
        for one in (buffer, twin):
            one.extend(steps(1100, 10))
        assert_same_samples(buffer, twin, size=6, count=20)


@both
@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("written", [5, 17])
def test_observations_that_are_stored_once(moved: Saved, source: bool, target: bool, written: int, tmp_path: Path) -> None:
    buffer, twin = (made(LazyTensorStorage(10, observations_once=once)) for once in (source, target))
    for start in range(0, written, 2):
        pixels = torch.arange(start, start + 2)[:, None].expand(2, 40).clone()
        buffer.extend(TensorDict({"pixels": pixels, "next": {"pixels": pixels + 1 + 100 * (pixels % 5 == 4)}}, [2]))
    moved(buffer, twin, tmp_path)
    assert alike(buffer[:], twin[:])
    assert_same_samples(buffer, twin, count=10)


@both
def test_priorities_come_back(moved: Saved, tmp_path: Path) -> None:
    def prioritised() -> ReplayBuffer:
        return made(sampler=PrioritizedSampler(10, alpha=0.7, beta=0.5))

    buffer, twin = prioritised(), prioritised()
    buffer.extend(frames(0, 8))
    buffer.sample(2)
    buffer.update_priority(torch.arange(8), torch.arange(1.0, 9.0))
    moved(buffer, twin, tmp_path)
    assert_same_samples(buffer, twin)
    for one in (buffer, twin):
        one.update_priority(torch.tensor([0]), 50.0)
        one.extend(frames(8, 4))
    assert_same_samples(buffer, twin)


@both
def test_the_greatest_values_go_on(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = (made(LazyTensorStorage(3), writer=TensorDictMaxValueWriter("number")) for _ in range(2))
    buffer.extend(frames(0, 5))
    moved(buffer, twin, tmp_path)
    assert twin.extend(frames(3, 1)).tolist() == buffer.extend(frames(3, 1)).tolist()
    assert buffer[:]["number"].tolist() == twin[:]["number"].tolist()


@pytest.mark.parametrize(
    ("moved", "source", "target"), each_value(product(WAYS, ["ram", "shared", "files"], ["ram", "shared", "files"]))
)
def test_any_storage_loads_what_any_other_saved(moved: Saved, source: str, target: str, tmp_path: Path) -> None:
    kinds = {"ram": LazyTensorStorage, "shared": LazyTensorStorage, "files": LazyMemmapStorage}
    buffer, twin = (made(kinds[kind](10), shared=kind == "shared") for kind in (source, target))
    buffer.extend(frames(0, 13))
    moved(buffer, twin, tmp_path)
    assert alike(buffer[:], twin[:])
    assert_same_samples(buffer, twin, count=5)


@both
def test_plain_tensors_tensorclasses_and_trajectories(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = made(), made()
    buffer.extend(torch.arange(6).view(3, 2))
    moved(buffer, twin, tmp_path)
    assert twin[:].tolist() == [[0, 1], [2, 3], [4, 5]]

    buffer, twin = made(), made()
    buffer.extend(frames(0, 4, (3,)))
    moved(buffer, twin, tmp_path)
    assert twin[:].shape == (3, 4)

    points = Point(x=torch.arange(3), batch_size=[3])
    buffer, twin, fresh = made(prefetch=2), made(prefetch=2), made()
    buffer.extend(points)
    twin.extend(points[:1])
    buffer.sample(2)
    moved(buffer, twin, tmp_path)
    assert isinstance(twin[:], Point)
    assert twin[:].x.tolist() == [0, 1, 2]
    assert [twin.sample(2).x.tolist() for _ in range(9)] == [buffer.sample(2).x.tolist() for _ in range(9)]
    with pytest.raises(SpecMismatch, match="Point, a tensorclass, and a state loads no classes; write one item of it"):
        moved(buffer, fresh, tmp_path)
    assert not fresh.storage.is_initialised


@both
def test_objects_among_the_tensors(moved: Saved, tmp_path: Path) -> None:
    def said(*words: Any) -> TensorDict:
        return TensorDict({"word": NonTensorStack(*words), "number": torch.arange(len(words))}, [len(words)])

    buffer, twin = made(prefetch=1), made(prefetch=1)
    buffer.extend(said("a", "b", "c"))
    buffer.sample(2)
    moved(buffer, twin, tmp_path)
    assert twin[:]["word"] == ["a", "b", "c"]
    assert [twin.sample(2)["word"] for _ in range(9)] == [buffer.sample(2)["word"] for _ in range(9)]
    buffer.extend(said(object()))
    with pytest.raises(OptionError, match="expected tensors, TensorDicts or plain data to save.*object"):
        moved(buffer, twin, tmp_path)


@both
def test_items_in_a_list(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = made(ListStorage(5)), made(ListStorage(5))
    items = ["a", (1, {"b": None}), torch.arange(3), TensorDict({"x": torch.ones(2)}, [2], names=["time"])]
    buffer.extend([0, 0, *items])
    moved(buffer, twin, tmp_path)
    assert len(twin) == 5
    assert [repr(item) for item in twin.storage.contents()] == [repr(item) for item in buffer.storage.contents()]
    assert twin.extend(["z"]).tolist() == buffer.extend(["z"]).tolist()
    buffer.extend([object()])
    with pytest.raises(OptionError, match="expected tensors, TensorDicts or plain data"):
        moved(buffer, twin, tmp_path)


@both
def test_an_empty_buffer(moved: Saved, tmp_path: Path) -> None:
    never, emptied, full = made(), made(), made()
    emptied.extend(frames(0, 12))
    emptied.empty()
    for source in (never, emptied):
        full.extend(frames(0, 4))
        moved(source, full, tmp_path)
        assert (len(full), full.write_count) == (0, 0)
        full.extend(frames(7, 2))
        assert full[:]["number"].tolist() == [7, 8]
    fresh = made()
    moved(emptied, fresh, tmp_path)
    with pytest.raises(SpecMismatch, match="missing"):
        fresh.extend(TensorDict({"other": torch.zeros(1)}, [1]))


@both
def test_no_memory_is_shared_with_what_was_saved(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = made(), made()
    buffer.extend(frames(0, 4))
    moved(buffer, twin, tmp_path)
    buffer[:] = frames(50, 4)
    assert twin[:]["number"].tolist() == [0, 1, 2, 3]
    state = twin.state_dict()
    twin[:] = frames(60, 4)
    assert state["frames"]["number",].tolist() == [0, 1, 2, 3]
    buffer.load_state_dict(state)
    state["frames"]["number",].zero_()
    state["storage"]["control"]["origins"].zero_()
    assert buffer[:]["number"].tolist() == [0, 1, 2, 3]


@both
def test_what_a_transform_does_is_decided_as_it_was(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = (made(transform=lambda data: data.reshape(-1)) for _ in range(2))
    buffer.extend(frames(0, 2, (2,)))
    moved(buffer, twin, tmp_path)
    twin.extend(frames(2, 2, (2,)))
    assert twin[:]["number"].tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


@both
def test_new_writes_join_no_saved_ones(moved: Saved, tmp_path: Path) -> None:
    buffer, twin = made(), made()
    buffer.extend(frames(0, 3))
    twin.extend(frames(0, 2))
    moved(buffer, twin, tmp_path)
    twin.extend(frames(3, 2))
    streams = (twin.storage.control.origins >> 1)[:5].tolist()
    assert streams[0] == streams[1] == streams[2] != streams[3] == streams[4]


def test_a_generator_comes_with_the_state(tmp_path: Path) -> None:
    buffer, twin = made(), ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(frames(0, 4))
    by_folder(buffer, twin, tmp_path)
    assert_same_samples(buffer, twin, count=5)
    without = ReplayBuffer(storage=LazyTensorStorage(10))
    without.extend(frames(0, 4))
    expected = buffer.state_dict()["generator"]
    buffer.load_state_dict(without.state_dict())
    assert torch.equal(buffer.state_dict()["generator"], expected)


def test_what_is_saved_again_after_a_load(tmp_path: Path) -> None:
    buffer, path = made(), tmp_path / "saved"
    for start in range(3):
        buffer.extend(frames(10 * start, 3))
        buffer.dumps(path)
        buffer.loads(path)
        buffer.dumps(path)
    twin = made()
    twin.load(path)
    assert twin[:]["number"].tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert os.listdir(tmp_path) == ["saved"]


def test_save_and_load_are_other_names(tmp_path: Path) -> None:
    buffer, twin = made(), made()
    buffer.extend(frames(0, 2))
    buffer.save(str(tmp_path / "a" / "b"))
    twin.load(str(tmp_path / "a" / "b"))
    assert alike(buffer[:], twin[:])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_of_a_private_buffer_is_independent(copied: Any) -> None:
    buffer = made(prefetch=1)
    buffer.extend(frames(0, 12))
    twin = copied(buffer)
    assert_same_samples(buffer, twin, count=3)
    twin.extend(frames(100, 1))
    twin[0] = frames(200, 1)[0]
    assert sorted(buffer[:]["number"].tolist()) == list(range(2, 12))
    assert (buffer.write_count, twin.write_count) == (12, 13)


# Files


def test_frames_are_files_that_tensordict_reads(tmp_path: Path) -> None:
    buffer = made(LazyTensorStorage(100))
    buffer.extend(frames(0, 3))
    buffer.dumps(tmp_path / "saved")
    read = TensorDict.load_memmap(tmp_path / "saved")
    assert alike(read, buffer[:])
    assert (tmp_path / "saved" / "number.memmap").stat().st_size == 3 * 8
    assert (tmp_path / "saved" / "next" / "even.memmap").stat().st_size == 3


def test_the_rest_is_read_without_running_code(tmp_path: Path) -> None:
    buffer = made(prefetch=2, sampler=PrioritizedSampler(10, 0.6, 0.4))
    buffer.extend(frames(0, 3))
    buffer.sample(2)
    buffer.dumps(tmp_path)
    state = torch.load(tmp_path / REST, weights_only=True)
    assert state["storage"]["control"]["claimed"] == 3
    assert len(state["ahead"]["samples"]) == 2

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({**state, "writer": Evil()}, tmp_path / REST)
    with pytest.raises(SpecMismatch, match="found it damaged"):
        buffer.loads(tmp_path, verify=False)
    assert not (tmp_path / "run").exists()


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    buffer = made()
    buffer.extend(frames(0, 3))
    buffer.dumps(tmp_path / "saved")
    (tmp_path / "secret").write_bytes(bytes(100))
    state = torch.load(tmp_path / "saved" / REST, weights_only=True)
    (tmp_path / "saved" / "link").symlink_to(tmp_path / "secret")
    for elsewhere in ("../secret", str(tmp_path / "secret"), "next/../../secret", "link"):
        state["files"]["number",]["file"] = elsewhere
        torch.save(state, tmp_path / "saved" / REST)
        with pytest.raises(SpecMismatch, match=r"secret|link"):
            buffer.loads(tmp_path / "saved", verify=False)


@pytest.mark.parametrize("name", [REST, "number.memmap", "next/half.memmap"])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99, None])
def test_a_file_that_was_cut_short_is_refused(name: str, left: float | None, tmp_path: Path) -> None:
    buffer = made(prefetch=1)
    buffer.extend(frames(0, 3))
    buffer.dumps(tmp_path)
    buffer.extend(frames(3, 1))
    buffer.sample(2)
    before = buffer.state_dict()
    file = tmp_path / name
    if left is None:
        file.unlink()
    else:
        os.truncate(file, int(file.stat().st_size * left))
    with pytest.raises(OptionError if name == REST and left is None else SpecMismatch):
        buffer.loads(tmp_path)
    assert repr(buffer.state_dict()) == repr(before)


def test_places_where_something_else_lies_are_refused(tmp_path: Path) -> None:
    buffer = made()
    buffer.extend(frames(0, 3))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(OptionError, match="expected an empty folder, a saved buffer, or nothing"):
            buffer.dumps(tmp_path / name)
        with pytest.raises(OptionError, match="expected a folder that dumps wrote"):
            buffer.loads(tmp_path / name)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "mine").read_text() == "mine"
    with pytest.raises(OptionError, match="expected a folder that dumps wrote"):
        buffer.loads(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    buffer.dumps(tmp_path / "empty")
    buffer.loads(tmp_path / "empty")


# What is refused


OTHERS: dict[str, tuple[Callable[[], ReplayBuffer], str]] = {
    "max_size": (lambda: made(LazyTensorStorage(11)), "with max_size=11, got max_size=10.*Make the storage with max_size=10"),
    "ndim": (lambda: made(LazyTensorStorage(10, ndim=2)), "with ndim=2, got ndim=1"),
    "sampler": (lambda: made(sampler=PrioritizedSampler(10, 0.6, 0.4)), "kind 'PrioritizedSampler' in the state, got 'RandomS"),
    "writer": (lambda: made(writer=TensorDictMaxValueWriter("number")), "'TensorDictMaxValueWriter' in the state, got 'RoundR"),
    "list": (lambda: made(ListStorage(10)), "found something else in"),
}


@both
@pytest.mark.parametrize("other", OTHERS)
def test_states_of_other_buffers_are_refused(moved: Saved, other: str, tmp_path: Path) -> None:
    make, match = OTHERS[other]
    source, target = made(), make()
    source.extend(frames(0, 3))
    with pytest.raises(SpecMismatch, match=match):
        moved(source, target, tmp_path)
    assert len(target) == 0
    if isinstance(target.storage, LazyTensorStorage):
        assert target.storage.schema is None


@both
def test_other_keys_are_refused(moved: Saved, tmp_path: Path) -> None:
    source, target = made(), made()
    source.extend(frames(0, 3))
    target.extend(TensorDict({"a": torch.arange(2.0)}, [2]))
    with pytest.raises(SpecMismatch, match="storage that holds TensorDict of rows \\[\\] with {'a': \\(\\) torch.float32}"):
        moved(source, target, tmp_path)
    assert target[:]["a"].tolist() == [0, 1]


RUBBISH: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda state: {},
    "no dictionary": lambda state: None,
    "format": lambda state: {**state, "format": 2},
    "no sampler": lambda state: {**state, "sampler": None},
    "generator": lambda state: {**state, "generator": torch.zeros(3)},
    "ahead": lambda state: {**state, "ahead": {"size": 1, "samples": [{"kind": "evil"}]}},
    "no frames": lambda state: {**state, "frames": {}},
    "frames": lambda state: {**state, "frames": {key: frame[:1] for key, frame in state["frames"].items()}},
    "counts": lambda state: {**state, "storage": {**state["storage"], "control": {**state["storage"]["control"], "floor": -1}}},
    "origins": lambda state: {
        **state,
        "storage": {**state["storage"], "control": {**state["storage"]["control"], "origins": torch.zeros(3)}},
    },
    "schema": lambda state: {**state, "storage": {**state["storage"], "schema": None}},
    "dtype": lambda state: {
        **state,
        "storage": {
            **state["storage"],
            "schema": {**state["storage"]["schema"], "fields": {("number",): [[], "torch.load", False]}},
        },
    },
}


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_is_refused_and_changes_nothing(what: str) -> None:
    buffer = made(prefetch=1, sampler=PrioritizedSampler(10, 0.6, 0.4))
    buffer.extend(frames(0, 3))
    buffer.sample(2)
    buffer.update_priority(torch.arange(3), torch.tensor([1.0, 2.0, 3.0]))
    before = buffer.state_dict()
    rubbish = RUBBISH[what](copy.deepcopy(before))
    with pytest.raises(SpecMismatch):
        buffer.load_state_dict(rubbish)
    assert repr(buffer.state_dict()) == repr(before)


def test_a_sampler_that_refuses_its_state_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = made(sampler=PrioritizedSampler(10, 0.6, 0.4))
    buffer.extend(frames(0, 3))
    buffer.sample(2)
    before, other = buffer.state_dict(), buffer.state_dict()
    other["sampler"]["state"].pop("claimed")
    with pytest.raises(SpecMismatch, match="KeyError: 'claimed'"):
        buffer.load_state_dict(other)
    assert repr(buffer.state_dict()) == repr(before)


# While others write


def test_what_is_being_written_is_no_part_of_it(tmp_path: Path) -> None:
    buffer, twin = made(), made()
    buffer.extend(frames(0, 4))
    ring = buffer.storage.ring
    claim = claimed(ring, 3)
    buffer.extend(frames(4, 2))
    by_folder(buffer, twin, tmp_path)
    assert (len(twin), twin.write_count) == (6, 6)
    assert set(twin.sample(200)["number"].tolist()) == set(range(6))
    ring.publish(claim, 3)
    assert len(buffer) == 9
    assert len(twin) == 6
    twin.extend(frames(6, 4))  # over what was given up
    assert twin.storage.ring.readable == 7


def test_nothing_is_loaded_while_somebody_writes() -> None:
    buffer = made()
    buffer.extend(frames(0, 4))
    state, claim = buffer.state_dict(), claimed(buffer.storage.ring, 2)
    with pytest.raises(CallOrderError, match="pause or stop the collector first"):
        buffer.load_state_dict(state)
    buffer.storage.ring.publish(claim, 2)
    buffer.load_state_dict(state)
    assert len(buffer) == 4


def test_writers_go_on_while_states_are_taken() -> None:
    buffer, stop = made(LazyTensorStorage(64)), threading.Event()

    def write() -> None:
        start = 0
        while not stop.is_set():
            buffer.extend(frames(start, 8))
            start += 8

    buffer.extend(frames(0, 8))
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            twin = made(LazyTensorStorage(64))
            twin.load_state_dict(buffer.state_dict())
            ring = twin.storage.ring
            assert twin.write_count % 8 == 0
            assert len(twin) <= min(64, twin.write_count)
            held = ring.filled(ring.oldest, ring.claimed)
            places = torch.arange(ring.oldest, ring.claimed)[torch.from_numpy(held)] % 64
            chunks = twin[places]["number"].view(-1, 8)
            assert torch.equal(chunks, chunks[:, :1] + torch.arange(8))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


WRITER = """
import pickle, sys, torch
from tensordict import TensorDict
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
for number in range(400):
    buffer.extend(TensorDict({"a": torch.full((8, 50), number), "b": torch.full((8, 50), number)}, [8]))
    if not number:
        print("begun", flush=True)
"""


@pytest.mark.processes
def test_processes_write_while_states_are_taken(tmp_path: Path) -> None:
    buffer = made(LazyTensorStorage(64), shared=True)
    with warm.Program(WRITER, pickle.dumps(buffer).hex()) as first, warm.Program(WRITER, pickle.dumps(buffer).hex()) as second:
        for writer in (first, second):
            assert writer.stdout.readline() == "begun\n", writer.stderr.read()
        for _ in range(10):
            buffer.dumps(tmp_path / "saved")
            twin = made(LazyTensorStorage(64))
            twin.loads(tmp_path / "saved")
            assert twin.write_count % 8 == 0
            sample = twin.sample(200) if len(twin) else twin[:0]
            both_keys = torch.cat([sample["a"], sample["b"]], -1)
            assert (both_keys == both_keys[:, :1]).all()
        assert [writer.wait(100) for writer in (first, second)] == [0, 0]
    assert buffer.write_count == 2 * 400 * 8
    by_folder(buffer, twin := made(LazyTensorStorage(64)), tmp_path)
    assert (len(twin), twin.write_count) == (64, 6400)


# A process that is killed while it saves


PROGRAM = """
import os, signal, sys, torch
from pathlib import Path
from tensordict import TensorDict
from reap.data.saving import folders, checkpoint
from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage

def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

where, path = sys.argv[1:]
module, name = {
    "frames": (checkpoint, "write_frames"),
    "rest": (torch, "save"),
    "fsync": (os, "fsync"),
    "exchange": (folders, "exchange"),
    "removal": (folders.shutil, "rmtree"),
}[where]
buffer = ReplayBuffer(storage=LazyTensorStorage(10))
buffer.extend(TensorDict({"number": torch.arange(5)}, [5]))
setattr(module, name, killed)
buffer.dumps(path)
"""


@pytest.mark.processes
@pytest.mark.parametrize("where", by_default(["frames", "rest", "fsync", "exchange", "removal"], "exchange"))
def test_a_save_that_is_killed_leaves_the_one_before(where: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    old = made(LazyTensorStorage(10))
    old.extend(TensorDict({"number": torch.arange(3)}, [3]))
    old.dumps(path)
    code, _, errors = warm.run(PROGRAM, where, str(path), timeout=180)
    assert (code, errors) == (-signal.SIGKILL, "")
    twin = made(LazyTensorStorage(10))
    twin.loads(path)
    assert twin[:]["number"].tolist() == list(range(5 if where == "removal" else 3))
    assert len(os.listdir(tmp_path)) == 2  # what the killed one left
    old.dumps(path)
    assert os.listdir(tmp_path) == ["saved"]


def test_an_error_in_a_save_leaves_no_files(tmp_path: Path) -> None:
    buffer = made()
    buffer.extend(frames(0, 3))
    buffer.dumps(tmp_path / "saved")
    buffer.extend(frames(3, 3))

    def failing(frames: TensorDict, path: Path) -> None:
        frames.memmap(path)
        raise OSError(errno.EIO, "Input/output error")

    buffer.register_save_hook(failing)
    with pytest.raises(OSError, match="Input/output error"):
        buffer.dumps(tmp_path / "saved")
    assert os.listdir(tmp_path) == ["saved"]
    buffer.loads(tmp_path / "saved")
    assert len(buffer) == 3


def test_where_folders_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, path = made(), tmp_path / "saved"
    buffer.extend(frames(0, 3))
    buffer.dumps(path)
    monkeypatch.setattr(folders, "exchange", lambda first, second: False)
    buffer.extend(frames(3, 1))
    buffer.dumps(path)
    assert os.listdir(tmp_path) == ["saved"]
    path.rename(tmp_path / ".saved.before")  # killed between the two renames
    twin = made()
    twin.loads(path)
    assert len(twin) == 4
    buffer.dumps(path)
    assert os.listdir(tmp_path) == ["saved"]


def test_what_another_process_is_saving_stays(tmp_path: Path) -> None:
    with folders.replaced(tmp_path / "saved", "a") as first:
        (first / "a").write_text("1")
        with folders.replaced(tmp_path / "saved", "a") as second:
            (second / "a").write_text("2")
        assert (tmp_path / "saved" / "a").read_text() == "2"
    assert (tmp_path / "saved" / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["saved"]
