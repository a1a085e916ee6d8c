"""Collectors that fill a replay buffer while they are iterated: who writes, what, and in which order."""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.collectors.delivery.buffer_writes import end_for_workers
from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.exchange.shared import SharedExchange
from reap.collectors.options.collector import CollectorOptions
from reap.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, PrioritizedReplayBuffer, ReplayBuffer
from reap.envs import GymEnv
from reap.errors import OptionError
from reap.testing import Const, Count
from reap.testing.marked import Marked, Told
from tests.collectors.replays import EVERY, STORAGES, equal, memory, places, require_each_once, serials, singles
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import CLASSES, Text
from tests.pairwise import by_default

BY_WORKERS = "written by the workers"


@pytest.mark.parametrize("storage", ["RAM", pytest.param("files", marks=pytest.mark.processes)])
@pytest.mark.parametrize("name", EVERY)
def test_every_frame_once_and_in_order(name: str, storage: str) -> None:
    buffer = memory(storage=STORAGES[storage])
    with EVERY[name](singles(), Told(), frames_per_batch=12, total_frames=48, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 4
        assert (BY_WORKERS in repr(collector)) == (name != "Sync")
        assert collector.stats().frames == buffer.write_count == len(buffer) == 48
    require_each_once(buffer, 48)


ROWS_KEPT = product(EVERY, [True, False])


@pytest.mark.parametrize(("name", "extend"), by_default(ROWS_KEPT, ("MultiSync", True), ("MultiaSync", False)))
def test_d03_batched_envs_keep_their_rows(name: str, extend: bool) -> None:
    buffer = memory(512, ndim=2)
    options: Any = {"frames_per_batch": 16, "total_frames": 64, "replay_buffer": buffer, "extend_buffer": extend}
    with EVERY[name](serials(), Told(), **options) as collector:
        assert list(collector) == [None] * 4
        assert len(buffer) == buffer.write_count == 64
    assert buffer[:].shape == (2, 32)
    require_each_once(buffer, 64)


@pytest.mark.processes
@pytest.mark.parametrize("name", EVERY)
def test_column_by_column(name: str) -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 36, "replay_buffer": buffer, "extend_buffer": False}
    with EVERY[name](singles(), Told(), **options) as collector:
        assert list(collector) == [None] * 3
    require_each_once(buffer, 36)


@pytest.mark.processes
@pytest.mark.parametrize("name", EVERY)
def test_real_envs(name: str) -> None:
    buffer = memory(batch_size=32)
    with EVERY[name](["CartPole-v1"] * 2, frames_per_batch=100, total_frames=400, replay_buffer=buffer) as collector:
        for _ in collector:
            assert buffer.sample()["observation"].shape == (32, 4)
    assert len(buffer) == 400


SAME: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "stack, rows are workers": (singles, {}, {"ndim": 2}),
    "stack of batched envs": (serials, {}, {"ndim": 3}),
    "stack, flattened": (singles, {}, {"transform": lambda data: data.reshape(-1)}),
    "joined": (singles, {"cat_results": 0}, {}),
    "rows joined": (serials, {"cat_results": 0}, {"ndim": 2}),
    "rows joined, items are rows": (serials, {"cat_results": 0}, {}),
    "time joined": (serials, {"cat_results": -1}, {"ndim": 2}),
    "time joined, items are rows": (serials, {"cat_results": -1}, {}),
    "split": (singles, {"split_trajs": True}, {"transform": lambda data: data.reshape(-1)}),
}


@pytest.mark.parametrize("case", by_default(SAME, "stack, rows are workers", "time joined", "split"))
def test_multi_sync_writes_what_its_batches_hold(case: str) -> None:
    """Bit for bit and in the same order as `for data in collector: memory.extend(data)`."""
    envs, options, of_buffer = SAME[case]
    by_hand, by_itself = memory(**of_buffer), memory(**of_buffer)
    for given in (None, by_itself):
        with MultiSyncDataCollector(
            envs(), Told(), frames_per_batch=24, total_frames=72, replay_buffer=given, **options
        ) as collector:
            collector.set_seed(1)
            for data in collector:
                if given is None:
                    by_hand.extend(data)
    assert equal(by_hand, by_itself)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("envs", "options", "ndim", "by_workers"),
    [
        (singles, {}, 1, True),
        (singles, {}, 2, False),
        (serials, {}, 2, True),
        (serials, {}, 3, False),
        (serials, {"cat_results": 0}, 2, False),
        (serials, {"cat_results": -1}, 2, True),
        (singles, {"split_trajs": True}, 1, False),
        (singles, {"trajs_per_batch": 2}, 1, False),
    ],
)
def test_who_writes_in_multi_sync(envs: Any, options: Any, ndim: int, by_workers: bool) -> None:
    with MultiSyncDataCollector(envs(), Told(), frames_per_batch=8, replay_buffer=memory(ndim=ndim), **options) as collector:
        assert (BY_WORKERS in repr(collector)) == by_workers


