"""`start()` of collectors whose workers write: exact budgets, pauses, checkpoints, errors, ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.data import SliceSampler
from reap.envs import SerialEnv
from reap.errors import SpecMismatch, WorkerDied, WorkerError, WorkerRaised
from reap.testing import Const, Count
from reap.testing.marked import Marked, Told
from tests.collectors.replays import (
    EVERY,
    Failing,
    Following,
    GatedWrite,
    KilledBehindTheWrite,
    KilledInTheWrite,
    are_random,
    die,
    memory,
    places,
    require_each_once,
    serials,
    singles,
    wait_for_frames,
    wait_until,
)
from tests.collectors.seams import pids_of, wait_for_end
from tests.collectors.worker_kinds import CLASSES, Gate, exists

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("total", [47, 48, 49])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:total_frames")
def test_budgets_are_kept_to_the_frame(name: str, total: int) -> None:
    buffer = memory()
    with EVERY[name](singles(), Told(), frames_per_batch=12, total_frames=total, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_end(collector)
        assert len(buffer) == buffer.write_count == collector.stats().frames == total
    require_each_once(buffer, total)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:total_frames")
def test_d03_budgets_of_batched_envs_are_kept_to_the_column(name: str) -> None:
    buffer = memory(ndim=2)
    with EVERY[name](serials(), Told(), frames_per_batch=24, total_frames=61, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_end(collector)
        assert buffer.write_count == collector.stats().frames == 60
    require_each_once(buffer, 60)


@pytest.mark.parametrize("name", EVERY)
def test_d04_random_frames_first(name: str) -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 60, "init_random_frames": 20, "replay_buffer": buffer}
    with EVERY[name](singles(), Told(), **options) as collector:
        collector.start()
        wait_for_end(collector)
    assert are_random(buffer) == [True] * 24 + [False] * 36


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_written_in_a_pause(name: str) -> None:
    buffer, policy = memory(100_000), Const(0.0)
    with EVERY[name](singles(), policy, frames_per_batch=12, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_frames(buffer, 36)
        with collector.pause():
            written = buffer.write_count
            state = collector.state_dict()
            assert state["counters"]["frames"] == written, "D11: the counts of a checkpoint agree"
            nn.init.constant_(policy.w, 5.0)
            collector.update_policy_weights_()
            assert buffer.write_count == written == len(buffer)
        wait_for_frames(buffer, written + 60)
        assert collector.is_running()
    assert 5.0 in buffer[:]["action"]
    require_each_once(buffer, buffer.write_count)


@pytest.mark.parametrize("name", CLASSES)
def test_a_pause_waits_for_the_write_in_flight(name: str, tmp_path: Path) -> None:
    gate, buffer, paused = Gate(tmp_path), memory(100_000), Event()
    options: Any = {"frames_per_batch": 12, "replay_buffer": buffer, "postproc": GatedWrite(gate, 3)}
    collector = CLASSES[name](singles(1), Told(), **options)

    def pause() -> None:
        with collector.pause():
            paused.frames = buffer.write_count  # pyright: ignore[reportAttributeAccessIssue]
            paused.set()

    with collector:
        collector.start()
        gate.wait_for_entry()
        thread = Thread(target=pause)
        thread.start()
        assert not paused.wait(0.2)
        gate.open()
        thread.join()
        assert paused.frames >= 36  # pyright: ignore[reportAttributeAccessIssue]
    gate.close()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:total_frames")
def test_a_run_that_goes_on_from_a_checkpoint(name: str) -> None:
    """The frames of both runs together are those of one: none is lost, none is there twice."""
    buffer = memory(100_000)
    options: Any = {"frames_per_batch": 12, "replay_buffer": buffer}
    with EVERY[name](singles(), Told(), **options) as collector:
        collector.start()
        wait_for_frames(buffer, 48)
        with collector.pause():
            written, state = buffer.write_count, collector.state_dict()
            collector.shutdown()
    assert buffer.write_count == written
    with EVERY[name](singles(), Told(), total_frames=written + 49, **options) as collector:
        collector.load_state_dict(state)
        collector.start()
        wait_for_end(collector)
        assert buffer.write_count == collector.stats().frames == written + 49
    require_each_once(buffer, written + 49)


# ---------------------------------------------------------------------- failures


class Raising(nn.Module):
    """Acts a number of times, then raises."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if not self.left:
            raise FloatingPointError("no action")
        return torch.zeros_like(observation[..., :1])


FAILURES: dict[str, tuple[Any, Any, Any, type[Exception]]] = {
    "env": ([partial(Marked, 0, 30)], Told, dict, RuntimeError),
    "policy": (singles(1), partial(Raising, 30), dict, FloatingPointError),
    "postproc": (singles(1), Told, lambda: {"postproc": Failing("postproc", 3)}, LookupError),
    "write": (singles(1), Told, lambda: {"postproc": Failing("write", 3)}, SpecMismatch),
}


