"""Workers that fail and are restarted: what they had completed stays, and the others notice nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
from reap.collectors.exchange.shared import SharedExchange
from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.testing import Const, Count
from reap.weights.schemes import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from tests.collectors.replays import wait_until
from tests.collectors.seams import group_of, pids_of
from tests.collectors.worker_kinds import Gate, nothing_left
from tests.pairwise import by_default

LENGTH = 7
SUCCESSOR = 2 << 40
"""Ids of the first worker that is launched in another's place, where there are two."""


class Fragile(gym.Env[Any, Any]):
    """Its observation says (episode, step); fails once, with its `at`-th step or reset, as long as the file is not there."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(
        self, file: Path | None = None, fail: Callable[[], None] = lambda: None, steps: int = -1, resets: int = -1
    ) -> None:
        self._file, self._fail, self._at = file, fail, {"steps": steps, "resets": resets}
        self._done = {"steps": 0, "resets": 0}
        self._step = 0
        self.seeds: list[int | None] = []

    def _count(self, what: str) -> None:
        self._done[what] += 1
        if self._file is not None and self._done[what] == self._at[what] and not self._file.exists():
            self._file.touch()
            self._fail()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._count("resets")
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._count("steps")
        return self._observation(), 1.0, self._step == LENGTH, False, {}

    def _observation(self) -> Any:
        return np.array([self._done["resets"] - 1, self._step], np.float32)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def complain() -> None:
    raise ValueError("no")


def frames(batch: Any) -> list[tuple[int, ...]]:
    """Of each frame: id, episode, step, done, truncated."""
    observation = batch["observation"].int().tolist()
    flags = [batch["next", name].flatten().int().tolist() for name in ("done", "truncated")]
    return [(i, *o, d, t) for i, o, d, t in zip(batch["collector", "traj_ids"].tolist(), observation, *flags, strict=True)]


@pytest.mark.parametrize("fail", by_default([kill, leave, complain], kill, complain))
def test_completed_columns_stay_and_a_successor_records_the_rest(tmp_path: Path, fail: Callable[[], None]) -> None:
    fragile = partial(Fragile, tmp_path / "failed", fail, steps=18)  # the sixth step of the second rollout of twelve
    with MultiSyncDataCollector(
        [Fragile, fragile], frames_per_batch=24, on_worker_failure="restart", max_frames_per_traj=100
    ) as collector:
        first, second, third = (collector.next().clone() for _ in range(3))
        old = 1 << 40
        assert frames(first[1]) == [
            *[(old, 0, t, int(t == 6), 0) for t in range(7)],
            *[(old + 1, 1, t, 0, 0) for t in range(5)],
        ]
        assert frames(second[1]) == [
            (old + 1, 1, 5, 0, 0),
            (old + 1, 1, 6, 1, 0),
            (old + 2, 2, 0, 0, 0),
            (old + 2, 2, 1, 0, 0),
            (old + 2, 2, 2, 1, 1),
            *[(SUCCESSOR, 0, t, int(t == 6), 0) for t in range(7)],
        ]
        assert second[1]["step_count"].flatten().tolist() == [5, 6, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
        assert second[1]["next", "step_count"].flatten().tolist() == [6, 7, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7]
        assert frames(third[1])[0] == (SUCCESSOR + 1, 1, 0, 0, 0)
        # The other worker noticed nothing.
        assert [step for batch in (first, second, third) for step in batch[0]["observation"][:, 1].tolist()] == [
            t % LENGTH for t in range(36)
        ]
        stats = collector.stats()
        assert (stats.restarts, [worker.restarts for worker in stats.workers], stats.frames) == (1, [0, 1], 72)


class Late(Fragile):
    """`Fragile` that waits at a gate each time it is made, except the first."""

    def __init__(self, paths: Sequence[str], marker: Path, failed: Path) -> None:
        super().__init__(failed, kill, steps=18)
        if marker.exists():
            entered, opened = (os.open(path, os.O_RDWR) for path in paths)
            os.write(entered, b".")
            os.read(opened, 1)
        marker.touch()


def interrupt_main_at(gate: Gate) -> None:
    """Ctrl-C, once an env waits at the gate."""
    gate.wait_for_entry()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.processes
@pytest.mark.parametrize("kind", [MultiSyncDataCollector, aSyncDataCollector])
def test_ctrl_c_while_a_successor_starts(tmp_path: Path, kind: Any) -> None:
    """It is killed, and the next call starts another: the batch is the same as without Ctrl-C."""
    gate = Gate(tmp_path)
    late = partial(Late, gate.paths, tmp_path / "made", tmp_path / "failed")
    with nothing_left() as pids:
        workers, frames_per_batch = ([Fragile, late], 24) if kind is MultiSyncDataCollector else ([late], 12)
        with kind(workers, frames_per_batch=frames_per_batch, on_worker_failure="restart") as collector:
            first = collector.next().clone()
            for _ in range(3):
                pids.extend(pids_of(collector))
                interruption = threading.Thread(target=interrupt_main_at, args=[gate])
                interruption.start()
                with pytest.raises(KeyboardInterrupt):
                    collector.next()
                interruption.join()
            gate.open()
            second = collector.next().clone()
            assert collector.stats().restarts == 1
            pids.extend(pids_of(collector))
        del collector
    gate.close()
    old, new = (1 << 40, SUCCESSOR) if kind is MultiSyncDataCollector else (0, 1 << 40)
    rows = [frames(batch[1] if kind is MultiSyncDataCollector else batch) for batch in (first, second)]
    assert [number - old for number, *_ in rows[0]] == [0] * 7 + [1] * 5
    assert [(number, step) for number, _, step, *_ in rows[1]] == [
        *[(old + 1, 5), (old + 1, 6), (old + 2, 0), (old + 2, 1), (old + 2, 2)],
        *[(new, t) for t in range(7)],
    ]


def test_a_reset_that_fails_loses_no_column(tmp_path: Path) -> None:
    fragile = partial(Fragile, tmp_path / "failed", kill, resets=3)  # after the end of the second episode
    with MultiSyncDataCollector([Fragile, fragile], frames_per_batch=40, on_worker_failure="restart") as collector:
        row = frames(collector.next()[1])
    assert [step for _, _, step, _, _ in row] == [t % LENGTH for t in range(20)]
    assert [number for number, *_ in row[13:15]] == [(1 << 40) + 1, SUCCESSOR]
    assert not any(truncated for *_, truncated in row)


def test_a_worker_killed_between_two_batches_is_replaced() -> None:
    with MultiSyncDataCollector([Fragile, Fragile], frames_per_batch=24, on_worker_failure="restart") as collector:
        collector.next()
        os.kill(pids_of(collector)[0], signal.SIGKILL)
        row = frames(collector.next()[0])
        assert [number for number, *_ in row] == [SUCCESSOR] * 7 + [SUCCESSOR + 1] * 5


@pytest.mark.parametrize("kind", [MultiaSyncDataCollector, aSyncDataCollector])
def test_in_the_background_the_budget_is_kept(tmp_path: Path, kind: Any) -> None:
    failed = tmp_path / "failed"
    fragile = partial(Fragile, failed, kill, steps=18)
    waits = partial(wait_until, failed.exists, "the other did not fail")  # in its second rollout too
    following = partial(Fragile, tmp_path / "waited", waits, steps=13)
    envs = [following, fragile] if kind is MultiaSyncDataCollector else [fragile]
    with kind(envs, frames_per_batch=12, total_frames=96, on_worker_failure="restart") as collector:
        batches = [batch.clone() for batch in collector]
        assert (len(batches), collector.stats().restarts) == (8, 1)
    for batch in batches:
        ids, done = batch["collector", "traj_ids"], batch["next", "done"].flatten()
        assert ((ids[1:] != ids[:-1]) == done[:-1]).all()


def test_a_worker_that_fails_again_without_a_column_is_given_up() -> None:
    class Broken(Fragile):
        def step(self, action: Any) -> Any:
            raise ValueError("always")

    with (
        MultiSyncDataCollector([Fragile, Broken], frames_per_batch=24, on_worker_failure="restart") as collector,
        pytest.raises(WorkerRaised, match="always"),
    ):
        collector.next()


def short_lived(folder: Path) -> Fragile:
    """Its first process is killed in its second step, and the next before it has an env."""
    life = len(list(folder.iterdir()))
    (folder / str(life)).touch()
    if life == 1:
        kill()
    return Fragile(folder.parent / "failed", kill, steps=2)


def test_a_successor_that_has_no_env_has_completed_no_column_though_there_is_only_one(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    envs = [Fragile, partial(short_lived, lives)]
    with MultiSyncDataCollector(envs, frames_per_batch=2, on_worker_failure="restart") as collector:
        collector.next()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collector.next()


def test_another_choice_is_refused() -> None:
    with pytest.raises(OptionError, match='expected "raise" or "restart"'):
        MultiSyncDataCollector([Fragile], frames_per_batch=24, on_worker_failure="ignore")


class Draws(Fragile):
    """`Fragile` whose episodes are drawn: the second number of an observation is random.

    Args:
        folder: its first two processes leave a file here when they are killed, in their sixth step.
    """

    def __init__(self, folder: Path | None = None) -> None:
        lives = 2 if folder is None else len(list(folder.iterdir()))
        super().__init__(folder / str(lives) if folder and lives < 2 else None, kill, steps=6)

    def _observation(self) -> Any:
        return np.array([self._done["resets"] - 1, self.np_random.integers(1 << 20)], np.float32)


def drawn(folder: Path, seed: int, static: bool = False) -> list[list[float]]:
    """What each worker drew in 40 frames; the second is killed twice, with five frames complete each time."""
    folder.mkdir()
    with MultiSyncDataCollector([Draws, partial(Draws, folder)], frames_per_batch=80, on_worker_failure="restart") as collector:
        collector.set_seed(seed, static_seed=static)
        batch = collector.next()
        assert collector.stats().restarts == 2
    return batch["observation"][..., 1].tolist()


@pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.processes)])
def test_each_successor_has_a_seed_of_its_own_the_same_in_each_run(tmp_path: Path, static: bool) -> None:
    first = drawn(tmp_path / "first", 7, static)
    assert drawn(tmp_path / "again", 7, static) == first
    assert drawn(tmp_path / "other", 8, static)[1] != first[1]
    assert (first[0][:5] == first[1][:5]) == static
    starts = [tuple(first[1][start : start + 5]) for start in (0, 5, 10)]
    assert len(set(starts)) == 3, "none of them plays what another has played"


def test_without_a_seed_successors_have_none(tmp_path: Path) -> None:
    fragile = partial(Fragile, tmp_path / "failed", kill, steps=6)
    with MultiSyncDataCollector([Fragile, fragile], frames_per_batch=24, on_worker_failure="restart") as collector:
        collector.next()
        assert collector.stats().restarts == 1
        seeds = collector.getattr_env("seeds")
    assert [set(own) for own in seeds] == [{None}, {None}]


def test_ids_after_a_resume_are_new_ones(tmp_path: Path) -> None:
    """Neither the worker that was restarted, nor one that is restarted after the load, has a number that another one had."""

    def ids(collector: Any) -> set[int]:
        return {number for _ in range(2) for number in collector.next()["collector", "traj_ids"].flatten().tolist()}

    options: Any = {"frames_per_batch": 24, "on_worker_failure": "restart"}
    fragile = [partial(Fragile, tmp_path / name, kill, steps=18) for name in ("first", "second")]
    with MultiSyncDataCollector([Fragile, fragile[0]], **options) as collector:
        before = ids(collector)
        state = collector.state_dict()
    assert {number >> 40 for number in before} == {0, 1, 2}
    with MultiSyncDataCollector([Fragile, fragile[1]], **options) as collector:
        collector.load_state_dict(state)
        after = ids(collector)
    assert {number >> 40 for number in after} == {0, 2, 3}
    assert not before & after


@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_workers_that_fail_at_the_same_time(tmp_path: Path, kind: Any) -> None:
    factories = [partial(Fragile, tmp_path / str(worker), kill, steps=18) for worker in range(3)]
    frames_per_batch = 120 if kind is MultiSyncDataCollector else 40
    with kind(factories, frames_per_batch=frames_per_batch, total_frames=120, on_worker_failure="restart") as collector:
        batches = [batch.clone().reshape(-1, 40) for batch in collector]
        assert collector.stats().restarts == 3
    rows = [row for batch in batches for row in batch]
    assert len(rows) == 3
    for row in rows:
        steps = [step for _, _, step, _, _ in frames(row)]
        assert steps == [t % LENGTH for t in range(17)] + [t % LENGTH for t in range(23)]


@pytest.mark.parametrize(
    "call",
    [
        lambda collector: collector.state_dict(),
        lambda collector: collector.load_state_dict(collector.state_dict()),
        lambda collector: collector.set_seed(1),
        lambda collector: collector.reset(),
        lambda collector: collector.getattr_env("_step"),
        lambda collector: collector.call_env("_observation"),
    ],
)
@pytest.mark.parametrize("kind", [MultiSyncDataCollector, pytest.param(MultiaSyncDataCollector, marks=pytest.mark.processes)])
def test_a_death_that_another_call_sees_first_is_recovered_from(kind: Any, call: Callable[[Any], Any]) -> None:
    with kind([Fragile, Fragile], frames_per_batch=24, on_worker_failure="restart") as collector:
        collector.next()
        for pid in pids_of(collector):
            os.kill(pid, signal.SIGKILL)
        while len(group_of(collector).failures()) < 2:  # their ends come one after the other
            pass
        call(collector)
        for _ in range(3):
            collector.next()
        assert collector.stats().restarts == 2


class Mortal(Fragile):
    """`Fragile` that can be told to die, once."""

    def __init__(self, died: Path) -> None:
        super().__init__()
        self._died = died

    def die(self) -> str:
        if not self._died.exists():
            self._died.touch()
            kill()
        return "alive"


@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_a_death_in_a_call_is_raised_by_it_and_recovered_from_by_the_next(tmp_path: Path, kind: Any) -> None:
    mortal = partial(Mortal, tmp_path / "died")
    with kind([mortal, mortal], frames_per_batch=24, on_worker_failure="restart") as collector:
        collector.next()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collector.call_env("die")
        assert collector.call_env("die") == ["alive", "alive"]
        collector.next()
        assert collector.stats().restarts == 1


@pytest.mark.parametrize("scheme", [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme])
def test_weights_go_to_a_successor_whose_start_was_broken_off(scheme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Const(0.0)
    options: Any = {"on_worker_failure": "restart", "weight_sync_schemes": {"policy": scheme()}}
    with MultiSyncDataCollector([partial(Count, 5)] * 2, policy, frames_per_batch=4, **options) as collector:
        collector.next()
        attach, interruptions = SharedExchange.attach_weights, [KeyboardInterrupt()]

        def interrupted(exchange: SharedExchange, worker: int, box: Any) -> None:
            attach(exchange, worker, box)
            if interruptions:
                raise interruptions.pop()

        monkeypatch.setattr(SharedExchange, "attach_weights", interrupted)
        os.kill(pids_of(collector)[0], signal.SIGKILL)
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        nn.init.constant_(policy.w, 7.0)
        collector.update_policy_weights_()
        assert collector.next()["action"][0].unique().tolist() == [7.0]  # the other one was at work before
        assert collector.next()["action"].unique().tolist() == [7.0]
        assert collector.stats().restarts == 1
