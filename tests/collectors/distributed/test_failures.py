"""However a worker of a distributed collector fails, or its program ends: it is said at once, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from reap.collectors import MultiSyncDataCollector
from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector
from reap.errors import ClosedError, WorkerDied, WorkerRaised
from reap.testing import Const, Count
from reap.workers.processes import fork_client
from tests.collectors.seams import group_of
from tests.collectors.worker_kinds import Failing, Gate, Gated, assert_same, fail, steps, take, take_until_it_fails
from tests.warm import Program
from tests.workers.gloo.groups import pid_of, pids_of
from tests.workers.handlers import descriptors, exists, have_ended, patience, watch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

KINDS: dict[str, Callable[..., Any]] = {
    "async": DistributedDataCollector,
    "sync": partial(DistributedDataCollector, sync=True),
    "sync class": DistributedSyncDataCollector,
}


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    fork_client.server()
    before = descriptors()
    yield
    assert descriptors() == before


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


def pid(collector: Any, worker: int) -> int:
    return pid_of(group_of(collector), worker)


def take_seeds(collector: Any) -> None:
    for _ in range(100):
        collector.set_seed(1)


ENDS: dict[str, Any] = {"raise": ValueError, "os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("phase", ["start", "reset", "step"])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_failure_in_every_phase(kind: str, how: str, phase: str) -> None:
    with nothing_left():
        last: Any = (lambda: fail(how)) if phase == "start" else partial(Failing, how, phase)
        with pytest.raises((WorkerDied, WorkerRaised)) as info:
            take_until_it_fails(KINDS[kind]([partial(Count, 5), last], Const(), frames_per_batch=8))
        failure: Any = info.value
        assert failure.worker == 1
        assert failure.phase == ("making" if phase == "start" else phase) or phase == "start"
        if how == "raise":
            assert type(failure.__cause__) is ValueError
        else:
            assert failure.exit_code == ENDS[how]
        del info, failure


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_worker_that_is_killed_while_idle(kind: str) -> None:
    collector = KINDS[kind]([partial(Count, 5)] * 2, Const(), frames_per_batch=8, total_frames=16 if kind == "async" else -1)
    take(collector, 2)
    os.kill(pid(collector, 1), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
        take_seeds(collector)
    with pytest.raises(ClosedError):
        collector.set_seed(1)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_restart_after_a_kill_in_a_rollout(kind: str, gate: Gate) -> None:
    makers = [partial(Count, 1000), partial(Gated, gate.paths, [9], 1000)]
    collector = KINDS[kind](makers, Const(), frames_per_batch=16 if kind == "sync" else 8, on_worker_failure="restart")
    with collector, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "worker 1 is replaced", RuntimeWarning)

        def kill_once() -> None:
            gate.wait_for_entry()
            os.kill(pid(collector, 1), signal.SIGKILL)
            gate.wait_for_entry()  # its successor
            gate.open()

        thread = Thread(target=kill_once)
        thread.start()
        batches = take(collector, 4)
        while thread.is_alive():
            batches += take(collector, 1)
        thread.join()
        assert collector.stats().restarts == 1
        if kind == "sync":
            # The rollout was recorded anew, from the start of an episode.
            assert [steps(batch) for batch in batches[:3]] == [
                [list(range(8)), list(range(8))],
                [list(range(8, 16)), list(range(8))],
                [list(range(16, 24)), list(range(8, 16))],
            ]


def test_the_same_frames_as_processes_that_share_memory() -> None:
    def batches(kind: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(3)
        policy = torch.nn.Linear(4, 2)

        def act(observation: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(policy(observation).argmax(-1), 2)

        with kind(["CartPole-v1"] * 2, act, frames_per_batch=64, init_random_frames=64) as collector:
            collector.set_seed(11)
            return take(collector, 5)

    expected = batches(MultiSyncDataCollector)
    for kind in ("sync", "sync class"):
        for found, wanted in zip(batches(KINDS[kind]), expected, strict=True):
            assert_same(found, wanted, leave_out=[("collector", "policy_version")])


def test_two_collectors_at_once_and_one_after_another() -> None:
    with nothing_left():
        for _ in range(2):
            with (
                DistributedDataCollector([partial(Count, 5)] * 2, frames_per_batch=8) as one,
                DistributedSyncDataCollector([partial(Count, 5)] * 2, frames_per_batch=8) as other,
            ):
                for _ in range(3):
                    assert one.next().numel() == other.next().numel() == 8


def test_a_default_process_group_of_the_users_is_not_touched(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        default = torch.distributed.group.WORLD
        with DistributedDataCollector([partial(Count, 5)] * 2, Const(), frames_per_batch=8) as collector:
            take(collector, 3)
        assert torch.distributed.group.WORLD is default
        value = torch.ones(1)
        torch.distributed.all_reduce(value)
        assert value.item() == 1.0
    finally:
        torch.distributed.destroy_process_group()


def test_ctrl_c_in_next(gate: Gate) -> None:
    collector = DistributedDataCollector([partial(Gated, gate.paths, [1], 50)], Const(), frames_per_batch=4)
    with collector:

        def interrupt() -> None:
            gate.wait_for_entry()
            os.kill(os.getpid(), signal.SIGINT)

        thread = Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        thread.join()
        gate.open()
        assert steps(collector.next()) == [0, 1, 2, 3]


BEGIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector
from reap.testing import Count
def begin(cls=DistributedDataCollector, **options):
    collector = cls([lambda: Count(5)] * 2, frames_per_batch=8, **options)
    collector.next()
    carrier = collector._workers.group.carrier
    print(*[carrier.place(worker).split()[1] for worker in range(2)], flush=True)
    os.read(int(sys.argv[1]), 1)  # until the test closes the pipe
    return collector
"""
PROGRAMS = {
    "no shutdown": ("collector = begin()", 0, ""),
    "in the middle of a loop": ("for batch in begin(): break", 0, ""),
    "an exception": ("for batch in begin(DistributedSyncDataCollector): raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "sys.exit": ("collector = begin()\nfor batch in collector: sys.exit(3)", 3, ""),
    "a thread that runs": (
        "class Buffer:\n    def extend(self, data): pass\ncollector = begin(replay_buffer=Buffer())\ncollector.start()",
        0,
        "",
    ),
}


@contextlib.contextmanager
def running(code: str) -> Iterator[tuple[Program, list[int], int]]:
    """A program with a collector, its workers, and the descriptor whose end lets it go on."""
    theirs, ours = os.pipe()
    os.set_inheritable(ours, False)
    try:
        with Program(BEGIN + code, descriptors=[theirs]) as program:
            os.close(theirs)
            line = program.stdout.readline()
            assert line, program.stderr.read()
            yield program, watch(map(int, line.split())), ours
    finally:
        with contextlib.suppress(OSError):
            os.close(ours)


@pytest.mark.parametrize("end", PROGRAMS)
def test_ends_of_programs(end: str) -> None:
    code, expected, error = PROGRAMS[end]
    with running(code) as (program, workers, go_on):
        os.close(go_on)
        assert program.wait(50) == expected
        errors = program.stderr.read()
        assert have_ended(workers)
        assert error in errors
        assert error or not errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_trainer(number: int) -> None:
    with running("for batch in begin(): pass") as (program, workers, _):
        program.send_signal(number)
        begun = time.monotonic()
        assert have_ended(workers)
        assert time.monotonic() - begun < patience(5.0)


def test_shutdown_in_a_rollout(gate: Gate) -> None:
    with nothing_left():
        collector = DistributedDataCollector([partial(Gated, gate.paths, [1], 50)] * 2, frames_per_batch=4)
        pids = pids_of(group_of(collector))
        thread = Thread(target=_next, args=(collector,))
        thread.start()
        gate.wait_for_entry()
        collector.shutdown(0.5)
        thread.join()
        assert not any(map(exists, pids))
        del collector


def _next(collector: Any) -> None:
    with contextlib.suppress(ClosedError):
        collector.next()
