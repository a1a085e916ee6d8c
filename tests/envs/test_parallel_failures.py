"""However an env of a `ParallelEnv` fails: the cause is named at once, and nothing is left."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.envs import GymEnv, ParallelEnv, SerialEnv
from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.testing import Const, Count, IdRows
from reap.workers.processes import fork_client as launch
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import Gate, Gated
from tests.envs.parallel_kinds import Deadly, Says, end, env_processes
from tests.warned import on_warning
from tests.workers.handlers import descriptors, have_ended, watch
from tests.workers.scripts import Script

pytestmark = pytest.mark.processes

HOWS = {"raise": None, "exit": 7, "kill": -9}


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    launch.server()
    gc.collect()
    before = kinds()
    yield
    gc.collect()
    assert kinds() == before


def kinds() -> list[str]:
    """What is open, without the numbers."""
    return sorted(one.partition(" ")[2] for one in descriptors())


def checked(failure: BaseException, how: str, phase: str, process: int = 1) -> None:
    if how == "raise":
        assert isinstance(failure, WorkerRaised)
        assert type(failure.__cause__) is ZeroDivisionError
        assert str(failure).startswith("ZeroDivisionError: on purpose")
    else:
        assert isinstance(failure, WorkerDied)
        assert failure.exit_code == HOWS[how]
    assert (failure.worker, failure.phase) == (process, phase)


def deadly(where: str, how: str, k: int, place: int, count: int = 4) -> list[Callable[[], Any]]:
    """Factories, of which the one at a place ends in its k-th call."""
    return [partial(Deadly, where, how, k if b == place else 10**9) for b in range(count)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_in_a_collector(where: str, how: str) -> None:
    env = ParallelEnv(4, deadly(where, how, {"reset": 4, "step": 12}[where], 3), num_processes=2)
    collector = SyncDataCollector(env, Const(), frames_per_batch=80)
    processes = watch(env_processes())
    with pytest.raises((WorkerRaised, WorkerDied)) as info:
        collector.next()
    checked(info.value, how, where)
    assert have_ended(processes, timeout=0)
    if how == "raise":
        assert info.value.__cause__.__notes__[0] == "reap: in env 3 of 4"
    for call in (collector.next, env.reset, env.rand_step, lambda: env.set_seed(1), lambda: env.call("observe")):
        with pytest.raises(ClosedError) as closed:
            call()
        assert closed.value.__cause__ is info.value
    env.close()
    collector.shutdown()


@pytest.mark.parametrize("how", HOWS)
def test_of_an_env_with_objects(how: str) -> None:
    class Deaf(Says):
        def step(self, action: Any) -> Any:
            if self.steps == 2:
                end(how)
            return super().step(action)

    env = ParallelEnv(3, [lambda: Says(5), lambda: Says(5), lambda: Deaf(5)], num_processes=2)
    with pytest.raises((WorkerRaised, WorkerDied)) as info:
        env.rollout(10)
    checked(info.value, how, "step")
    with pytest.raises(ClosedError):
        env.reset()
    env.close()


@pytest.mark.parametrize("how", HOWS)
def test_in_a_factory(how: str) -> None:
    env = ParallelEnv(3, [lambda: Count(3), lambda: Count(3), lambda: end(how)], num_processes=2)
    with pytest.raises((WorkerRaised, WorkerDied)) as info:
        env.reset()
    checked(info.value, how, "start")
    if how == "raise":
        assert "reap: in env 2 of 3" in info.value.__cause__.__notes__
    with pytest.raises((WorkerRaised, WorkerDied)):
        env.reset()
    env.close()


def test_a_factory_that_makes_no_env() -> None:
    env = ParallelEnv(2, lambda: None)
    with pytest.raises(OptionError, match="expected it to return an env, got NoneType: None; does it lack a return"):
        env.reset()


def test_a_factory_that_cannot_be_sent() -> None:
    lock = threading.Lock()

    def make() -> Any:
        return Count(3 if lock else 4)

    with pytest.raises(OptionError, match=r"cannot be sent to a worker: .*lock"):
        ParallelEnv(2, make).reset()


@pytest.mark.parametrize("how", HOWS)
def test_in_a_worker_of_a_collector(how: str) -> None:
    envs = [ParallelEnv(2, deadly("step", how, 30, 1 if w else 9, 2), num_processes=2) for w in range(2)]
    collector = MultiSyncDataCollector(envs, Const(), frames_per_batch=40)
    with pytest.raises(WorkerRaised) as info:
        list(collector)
    assert info.value.worker == 1
    checked(info.value.__cause__, how, "step")
    collector.shutdown()


def test_a_worker_of_a_collector_that_is_killed_takes_its_processes_along() -> None:
    collector = MultiSyncDataCollector([ParallelEnv(2, lambda: Count(3), num_processes=2)], Const(), frames_per_batch=40)
    collector.next()
    [pid] = pids_of(collector)
    own = env_processes()
    assert len(own) == 2
    processes = watch(own)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        collector.next()
    assert have_ended(processes)
    collector.shutdown()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


def test_sigkill_while_the_caller_waits(gate: Gate) -> None:
    env = ParallelEnv(4, [lambda: Count(3)] * 3 + [partial(Gated, gate.paths, [1])], num_processes=2)
    env.reset()
    pid = env_processes()[0]
    killer = threading.Thread(target=lambda: (gate.wait_for_entry(), os.kill(pid, signal.SIGKILL)))
    killer.start()
    with pytest.raises(WorkerDied, match="Worker 0 was killed by SIGKILL"):
        env.rand_step()
    killer.join()
    env.close()


def test_death_between_steps() -> None:
    env = ParallelEnv(2, lambda: Count(3), num_processes=2)
    env.rollout(2)
    pid = env_processes()[1]
    [process] = watch([pid])
    os.kill(pid, signal.SIGKILL)
    assert have_ended([process])
    with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
        env.rollout(2)
    env.close()


def test_closed_by_another_thread_while_the_caller_waits(gate: Gate) -> None:
    env = ParallelEnv(2, [partial(Gated, gate.paths, [1]), lambda: Count(3)], num_processes=2)
    env.reset()
    closer = threading.Thread(target=lambda: (gate.wait_for_entry(), env.close()))
    closer.start()
    with pytest.raises(ClosedError):
        env.rand_step()
    closer.join()


def test_ctrl_c_while_the_caller_waits(gate: Gate) -> None:
    factories = [partial(Gated, gate.paths, [2]), lambda: Count(100)]
    with ParallelEnv(2, factories, num_processes=2) as env:
        collector = SyncDataCollector(env, Const(), frames_per_batch=10)
        interruption = threading.Thread(target=lambda: (gate.wait_for_entry(), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            (interruption.start(), collector.next())
        interruption.join()
        opening = threading.Timer(0.1, gate.open)  # most likely while the next batch waits for the step
        opening.start()
        # The step under way ends before the next one begins.
        assert collector.next()["observation"].squeeze(-1).tolist() == [[0, 1, 2, 3, 4]] * 2
        opening.join()
        collector.shutdown()


LEFT_OPEN = """
import os, signal
from reap import ParallelEnv
from tests.envs.parallel_kinds import env_processes
env = ParallelEnv(4, "CartPole-v1", num_processes=2)
env.rollout(20)
print(*env_processes(), flush=True)
input()
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_however_the_caller_ends_without_a_close(end: str) -> None:
    with Script(LEFT_OPEN.format(end=end)) as script:
        processes = watch(map(int, script.line().split()))
        assert len(processes) == 2
        _, errors = script.communicate("\n")
        assert have_ended(processes)
        assert errors == ""