@pytest.mark.parametrize("call", ["len", "sample", "collector"])
@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("name", ["Sync", "MultiSync", "MultiaSync"])
def test_a_failure_surfaces_at_the_next_call(name: str, what: str, call: str) -> None:
    factories, policy, options, kind = FAILURES[what]
    buffer = memory(batch_size=4)
    calls: dict[str, Any] = {"len": buffer.__len__, "sample": buffer.sample}
    with EVERY[name](factories, policy(), frames_per_batch=12, replay_buffer=buffer, **options()) as collector:
        collector.start()
        wait_for_end(collector)
        with pytest.raises(kind if name == "Sync" else WorkerRaised) as caught:
            calls.get(call, collector.update_policy_weights_)()
        assert isinstance(caught.value if name == "Sync" else caught.value.__cause__, kind)
        assert len(buffer) == 24, "it is said once, and the buffer is usable"
        assert buffer.sample().shape == (4,)
        del caught
    require_each_once(buffer, 24)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_in_postproc_leaves_the_collector_usable(name: str) -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 60, "postproc": Failing("postproc", 2), "replay_buffer": buffer}
    with CLASSES[name](singles(1), Told(), **options) as collector:
        assert collector.next() is None
        with pytest.raises(WorkerRaised, match="no such key"):
            collector.next()
        assert list(collector) == [None] * 4, "frames that are not in the buffer do not count"
        stats = collector.stats()
        assert (stats.frames, stats.discarded_frames, buffer.write_count) == (60, 12, 60)
    steps = places(buffer)
    assert len(set(steps)) == 60


@pytest.mark.parametrize("name", CLASSES)
def test_no_episode_has_a_gap_where_a_write_failed(name: str) -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 12, "total_frames": 60, "postproc": Failing("postproc", 2), "replay_buffer": buffer}
    with CLASSES[name](singles(1), Told(), **options) as collector:
        collector.next()
        with pytest.raises(WorkerRaised, match="no such key"):
            collector.next()
        assert list(collector) == [None] * 4
    episodes: dict[Any, list[int]] = {}
    for env, episode, step in places(buffer):
        episodes.setdefault((env, episode), []).append(step)
    for steps in episodes.values():
        assert steps == list(range(len(steps)))


@pytest.mark.parametrize("name", CLASSES)
def test_a_worker_killed_in_the_write_leaves_the_buffer_usable(name: str, tmp_path: Path) -> None:
    buffer, file = memory(batch_size=8), tmp_path / "killed"
    last = 0 if name == "aSync" else 1
    options: Any = {"frames_per_batch": 12, "postproc": KilledInTheWrite(last, file), "replay_buffer": buffer}
    # The other would go round the buffer while this one is slow.
    envs = singles(1) if name == "aSync" else [partial(Following, 0, 13, file), partial(Marked, 1)]
    with CLASSES[name](envs, Told(), **options) as collector:
        pids = pids_of(collector)
        collector.start()
        wait_for_end(collector)
        with pytest.raises(WorkerDied) as caught:
            len(buffer)
        assert (caught.value.worker, caught.value.phase) == (last, "write")
        assert not any(map(exists, pids))
    found = len(buffer)
    assert found == buffer.write_count
    for _ in range(50):
        assert (buffer.sample()["observation"][:, 0] <= last).all()
    buffer.extend(buffer.sample())
    assert len(buffer) == found + 8


@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
@pytest.mark.parametrize(("by_column", "publications"), [(False, 1), (True, 2), (True, 6)])
def test_what_the_buffer_has_of_a_killed_worker_is_not_discarded(
    name: str, by_column: bool, publications: int, tmp_path: Path
) -> None:
    """Killed between the publication and the reply; column by column, only what lies behind is lost, and recorded by others."""
    buffer, file = memory(), tmp_path / "killed"
    killed = KilledBehindTheWrite(1, publications, file)
    options: Any = {"frames_per_batch": 12, "on_worker_failure": "restart", "extend_buffer": not by_column}
    envs = [partial(Following, 0, 13, file), partial(Marked, 1)]
    with CLASSES[name](envs, Told(), postproc=killed, total_frames=48, replay_buffer=buffer, **options) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), "it did not end")
        stats = collector.stats()
        assert stats.restarts >= 1
        assert stats.frames == buffer.write_count == len(buffer) == 48
        assert by_column or not stats.discarded_frames


@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
def test_a_worker_killed_in_the_write_is_replaced(name: str, tmp_path: Path) -> None:
    """What it was writing is lost, and counts as discarded; the budget is filled by others."""
    buffer, file = memory(), tmp_path / "killed"
    options: Any = {"frames_per_batch": 12, "total_frames": 120, "on_worker_failure": "restart", "replay_buffer": buffer}
    envs = [partial(Following, 0, 13, file), partial(Marked, 1)]
    with CLASSES[name](envs, Told(), postproc=KilledInTheWrite(1, file), **options) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), "it did not end")
        stats = collector.stats()
        assert stats.restarts >= 1
        assert stats.frames == buffer.write_count == 120
        assert stats.discarded_frames >= 6 * stats.restarts
    assert buffer.storage.ring.readable == 120


