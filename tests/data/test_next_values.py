"""Observations stored once: what is read is bit for bit what a plain storage gives, and pixels take half the memory."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.collectors import SyncDataCollector
from reap.data import MultiStep
from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
from reap.data.storages.bits import differing
from reap.data.storages.next_values.rebuild import RebuildNext
from reap.data.storages.next_values.side_store import RESERVED, RETURNED, TAKEN, SideStore, Sparse
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError
from reap.recording.layout import Field
from tests.machine import in_container, leave
from tests.pairwise import each_value, pairwise
from tests.warm import Program

Make = Callable[..., ReplayBuffer]


KINDS = ["ram", "shared", "files"]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Make:
    def made(size: int, ndim: int = 1, *, once: bool = True, **options: Any) -> ReplayBuffer:
        kind = LazyMemmapStorage if request.param == "files" else LazyTensorStorage
        storage = kind(size, ndim=ndim, observations_once=once)
        return ReplayBuffer(storage=storage, shared=request.param == "shared", **options)

    return made


def ram(size: int, ndim: int = 1, *, once: bool = True) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim, observations_once=once))


def nexts_of(buffer: ReplayBuffer) -> RebuildNext:
    """How a buffer rebuilds values under `"next"`."""
    return buffer.storage._nexts  # pyright: ignore[reportAttributeAccessIssue]


def side_of(buffer: ReplayBuffer) -> SideStore:
    """The values that it cannot rebuild."""
    side = nexts_of(buffer).side
    assert side is not None
    return side


def with_slots(buffer: ReplayBuffer) -> list[int]:
    """The places that have a slot; no slot is of two places, and all others that were taken were given back."""
    side = side_of(buffer)
    slots = side.slots(np.arange(buffer.storage.max_size))
    used = slots[slots >= 0]
    assert len(np.unique(used)) == len(used) == side.counts[TAKEN] - side.counts[RETURNED]
    return np.flatnonzero(slots >= 0).tolist()


class Writes:
    """Random episodes: values with NaNs, ends now and then, writes that go on where the last one stopped, or not."""

    def __init__(self, seed: int, rows: tuple[int, ...] = ()) -> None:
        self.random = np.random.default_rng(seed)
        self.rows = rows
        self._last: torch.Tensor | None = None

    def values(self, *shape: int) -> torch.Tensor:
        values = self.random.normal(size=(*self.rows, *shape, 5)).astype(np.float32)
        values[self.random.random(values.shape) < 0.1] = np.nan
        return torch.from_numpy(values)

    def __call__(self, columns: int, ends: float = 0.1) -> TensorDict:
        seen = self.values(columns + 1)
        if self._last is not None and self.random.random() < 0.7:
            seen[..., 0, :] = self._last
        self._last = seen[..., -1, :]
        done = torch.from_numpy(self.random.random((*self.rows, columns, 1)) < ends)
        behind = torch.where(done, self.values(columns), seen[..., 1:, :])
        after = {"observation": behind, "done": done, "reward": seen[..., :-1, :1].clone()}
        shape = [*self.rows, columns]
        return TensorDict(
            {"observation": seen[..., :-1, :].clone(), "step": torch.arange(columns).expand(shape), "next": after}, shape
        )


def assert_same(ours: Any, plain: Any) -> None:
    """The same keys in the same order, and the same bytes under each."""
    assert ours.batch_size == plain.batch_size
    expected = dict(plain.items(True, True))
    assert list(ours.keys(True, True)) == list(expected)
    for key, value in ours.items(True, True):
        assert value.dtype == expected[key].dtype
        assert value.shape == expected[key].shape
        assert value.numpy().tobytes() == expected[key].numpy().tobytes(), key


def assert_same_buffers(ours: ReplayBuffer, plain: ReplayBuffer) -> None:
    assert_same(ours[:].contiguous(), plain[:].contiguous())
    assert_same(ours.storage.contents().contiguous(), plain.storage.contents().contiguous())
    places = plain.storage.places_in_use().reshape(-1)
    assert_same(ours.storage.copies(places), plain.storage.copies(places))
    kept = ours.storage.leaf(("next", "observation"))[places].numpy().view(np.int32)
    assert np.array_equal(kept, plain.storage.leaf(("next", "observation"))[places].numpy().view(np.int32))


@pytest.mark.parametrize(("make", "ndim", "seed"), each_value(pairwise(KINDS, [1, 2, 3], range(4))), indirect=["make"])
def test_random_writes_and_edits_read_as_from_a_plain_storage(make: Make, ndim: int, seed: int) -> None:
    writes = Writes(seed, (2, 3)[: ndim - 1])
    random, rows = writes.random, int(np.prod(writes.rows))
    capacity, ends = int(random.integers(1, 30)), (0.0, 0.1, 0.5, 1.0)[seed]
    ours, plain = make(rows * capacity, ndim), make(rows * capacity, ndim, once=False)
    for _ in range(8):
        data = writes(int(random.integers(1, 40)), ends)
        if random.random() < 0.3:
            for column in data.unbind(ndim - 1):
                ours.add(column), plain.add(column)
        else:
            assert torch.equal(ours.extend(data), plain.extend(data))
        assert_same_buffers(ours, plain)
        start, stop = sorted(random.integers(0, plain.storage.columns_in_use + 1, 2))
        part = (..., slice(int(start), int(stop)))
        values = (
            writes(int(stop - start))
            if random.random() < 0.5
            else plain[part].clone().set(("next", "reward"), plain[part]["next", "reward"] + 1)
        )
        for buffer in (ours, plain):
            if stop > start:
                buffer[part] = values
        assert_same_buffers(ours, plain)
    with_slots(ours)
    assert_same(ours[..., 0].contiguous(), plain[..., 0].contiguous())


@pytest.mark.parametrize("ndim", [1, 2])
def test_samples_are_those_of_a_plain_storage(make: Make, ndim: int) -> None:
    writes = Writes(0, (3,)[: ndim - 1])
    buffers = [make(60, ndim, once=once, generator=torch.Generator().manual_seed(4)) for once in (True, False)]
    for columns in (7, 30, 1, 13):
        data = writes(columns)
        for buffer in buffers:
            buffer.extend(data)
        for _ in range(5):
            assert_same(*(buffer.sample(32) for buffer in buffers))


def test_slots_go_to_ends_and_to_the_last_frame_of_a_write_until_the_next(make: Make) -> None:
    buffer, observations = make(10), torch.arange(20.0).unsqueeze(1).expand(20, 5)
    data = TensorDict({"observation": observations[:19], "next": {"observation": observations[1:].clone()}}, [19])
    data["next", "observation"][2] = -1.0
    buffer.extend(data[:6])
    assert with_slots(buffer) == [2, 5]
    buffer.extend(data[6:8])
    assert with_slots(buffer) == [2, 7]
    buffer.add(data[8]), buffer.add(data[9])
    assert with_slots(buffer) == [2, 9]
    buffer.extend(data[10:14])  # over places 0 to 3
    assert with_slots(buffer) == [3]
    buffer.extend(data[15:17])  # frame 14 is missing, so that what was last keeps its own
    assert with_slots(buffer) == [3, 5]
    buffer.extend(data[:19])  # more than there is room for
    assert len(with_slots(buffer)) == 1
    assert buffer.sample(50)["next", "observation"].min() >= 10


def test_an_edit_gives_slots_to_what_changed_and_to_the_frame_before(make: Make) -> None:
    buffer, observations = make(10), torch.arange(9.0).unsqueeze(1).expand(9, 5)
    buffer.extend(TensorDict({"observation": observations[:8], "next": {"observation": observations[1:]}}, [8]))
    frame = buffer[4].clone()
    buffer[4] = frame
    assert with_slots(buffer) == [7]
    frame["observation"] += 100
    buffer[4] = frame
    assert with_slots(buffer) == [3, 7]
    frame["next", "observation"] += 100
    buffer[4] = frame
    assert with_slots(buffer) == [3, 4, 7]
    assert buffer[3:6]["next", "observation"][:, 0].tolist() == [4, 105, 6]


class Pixels(gym.Env[Any, Any]):
    """12 x 12 pixels that say the step; episodes of 9 steps."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 2), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.full((12, 12, 2), 200, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full((12, 12, 2), self.steps, np.uint8), 1.0, self.steps == 9, False, {}


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("name", ["pixels", "CartPole-v1"])
def test_what_collectors_write(make: Make, name: str, ndim: int) -> None:
    ours, plain = make(300, ndim), make(300, ndim, once=False)
    inner = (lambda: GymEnv(Pixels())) if name == "pixels" else (lambda: GymEnv(name))
    with SyncDataCollector(
        SerialEnv(2, inner), None, frames_per_batch=80, total_frames=400, max_frames_per_traj=13
    ) as collector:
        collector.set_seed(1)
        for batch in collector:
            data = batch if ndim == 2 else batch.reshape(-1)
            ours.extend(data), plain.extend(data)
    assert_same(ours[:].contiguous(), plain[:].contiguous())
    assert len(with_slots(ours)) < 300 / 3