def of_torchrl(ndim: int) -> Any:
    from torchrl.data import LazyTensorStorage as TheirStorage
    from torchrl.data import ReplayBuffer as TheirBuffer

    return TheirBuffer(storage=TheirStorage(1_000, ndim=ndim))


@pytest.mark.processes
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("make", ["torchrl", "list"])
def test_buffers_of_one_process_are_written_by_it(name: str, make: str) -> None:
    buffer = of_torchrl(1) if make == "torchrl" else memory(storage=lambda size, ndim: ListStorage(size))
    with EVERY[name](singles(), Told(), frames_per_batch=12, total_frames=36, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 3
        assert BY_WORKERS not in repr(collector)
    require_each_once(buffer if make == "torchrl" else Stacked(buffer), 36)


class Stacked:
    """The items of a list as one batch."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return torch.stack(list(self._buffer[index]))


def test_objects_are_written_by_the_collector() -> None:
    buffer = memory()
    factories = [partial(Text, 3)] * 2
    with MultiaSyncDataCollector(factories, frames_per_batch=4, total_frames=16, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 4
        assert BY_WORKERS not in repr(collector)
    assert len(buffer) == 16
    assert buffer[0]["text"] == "0x0"


@pytest.mark.parametrize("name", by_default(CLASSES, "aSync"))
def test_d10_priorities_are_the_learners(name: str) -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(1_000), batch_size=64, prefetch=2)
    with CLASSES[name](singles(), Told(), frames_per_batch=20, total_frames=80, replay_buffer=buffer) as collector:
        assert BY_WORKERS in repr(collector)
        for _ in collector:
            _, info = buffer.sample(return_info=True)
            buffer.update_priority(info["index"], 0.5)
    assert len(buffer) == 80
    buffer.update_priority(torch.arange(80), 0.0)
    buffer.update_priority(torch.tensor([7]), 1.0)
    for _ in range(2):
        buffer.sample()  # made ahead
    seen: Any = buffer.sample()["observation"]
    assert torch.equal(seen, buffer[7]["observation"].expand_as(seen))


def note_process(folder: Path, batch: Any) -> Any:
    with (folder / "processes").open("a") as file:
        file.write(f"{os.getpid()} {list(batch.shape)}\n")
    return batch


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiSync"))
def test_postproc_runs_in_the_process_that_writes(name: str, tmp_path: Path) -> None:
    buffer, postproc = memory(), partial(note_process, tmp_path)
    options: Any = {"frames_per_batch": 12, "total_frames": 24, "replay_buffer": buffer, "postproc": postproc}
    with CLASSES[name](singles(), Told(), **options) as collector:
        list(collector)
        pids = {str(pid) for pid in pids_of(collector)}
    lines = [line.split(" ", 1) for line in (tmp_path / "processes").read_text().splitlines()]
    assert {pid for pid, _ in lines} <= pids
    assert [shape for _, shape in lines] == (["[6]"] * 4 if name == "MultiSync" else ["[12]"] * 2)
    require_each_once(buffer, 24)


class Keeping:
    """A postproc that writes the batch before the present one: it keeps what it gets."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, batch: Any) -> Any:
        last, self.last = self.last, batch
        return batch[:0] if last is None else last


@pytest.mark.processes
def test_postproc_may_keep_what_it_gets() -> None:
    buffer = memory()
    buffer.extend(SyncDataCollector(Marked(9), Told(), frames_per_batch=1).next())
    buffer.empty()
    options: Any = {"frames_per_batch": 12, "total_frames": 48, "replay_buffer": buffer, "postproc": Keeping()}
    with CLASSES["aSync"](singles(1), Told(), **options) as collector:
        list(collector)
    require_each_once(buffer, 36)


def test_what_cannot_be_sent_to_workers_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(OptionError, match="postproc: cannot be sent to a worker"):
        MultiSyncDataCollector(
            singles(), frames_per_batch=8, replay_buffer=memory(), postproc=lambda batch: batch if lock else None
        )


@pytest.mark.processes
@pytest.mark.parametrize("name", EVERY)
def test_whole_episodes(name: str) -> None:
    """A buffer of frames gets episodes without padding."""
    buffer = memory()
    options: Any = {"frames_per_batch": 24, "trajs_per_batch": 2, "total_frames": 96, "replay_buffer": buffer}
    with EVERY[name](singles(), Told(), **options) as collector:
        assert set(collector) == {None}
    require_each_once(buffer, len(buffer))
    assert "mask" not in buffer[:]["collector"].keys()
    ends = {place[:2]: place[2] for place in places(buffer)}
    assert all(step == Marked.length(*episode) - 1 for episode, step in ends.items())


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["single", "sync", "async"])
def test_workers_with_collectors_of_their_own(kind: str) -> None:
    buffer = memory(transform=lambda data: data.reshape(-1))
    envs: Any = singles() if kind == "single" else [singles()[:1], singles()[1:]]
    options: Any = {"frames_per_batch": 8, "total_frames": 32, "collector_class": kind, "replay_buffer": buffer}
    with MultiaSyncDataCollector(envs, Told(), **options) as collector:
        assert list(collector) == [None] * 4
        assert BY_WORKERS in repr(collector)
    require_each_once(buffer, 32)