class Dying:
    """Makes `Marked(number, ...)` whose process is killed in a step, in its first life."""

    def __init__(self, number: int, step: int, note: Path) -> None:
        self.number, self.step, self.note = number, step, note

    def __call__(self) -> Any:
        return Mortal(self.number, self.step, self.note)


class Mortal(Marked):
    def __init__(self, number: int, at: int, note: Path) -> None:
        super().__init__(number)
        self.at, self.note = at, note

    def step(self, action: Any) -> Any:
        if self.all_steps + 1 == self.at and not self.note.exists():
            self.note.touch()
            die()
        return super().step(action)


@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
def test_columns_that_a_dead_worker_completed_are_written(name: str, tmp_path: Path) -> None:
    """Its successor writes the whole rollout: frames of both, in the same piece."""
    buffer = memory()
    factories = [partial(Marked, 0), Dying(1, 9, tmp_path / "died")]
    options: Any = {"frames_per_batch": 40 if name == "MultiSync" else 20, "total_frames": 120, "replay_buffer": buffer}
    with CLASSES[name](factories, Told(), on_worker_failure="restart", **options) as collector:
        assert set(collector) == {None}
        assert collector.stats().restarts == 1
        assert len(buffer) == buffer.write_count == 120
    own = [place for place in places(buffer) if place[0] == 1]
    before, after = own[:8], own[8:]
    assert before == [(1, 0, step) for step in range(6)] + [(1, 1, 0), (1, 1, 1)]
    assert after[0] == (1, 0, 0), "a new env"
    frames: Any = buffer[:]
    cut = [place for place in range(120) if places(buffer)[place][0] == 1][7]
    assert (bool(frames["next", "truncated"][cut]), bool(frames["next", "done"][cut])) == (True, True)


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("name", CLASSES)
def test_an_end_while_a_worker_writes(name: str, tmp_path: Path) -> None:
    gate, buffer = Gate(tmp_path), memory()
    options: Any = {"frames_per_batch": 12, "replay_buffer": buffer, "postproc": GatedWrite(gate, 2)}
    collector = CLASSES[name](singles(1), Told(), **options)
    pids = pids_of(collector)
    collector.start()
    gate.wait_for_entry()
    collector.shutdown(timeout=0.5)  # the gate stays closed: it returns without the write
    wait_for_end(collector)
    assert not any(map(exists, pids))
    assert len(buffer) == buffer.write_count == 12
    gate.close()


@pytest.mark.filterwarnings("ignore:total_frames")
def test_a_rollout_that_is_cut_has_its_last_frame_truncated() -> None:
    buffer = memory()
    options: Any = {"frames_per_batch": 8, "total_frames": 14, "set_truncated": True, "replay_buffer": buffer}
    with MultiSyncDataCollector([partial(Count, 100)] * 2, **options) as collector:
        collector.start()
        wait_for_end(collector)
    ends = torch.where(buffer[:]["next", "truncated"].flatten())[0].tolist()
    assert ends == [3, 7, 11, 13]


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
def test_no_slice_joins_what_several_workers_wrote(name: str, ids: bool) -> None:
    keys: Any = {"traj_key": ("collector", "traj_ids")} if ids else {"end_key": ("next", "done")}
    buffer = memory(200, batch_size=300, sampler=SliceSampler(slice_len=3, **keys))
    with CLASSES[name](singles(), Told(), frames_per_batch=10, total_frames=500, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_end(collector)
    for _ in range(5):
        slices: Any = buffer.sample()["observation"][:, :3].long().reshape(-1, 3, 3)
        assert (slices[:, :, :2] == slices[:, :1, :2]).all(), "one env and one episode"
        assert (slices[:, 1:, 2] == slices[:, :-1, 2] + 1).all(), "step after step"


def test_the_end_of_the_budget_comes_after_the_last_write() -> None:
    for _ in range(5):
        buffer = memory()
        with MultiaSyncDataCollector(singles(), Told(), frames_per_batch=4, total_frames=24, replay_buffer=buffer) as collector:
            collector.start()
            wait_for_end(collector)
            assert len(buffer) == 24


def test_workers_of_different_shapes_are_refused_by_the_buffer() -> None:
    buffer = memory(ndim=2)
    factories = [serials()[0], lambda: SerialEnv(3, [partial(Marked, 2 + number) for number in range(3)])]
    with MultiaSyncDataCollector(factories, Told(), frames_per_batch=12, replay_buffer=buffer) as collector:
        with pytest.raises(WorkerError, match="expected rows"):
            list(collector)
        assert len(buffer) >= 12
