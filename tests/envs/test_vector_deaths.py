"""However a process of an `AsyncVectorEnv` fails: the error names it, the env closes in a limited time, and nothing is left."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.envs.gymnasium.processes import ends
from reap.envs.gymnasium.processes.ends import end_processes
from reap.errors import ClosedError, WorkerDied
from tests.envs.vector_envs import ROWS, Tagged, make_async, needs_modes
from tests.workers.handlers import have_ended, watch

pytestmark = [needs_modes, pytest.mark.timeout(100)]

HOWS = {"kill": -signal.SIGKILL, "exit": 7}
ACTIONS = np.zeros(ROWS, np.int64)


class Fails(Tagged):
    """Its process ends in a call of the second episode, or the call raises."""

    def __init__(self, number: int, where: str, how: str) -> None:
        super().__init__(number)
        self.where, self.how = where, how

    def _fail(self, where: str) -> None:
        if self.where != where or self.episode < 1:
            return
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            sys.exit(7)
        raise ZeroDivisionError("on purpose")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self._fail("reset")
        return result

    def step(self, action: Any) -> Any:
        self._fail("step")
        return super().step(action)


def failing(where: str, how: str, number: int = 1) -> Any:
    return make_async([partial(Fails, b, where if b == number else "never", how) for b in range(ROWS)])


def pids_of(env: Any) -> list[int]:
    return [process.pid for process in env.processes]


def kill(pid: int) -> None:
    [pidfd] = watch([pid])
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


@pytest.mark.parametrize(
    ("where", "how", "number"), [("reset", "kill", 1), ("reset", "exit", 0), ("step", "kill", 2), ("step", "exit", 1)]
)
def test_a_process_that_dies_in_a_call(where: str, how: str, number: int) -> None:
    env = failing(where, how, number)
    processes = watch(pids_of(env))
    with SyncDataCollector(env, None, frames_per_batch=30 * ROWS) as collector:
        for phase in (where, "reset"):  # the second batch begins with a reset
            with pytest.raises(WorkerDied) as info:
                collector.next()
            died = info.value
            assert (died.worker, died.exit_code, died.phase) == (number, HOWS[how], phase)
            assert f"It is the process of env {number} of AsyncVectorEnv(num_envs={ROWS})" in str(died)
        collector.shutdown(timeout=2)
    assert have_ended(processes, timeout=0)


@pytest.mark.parametrize("number", range(ROWS))
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: wrappers.ClipReward(env, 0, 1)], ids=["bare", "wrapped"])
def test_a_process_that_dies_between_batches(number: int, wrap: Any) -> None:
    env = failing("never", "kill")
    processes = watch(pids_of(env))
    with SyncDataCollector(wrap(env), None, frames_per_batch=ROWS) as collector:
        collector.next()
        kill(env.processes[number].pid)
        with pytest.raises(WorkerDied, match=rf"^Worker {number} was killed by SIGKILL \(signal 9\) during step"):
            collector.next()
    assert have_ended(processes, timeout=0)


def test_calls_and_attributes_of_the_envs() -> None:
    with GymEnv(failing("never", "kill")) as env:
        env.reset()
        kill(env.wrapped.processes[1].pid)
        for call, phase in (
            (lambda: env.call("_observe"), "call('_observe')"),
            (lambda: env.get_attribute("number"), "get_attr('number')"),
        ):
            with pytest.raises(WorkerDied) as info:
                call()
            assert (info.value.worker, info.value.phase) == (1, phase)


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # gymnasium logs what it raises
def test_an_env_that_raises_ends_the_vector_env() -> None:
    env = failing("step", "raise")
    processes = watch(pids_of(env))
    with SyncDataCollector(env, None, frames_per_batch=30 * ROWS) as collector:
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            collector.next()
        with pytest.raises(ClosedError, match=rf"AsyncVectorEnv\(num_envs={ROWS}\): its process 1 has ended, because its env"):
            collector.next()
    assert have_ended(processes, timeout=0)


def test_all_envs_of_a_batch_are_closed() -> None:
    made = [failing("never", "kill") for _ in range(2)]
    processes = watch(pid for env in made for pid in pids_of(env))
    rest = iter(made)
    with SyncDataCollector(SerialEnv(2, lambda: GymEnv(next(rest))), None, frames_per_batch=2 * ROWS) as collector:
        collector.next()
        kill(made[1].processes[0].pid)
        with pytest.raises(WorkerDied):
            collector.next()
    assert have_ended(processes, timeout=0)


# ---------------------------------------------------------------------- ends


class Busy(Tagged):
    """A step that does not return, in a process that ignores SIGTERM."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        threading.Event().wait()


def test_a_process_that_is_stuck_in_a_step_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "LAST_PATIENCE", 0.0)
    env = make_async([partial(Busy, 0), partial(Tagged, 1)])
    processes = watch(pids_of(env))
    env.reset()
    env.step_async(ACTIONS[:2])
    end_processes(wrappers.ClipReward(env, 0, 1), patience=0.0)
    assert env.closed
    assert have_ended(processes, timeout=0)
    end_processes(env)  # does nothing


class Large(Tagged):
    """Replies that do not fit into a pipe; `close` leaves a file."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(number)
        self.folder = folder

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"large": bytes(1 << 20)}

    def close(self) -> None:
        (self.folder / f"{os.getpid()}").touch()


def test_envs_are_closed_although_replies_are_under_way(tmp_path: Path) -> None:
    vector = make_async([partial(Large, b, tmp_path) for b in range(ROWS)])
    pids = {str(pid) for pid in pids_of(vector)}
    with GymEnv(vector) as env:
        env.reset()
        vector.step_async(ACTIONS)
    assert vector.closed
    assert pids <= set(os.listdir(tmp_path))


def test_no_descriptor_is_left() -> None:
    env = failing("never", "kill")
    pipes = list(env.parent_pipes)
    with GymEnv(env) as made:
        made.reset()
        kill(env.processes[0].pid)
    assert all(pipe.closed for pipe in pipes)
    assert not any(process.is_alive() for process in env.processes)
