"""Handlers in child processes: replies in order of arrival, large ones too, commands with descriptors, control ints."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.workers.base import Call
from reap.workers.processes import fork_client as launch
from reap.workers.processes.group import ProcessGroup
from tests.workers.handlers import (
    Boss,
    Doer,
    Harmless,
    ask,
    descriptors,
    die,
    exists,
    have_ended,
    poll_until_it_fails,
    wait_for_byte,
    watch,
)

pytestmark = pytest.mark.timeout(30)

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


def test_a_reply_comes_from_the_worker_that_was_asked(workers: ProcessGroup) -> None:
    for worker in range(3):
        workers.request(worker, ("add", worker, 10))
    assert sorted(workers.ready(range(3)) for _ in range(3)) == [(0, 10), (1, 11), (2, 12)]


def test_replies_come_in_the_order_in_which_they_arrive(workers: ProcessGroup, gates: list[tuple[int, int]]) -> None:
    for worker, (reader, _) in enumerate(gates):
        workers.request(worker, wait_for_byte, [reader])
    for worker in (2, 0, 1):
        assert workers.poll(range(3)) is None
        os.write(gates[worker][1], bytes([worker]))
        assert workers.ready(range(3)) == (worker, bytes([worker]))


def test_a_reply_of_another_worker_waits_until_it_is_asked_for(workers: ProcessGroup) -> None:
    workers.request(0, ("add", 1, 1))
    assert ask(workers, 1, ("add", 2, 2)) == 4
    assert workers.ready({0}) == (0, 2)


def test_commands_are_carried_out_one_after_the_other(workers: ProcessGroup) -> None:
    for number in range(20):
        workers.request(0, ("neg", number))
    assert [workers.ready({0})[1] for _ in range(20)] == [-number for number in range(20)]


def test_nobody_waits_for_a_worker_that_has_nothing_to_do(workers: ProcessGroup) -> None:
    workers.request(0, ("neg", 1))
    with pytest.raises(RuntimeError, match=r"no request is under way to workers \[1, 2\]"):
        workers.ready({1, 2})
    assert workers.ready({0}) == (0, -1)


def test_large_messages_go_both_ways_at_once(workers: ProcessGroup) -> None:
    large = bytes(MEGABYTES << 20)
    workers.request(0, lambda doer: bytes(MEGABYTES << 20))  # its reply fills the socket while the next is being sent
    workers.request(0, ("concat", large, b"."))
    assert len(workers.ready({0})[1]) == MEGABYTES << 20
    assert len(workers.ready({0})[1]) == (MEGABYTES << 20) + 1


def test_what_is_local_travels(workers: ProcessGroup) -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    back = ask(workers, 0, lambda doer: Local(doer.worker + 5))
    assert type(back) is Local
    assert back.number == 5


def test_both_sides_see_the_control_ints(workers: ProcessGroup, gates: list[tuple[int, int]]) -> None:
    def write_and_wait(doer: Doer, gate: int) -> list[int]:
        doer.control[2] = 7
        os.read(gate, 1)
        return list(doer.control)

    workers.control(1)[1] = 5
    workers.request(1, write_and_wait, [gates[0][0]])
    workers.control(1)[3] = 9
    os.write(gates[0][1], b".")
    assert workers.ready({1})[1] == [0, 5, 7, 9]
    assert list(workers.control(1)) == [0, 5, 7, 9]
    assert list(workers.control(0)) == [0, 0, 0, 0]
    control = workers.control(1)
    workers.stop()
    assert list(control) == [0, 5, 7, 9]


def test_an_exception_of_a_harmless_command_ends_nothing(workers: ProcessGroup) -> None:
    workers.request(0, Harmless(0))
    workers.request(0, Harmless(4))
    with pytest.raises(WorkerRaised, match="ZeroDivisionError: division by zero\nRaised in worker 0 during thinking") as info:
        workers.ready({0})
    assert type(info.value.__cause__) is ZeroDivisionError
    assert "handlers.py" in info.value.traceback
    assert workers.ready({0}) == (0, 0.25)
    assert Call("size").harmless


def test_an_exit_in_a_harmless_command_is_not_harmless(workers: ProcessGroup) -> None:
    class Leaving:
        harmless = True

        def __call__(self, doer: Doer) -> None:
            raise SystemExit(3)

    workers.request(0, Leaving())
    with pytest.raises(WorkerRaised, match="SystemExit: 3"):
        workers.ready({0})
    with pytest.raises(ClosedError):
        workers.poll({0})


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


def test_its_descriptor_is_readable_when_there_is_a_reply(workers: ProcessGroup, gates: list[tuple[int, int]]) -> None:
    for worker in range(3):
        ask(workers, worker, ("neg", 1))
    workers.request(0, wait_for_byte, [gates[0][0]])
    assert select.select([workers], [], [], 0)[0] == []
    os.write(gates[0][1], b"x")
    assert select.select([workers], [], [], 10)[0] == [workers]
    assert workers.poll({0}) == (0, b"x")
    workers.stop()
    with pytest.raises(ClosedError):
        workers.fileno()


def test_a_group_leaves_no_descriptor_and_no_process() -> None:
    launch.server()
    before = descriptors()
    group = ProcessGroup([Doer] * 3)
    pids = group.pids
    held = group.control(0)
    ask(group, 0, ("neg", 1))
    group.stop()
    assert descriptors() == before
    assert not any(map(exists, pids))
    assert held[0] == 0


def test_an_unknown_way_of_failing_is_refused() -> None:
    with pytest.raises(OptionError, match="on_failure: expected 'terminate' or 'report', got 'ignore'"):
        ProcessGroup([Doer], on_failure="ignore")  # pyright: ignore[reportArgumentType]


# Failures that are reported


def test_the_others_live_on_after_a_reported_failure() -> None:
    group = ProcessGroup([Doer] * 3, on_failure="report")
    group.request(0, lambda doer: die("SIGKILL"))
    group.request(2, lambda doer: die("raise"))
    group.request(1, ("neg", 1))
    kinds = []
    for _ in range(2):
        with pytest.raises((WorkerDied, WorkerRaised)) as info:
            poll_until_it_fails(group)
        kinds.append((info.value.worker, type(info.value)))
    assert sorted(kinds, key=lambda kind: kind[0]) == [(0, WorkerDied), (2, WorkerRaised)]
    assert group.ready({1}) == (1, -1)
    for _ in range(2):
        with pytest.raises(WorkerDied, match="Worker 0 was killed by SIGKILL"):
            group.request(0, ("neg", 1))
    assert sorted(failure.worker for failure in group.failures()) == [0, 2]
    group.control(0)[0] = 3
    for worker in (0, 2):
        group.replace(worker, Doer)
    assert group.control(0)[0] == 0
    assert [ask(group, worker, lambda doer: doer.worker) for worker in range(3)] == [0, 1, 2]
    pids = group.pids
    group.stop()
    assert not any(map(exists, pids))


def test_a_running_worker_can_be_replaced(workers: ProcessGroup) -> None:
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