def test_envs_are_named_by_their_place_in_the_whole() -> None:
    class Raising(IdRows):
        def _step(self, tensordict: Any) -> Any:
            raise KeyError("on purpose")

    serial = SerialEnv(3, [lambda: IdRows((2,)), lambda: IdRows((2,)), lambda: Raising((2,))])
    with pytest.raises(KeyError) as info:
        serial.rollout(2)
    assert info.value.__notes__ == ["reap: in env 2 of 3"]
    env = ParallelEnv(3, [lambda: IdRows((2,)), lambda: IdRows((2,)), lambda: Raising((2,))], num_processes=2)
    with pytest.raises(WorkerRaised) as raised:
        env.rollout(2)
    assert raised.value.__cause__.__notes__ == ["reap: in env 2 of 3"]
    env.close()


def test_an_env_that_raises_in_a_call_goes_on() -> None:
    with ParallelEnv(2, lambda: GymEnv(Count(3)), num_processes=2) as env:
        for _ in range(2):
            with pytest.raises(WorkerRaised, match="TypeError"):
                env.call("observe", 1, 2, 3)
            assert env.reset()["observation"].tolist() == [[0], [0]]


# ---------------------------------------------------------------------- processes that do not move


class Waiting(Says):
    """Its third step waits for a byte."""

    def __init__(self, gate: str | None = None) -> None:
        super().__init__(100)
        self._gate = gate

    def step(self, action: Any) -> Any:
        if self._gate is not None and self.steps == 2:
            descriptor = os.open(self._gate, os.O_RDWR)
            os.read(descriptor, 1)
            os.close(descriptor)
        return super().step(action)


class Counting(Waiting):
    """`Waiting` without texts."""

    observation_space = Count.observation_space

    def observe(self) -> Any:
        return Count.observe(self)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", [Counting, Waiting])
def test_a_step_that_does_not_end_is_reported(tmp_path: Path, kind: Any, overlap: bool) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)
    texts: list[str] = []

    def show(message: str, kind: type[Warning]) -> None:
        if message.startswith("worker 1 has been in step "):  # not in its start; on a busy machine others may be slow too
            texts.append(message)
            os.write(opened, b"x")

    factories = [kind, partial(kind, gate), kind]
    with (
        ParallelEnv(3, factories, num_processes=3, overlap=overlap, stall_after=0.05) as env,
        on_warning(show),
        SyncDataCollector(env, None if kind is Waiting else Const(), frames_per_batch=15) as collector,
    ):
        batch = collector.next()
        pids = env_processes()
        collector.shutdown(close_env=False)
    assert re.fullmatch(rf"worker 1 has been in step for [\d.]+ s \(pid {pids[1]}\)", texts[0])
    assert batch["next", "reward"].sum() == 15
    os.close(opened)


@pytest.mark.parametrize("seconds", [0, -1, True, "60"])
def test_a_time_that_cannot_be(seconds: Any) -> None:
    with pytest.raises(OptionError, match="stall_after: expected a positive number of seconds or None"):
        ParallelEnv(2, "CartPole-v1", stall_after=seconds)