@pytest.mark.processes
def test_missing_frames_are_not_written() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 40, "total_frames": 160, "preemptive_threshold": 0.5, "replay_buffer": buffer}
    with MultiSyncDataCollector(singles(), Told(), **options) as collector:
        list(collector)
        frames = collector.stats().frames
    require_each_once(buffer, frames)


def test_rollout_is_not_written() -> None:
    buffer = memory()
    with MultiSyncDataCollector(singles(), Told(), frames_per_batch=8, replay_buffer=buffer) as collector:
        assert collector.next() is None
        assert collector.rollout().shape == (2, 4)
        assert collector.next() is None
    assert len(buffer) == 16


def test_the_last_column_is_truncated() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 8, "total_frames": 16, "set_truncated": True, "replay_buffer": buffer}
    with MultiSyncDataCollector([partial(Count, 100)] * 2, **options) as collector:
        list(collector)
    assert buffer[:]["next", "truncated"].flatten().tolist() == [False, False, False, True] * 4


@pytest.mark.processes
def test_files_of_the_users(tmp_path: Path) -> None:
    buffer = memory(storage=lambda size, ndim: LazyMemmapStorage(size, scratch_dir=tmp_path / "frames", ndim=ndim))
    with MultiaSyncDataCollector(singles(), Told(), frames_per_batch=8, total_frames=32, replay_buffer=buffer) as collector:
        list(collector)
    require_each_once(buffer, 32)
    assert (tmp_path / "frames").is_dir()


@pytest.mark.processes
def test_pixels_and_rows() -> None:
    """A vector env whose observations are large: they are lent in batches, and copied once into the buffer."""
    buffer = memory(ndim=2)
    factories = [lambda: GymEnv("CartPole-v1", num_envs=3)] * 2
    with MultiaSyncDataCollector(factories, frames_per_batch=30, total_frames=120, replay_buffer=buffer) as collector:
        list(collector)
    assert buffer[:].shape == (3, 40)


@pytest.mark.parametrize("kind", [MultiaSyncDataCollector, aSyncDataCollector])
def test_what_is_asked_of_envs_between_writes_changes_nothing(kind: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=10)
    factories = [partial(Count, 7)] * (2 if kind is MultiaSyncDataCollector else 1)
    with kind(factories, Const(), frames_per_batch=20, total_frames=600, replay_buffer=buffer) as collector:
        for _ in collector:
            collector.getattr_policy("training")
            collector.state_dict()
    assert buffer.write_count == 600
    observation, ids = buffer[:]["observation"].flatten(), buffer[:]["collector", "traj_ids"]
    same = ids[1:] == ids[:-1]
    assert (observation[1:] - observation[:-1])[same].eq(1).all()


@pytest.mark.parametrize("exchange", [SharedExchange(), CopiedExchange()], ids=["shared", "copied"])
def test_a_buffer_of_one_process_is_named_as_the_reason(exchange: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Plain:
        def extend(self, data: Any) -> None: ...

    options = CollectorOptions(frames_per_batch=4, replay_buffer=Plain())
    with caplog.at_level("INFO", logger="reap.collectors"):
        assert end_for_workers(options, [], takes_parts=True, can_send=exchange.can_send) is None
    assert caplog.messages == [
        "the collector writes to the replay buffer in place of its workers: a Plain belongs to one process"
    ]
