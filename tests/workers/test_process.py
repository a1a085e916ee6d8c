"""Handlers in child processes: large messages, commands with descriptors, shared control ints, workers of workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from reap.errors import WorkerDied, WorkerRaised
from reap.workers.processes import fork_client as launch
from reap.workers.processes.group import ProcessGroup
from reap.workers.progress import COLUMN, Progress, new_control
from tests.workers.handlers import (
    Boss,
    Doer,
    ask,
    descriptors,
    die,
    exists,
    have_ended,
    poll_until_it_fails,
    wait_for_byte,
    watch,
)

MEGABYTES = 100


@pytest.fixture
def workers() -> Iterator[ProcessGroup]:
    group = ProcessGroup([Doer] * 3, phases=("thinking", "stepping"))
    yield group
    group.stop()


@pytest.fixture
def gates() -> Iterator[list[tuple[int, int]]]:
    pipes = [os.pipe() for _ in range(3)]
    yield pipes
    for pipe in pipes:
        for descriptor in pipe:
            os.close(descriptor)


@pytest.mark.processes
def test_large_messages_go_both_ways_at_once(workers: ProcessGroup) -> None:
    large = bytes(MEGABYTES << 20)
    workers.request(0, lambda doer: bytes(MEGABYTES << 20))  # its reply fills the socket while the next is being sent
    workers.request(0, ("concat", large, b"."))
    assert len(workers.ready({0})[1]) == MEGABYTES << 20
    assert len(workers.ready({0})[1]) == (MEGABYTES << 20) + 1


def test_both_sides_see_the_control_ints(workers: ProcessGroup, gates: list[tuple[int, int]]) -> None:
    def write_and_wait(doer: Doer, gate: int, told: int) -> list[int]:
        doer.control[COLUMN] = 7
        os.write(told, b".")
        os.read(gate, 1)
        return list(doer.control)

    control = workers.carrier.control(1)
    workers.request(1, write_and_wait, [gates[0][0], gates[1][1]])
    os.read(gates[1][0], 1)
    assert workers.progress(1) == Progress(0, 7, 0)
    workers.stop_early(1)
    os.write(gates[0][1], b".")
    assert workers.ready({1})[1] == [0, 7, 1, 0]
    assert list(workers.carrier.control(0)) == list(new_control())
    workers.stop()
    assert list(control) == [0, 7, 1, 0]


def test_descriptors_stay_the_same_in_number_and_none_is_left(workers: ProcessGroup, gates: list[tuple[int, int]]) -> None:
    def opened(doer: Doer, *fds: int) -> int:
        for fd in fds:
            os.close(fd)
        return len(os.listdir("/proc/self/fd"))

    ask(workers, 0, ("neg", 1))
    before, in_worker = len(descriptors()), ask(workers, 0, opened)
    for _ in range(500):
        workers.request(0, ("neg", 1))
        workers.ready({0})
        workers.request(0, opened, [gates[0][0], gates[1][0]])
        workers.ready({0})
    assert len(descriptors()) == before
    assert ask(workers, 0, opened) == in_worker
    assert in_worker == 3 + 2 + 1  # stdio, channel, requests, and the listing itself


def test_a_descriptor_that_cannot_be_sent_is_an_error_of_the_call(workers: ProcessGroup) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        workers.request(0, wait_for_byte, [10_000])
    with pytest.raises(RuntimeError, match="no request is under way"):
        workers.ready({0})
    assert ask(workers, 0, ("neg", 1)) == -1


def test_a_group_leaves_no_descriptor_and_no_process() -> None:
    launch.server()
    before = descriptors()
    group = ProcessGroup([Doer] * 3)
    pids = group.pids
    held = group.carrier.control(0)
    ask(group, 0, ("neg", 1))
    group.stop()
    assert descriptors() == before
    assert not any(map(exists, pids))
    assert held[0] == 0


# Replacement


def test_processes_that_failed_can_be_replaced() -> None:
    group = ProcessGroup([Doer] * 3, on_failure="report")
    old = group.pids
    group.request(0, lambda doer: die("SIGKILL"))
    group.request(2, lambda doer: die("raise"))
    for _ in range(2):
        with pytest.raises((WorkerDied, WorkerRaised)):
            poll_until_it_fails(group)
    with pytest.raises(WorkerDied, match="Worker 0 was killed by SIGKILL"):
        group.request(0, ("neg", 1))
    group.stop_early(0)
    for worker in (0, 2):
        group.replace(worker, Doer)
    assert list(group.carrier.control(0)) == list(new_control())
    pids = group.pids
    assert (pids[1], len({*pids, *old})) == (old[1], 5)
    assert not any(map(exists, (old[0], old[2])))
    assert [ask(group, worker, lambda doer: doer.worker) for worker in range(3)] == [0, 1, 2]
    group.stop()
    assert not any(map(exists, pids))


def test_a_process_that_is_replaced_is_gone(workers: ProcessGroup) -> None:
    old = workers.pids[1]
    workers.request(1, ("neg", 1))
    workers.replace(1, Doer)
    assert not exists(old)
    assert ask(workers, 1, ("neg", 2)) == -2


# Workers of workers


def test_workers_of_workers_come_from_the_same_server_and_die_with_them() -> None:
    group = ProcessGroup([Boss])
    pid, child_server, parent = ask(
        group, 0, lambda boss: (boss.group.pids[0], launch.server().pid, ask(boss.group, 0, lambda doer: os.getppid()))
    )
    assert child_server is None
    assert parent == launch.server().pid
    [grandchild] = watch([pid])
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        poll_until_it_fails(group)
    assert have_ended([grandchild])


def test_a_stopped_worker_stops_its_workers() -> None:
    group = ProcessGroup([Boss] * 2)
    pids = [ask(group, worker, lambda boss: boss.group.pids[0]) for worker in range(2)]
    group.stop()
    assert not any(map(exists, pids))


def test_the_failure_of_a_workers_worker_travels_up() -> None:
    group = ProcessGroup([Boss])
    group.request(0, lambda boss: ask(boss.group, 0, lambda doer: die("raise")))
    with pytest.raises(WorkerRaised) as info:
        group.ready({0})
    assert type(info.value.__cause__) is WorkerRaised
    assert type(info.value.__cause__.__cause__) is ValueError