def test_pixels_take_half_the_memory(make: Make) -> None:
    ours, plain = make(1000), make(1000, once=False)
    shown = torch.randint(0, 255, (1001, 24, 24, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = TensorDict({"pixels": shown[:-1], "next": {"pixels": shown[1:].clone()}}, [1000])
    data["next", "pixels"][::200] = 0
    for part in data.split(50):
        ours.extend(part), plain.extend(part)
    assert nexts_of(ours).roots == {("next", "pixels"): ("pixels",)}
    # 5 ends and the last frame; while a write is under way, the last one of the write before has its slot still.
    assert side_of(ours).counts[TAKEN] == 7
    assert side_of(ours).nbytes == 64 + 2 * 4032 + 7 * 2304
    for _ in range(5):
        ours.extend(data)
    assert side_of(ours).counts[TAKEN] <= 8
    assert "2.3 MB" in repr(ours.storage)
    assert "4.6 MB" in repr(plain.storage)


def test_after_multi_step_all_that_differs_is_kept(make: Make) -> None:
    env = GymEnv("CartPole-v1")
    ours, plain = make(100), make(100, once=False)
    with SyncDataCollector(env, None, frames_per_batch=50, total_frames=150, postproc=MultiStep(0.9, 3)) as collector:
        collector.set_seed(0)
        for batch in collector:
            ours.extend(batch.reshape(-1)), plain.extend(batch.reshape(-1))
    assert_same(ours[:].contiguous(), plain[:].contiguous())
    assert len(with_slots(ours)) > 90


def test_where_the_memory_for_slots_ends_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_container(monkeypatch, tmp_path, left=10**9)
    buffer, writes = ram(40), Writes(0)
    buffer.extend(writes(30, ends=0.0))
    before = buffer[:].clone()
    side_of(buffer).counts[RESERVED] = side_of(buffer).counts[TAKEN]
    leave(tmp_path, 100)
    with pytest.raises(MemoryError, match=r"observations_once: 780 B more .* \(cgroup\) has 100 B left.*MultiStep"):
        buffer.extend(writes(40, ends=1.0))
    assert_same(buffer[:], before)
    assert buffer.write_count == 30


def test_the_first_write_counts_roots_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_container(monkeypatch, tmp_path, left=10**6)
    data = TensorDict({"pixels": torch.zeros(5, 600), "next": {"pixels": torch.zeros(5, 600)}}, [5])
    assert len(ram(400).extend(data)) == 5  # 960 kB; 1.92 MB twice
    with pytest.raises(MemoryError, match="frames need"):
        ram(400, once=False).extend(data)


def test_slots_that_a_killed_process_took_are_found_again(make: Make) -> None:
    ours, plain, writes = make(20), make(20, once=False), Writes(3)
    for _ in range(2):
        data = writes(20, 0.2)
        ours.extend(data), plain.extend(data)
    side_of(ours).counts[TAKEN] = 20  # as if it had noted no place for those that it took
    side_of(ours).counts[RETURNED] = 0
    data = writes(20, 1.0)
    ours.extend(data), plain.extend(data)
    assert_same_buffers(ours, plain)
    assert with_slots(ours) == list(range(20))


def test_a_reader_takes_again_where_a_slot_was_given_back_meanwhile() -> None:
    buffer, observations = ram(10), torch.arange(9.0).unsqueeze(1).expand(9, 5)
    data = TensorDict({"observation": observations[:8], "next": {"observation": observations[1:].clone()}}, [8])
    buffer.extend(data[:3])
    side, get = side_of(buffer), SideStore.get

    def overtaken(key: Any, slots: Any) -> torch.Tensor:
        side.get = get.__get__(side)  # type: ignore[method-assign]
        buffer.extend(data[3:6])  # frame 2 is rebuilt from now on, and its slot is that of frame 5
        buffer.extend(data[6:8])
        return get(side, key, slots)

    side.get = overtaken  # type: ignore[method-assign]
    assert buffer.storage.copies(torch.tensor([2]))["next", "observation"][0].tolist() == [3.0] * 5
    assert with_slots(buffer) == [7]


WRITER = """
import pickle, sys
import torch
from tensordict import TensorDict
torch.set_num_threads(1)
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
number, writes, columns, is_stopped = map(int, sys.argv[2].split())
if is_stopped:
    import signal
    assert len(buffer)
    side = buffer.storage._nexts.side
    def stop(*arguments):
        print("claimed", flush=True)
        signal.pause()
    side.set = stop
for _ in range(writes):
    seen = torch.arange(number, number + columns + 1)
    truth = torch.where(seen[:-1] % 7 == 0, -seen[:-1], seen[1:])
    wide = lambda values: values.unsqueeze(1).expand(-1, 40)
    data = {"observation": wide(seen[:-1]), "truth": truth, "next": {"observation": wide(truth)}}
    buffer.extend(TensorDict(data, [columns]))
    number += columns
print("done", flush=True)
"""


def write(buffer: ReplayBuffer, *numbers: int) -> Program:
    return Program(WRITER, pickle.dumps(buffer).hex(), " ".join(map(str, numbers)))


def first_write(buffer: ReplayBuffer) -> None:
    seen = torch.arange(11).unsqueeze(1).expand(11, 40)
    truth = torch.arange(1, 11)
    buffer.extend(TensorDict({"observation": seen[:-1], "truth": truth, "next": {"observation": seen[1:]}}, [10]))


def check(frames: TensorDict) -> None:
    assert (frames["next", "observation"] == frames["truth"].unsqueeze(1)).all()
    assert (frames["observation"] == frames["observation"][:, :1]).all()


@pytest.mark.processes
@pytest.mark.parametrize("make", ["shared", "files"], indirect=True)
@pytest.mark.parametrize("columns", [1, 30])
def test_several_writers_and_a_reader(make: Make, columns: int) -> None:
    buffer = make(300).share()
    first_write(buffer)
    writes, total = 600 // columns, 10 + 2 * (600 // columns) * columns
    with write(buffer, 1000, writes, columns, 0) as first, write(buffer, 50_000, writes, columns, 0) as second:
        while buffer.write_count < total:
            check(buffer.sample(64))
        for program in (first, second):
            assert program.wait(100) == 0
    check(buffer[:])
    with_slots(buffer)


@pytest.mark.processes
@pytest.mark.parametrize("make", ["shared", "files"], indirect=True)
def test_a_killed_writer_leaves_the_frame_before_as_it_was_and_its_slots_come_back(make: Make) -> None:
    buffer = make(50).share()
    first_write(buffer)
    with write(buffer, 1000, 1, 20, 1) as program:
        assert program.stdout.readline() == "claimed\n"
        check(buffer.sample(200))
        program.send_signal(signal.SIGKILL)
        program.wait(100)
    assert len(buffer) == 10
    check(buffer[:10])
    assert 9 in with_slots(buffer)
    for _ in range(7):
        first_write(buffer)
        check(buffer.sample(200))
    assert with_slots(buffer) == [9, 19, 29, 39, 49]


def test_sharing_and_pickling_keep_all(make: Make) -> None:
    ours, plain, writes = make(50), make(50, once=False), Writes(5)
    for columns in (20, 45):
        data = writes(columns, 0.3)
        ours.extend(data), plain.extend(data)
    ours_too = pickle.loads(pickle.dumps(ours)) if not isinstance(ours.storage, LazyMemmapStorage) else ours
    assert_same_buffers(ours_too, plain)
    ours.share()
    assert_same_buffers(ours, plain)
    attached = pickle.loads(pickle.dumps(ours))
    assert_same_buffers(attached, plain)
    data = writes(30, 0.3)
    attached.extend(data), plain.extend(data)
    assert_same_buffers(ours, plain)


def test_a_saved_buffer_goes_on_in_both_kinds_of_storage(make: Make, tmp_path: Path) -> None:
    ours, plain, writes = make(50), make(50, once=False), Writes(6)
    for columns in (20, 45, 7):
        data = writes(columns, 0.3)
        ours.extend(data), plain.extend(data)
    ours.dumps(tmp_path / "saved")
    loaded = [ram(50), ram(50, once=False)]
    for buffer in loaded:
        buffer.loads(tmp_path / "saved")
    for _ in range(3):
        for buffer in (ours, *loaded):
            assert_same_buffers(buffer, plain)
        data = writes(20)
        for buffer in (ours, plain, *loaded):
            buffer.extend(data)


def test_only_what_is_worth_it_is_rebuilt() -> None:
    fields = {"large": torch.zeros(4, 5), "flag": torch.zeros(4, 1), "done": torch.zeros(4, 64), "reward": torch.zeros(4, 64)}
    data = TensorDict({**fields, "other": torch.zeros(4, 5), "next": {**fields, "other": torch.zeros(4, 6)}}, [4])
    buffer = ram(10)
    buffer.extend(data)
    assert nexts_of(buffer).roots == {("next", "large"): ("large",)}
    with pytest.raises(OptionError, match="no key 'nothing'"):
        buffer.storage.leaf(("nothing",))


def test_data_without_next_are_as_ever() -> None:
    for data in (torch.arange(12.0).view(6, 2), TensorDict({"a": torch.arange(6)}, [6])):
        ours, plain = ram(4), ram(4, once=False)
        ours.extend(data), plain.extend(data)
        assert (ours[:] == plain[:]).all()
        ours[1] = data[0]
        assert (ours[1] == data[0]).all()


@pytest.mark.parametrize("shape", [(3,), (7, 5), (40, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool, torch.float16])
def test_bytes_are_compared(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ours = torch.zeros(30, *shape, dtype=dtype)
    theirs = torch.zeros(31, *shape, dtype=dtype)[1:]
    for frame in (0, 11, 12, 29):
        theirs.view(30, -1)[frame, frame % 3 - 1] = 1
    assert np.flatnonzero(differing(ours, theirs)).tolist() == [0, 11, 12, 29]
    assert not differing(theirs, theirs.clone()).any()
    assert np.flatnonzero(differing(ours.transpose(1, -1), theirs.transpose(1, -1))).tolist() == [0, 11, 12, 29]


def test_zeros_of_both_signs_differ_and_nans_do_not() -> None:
    ours, theirs = torch.tensor([[0.0, 1.0], [np.nan, 1.0]]), torch.tensor([[-0.0, 1.0], [np.nan, 1.0]])
    assert differing(ours, theirs).tolist() == [True, False]


def test_slots_are_taken_from_the_lowest_and_those_given_back_first() -> None:
    store = SideStore({("next", "a"): Field((2,), torch.float32)}, 10, lambda nbytes: Sparse(nbytes, lambda: (1e9, "here")))
    assert store.take(np.array([3, 8])).tolist() == [0, 1]
    assert store.take(np.array([5])).tolist() == [2]
    store.give_back(np.array([8, 3, 4]))
    assert store.slots(np.array([3, 5, 8])).tolist() == [-1, 2, -1]
    assert sorted(store.take(np.array([0, 1])).tolist()) == [0, 1]
    assert store.take(np.array([2])).tolist() == [3]


def test_an_emptied_buffer_rebuilds_what_is_written_next(make: Make) -> None:
    ours, plain, writes = make(30), make(30, once=False), Writes(8)
    for columns in (20, 25, 4, 40):
        data = writes(columns, 0.3)
        for buffer in (ours, plain):
            buffer.extend(data)
        assert_same_buffers(ours, plain)
        if columns == 25:
            ours.empty(), plain.empty()
    with_slots(ours)
