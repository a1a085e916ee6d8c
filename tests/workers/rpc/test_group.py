"""Groups whose workers call them by RPC: what they are told and when, how they end, and what is left then: nothing."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.workers.progress import LEAVE, STOP
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.rpc import agent
from reap.workers.rpc.group import rpc_group
from tests.workers.handlers import Doer, Dying, ask, descriptors, die, exists, have_ended, patience, poll_until_it_fails, watch
from tests.workers.rpc.agents import has_agent
from tests.workers.rpc.sockets import listening
from tests.workers.scripts import Script

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

ENDS = {"raise": ValueError, "SystemExit": SystemExit, "os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11}


class Gate:
    """A named pipe, by which a worker is held."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        os.mkfifo(self.path)

    def wait(self, _doer: Doer) -> None:
        """In a worker: wait until the test opens the gate."""
        with open(self.path, "rb") as file:
            file.read(1)

    def open(self) -> None:
        """In the test: wait until the worker is there, and let it go on."""
        with open(self.path, "wb") as file:
            file.write(b"\n")


def own_pid(_doer: Doer) -> int:
    return os.getpid()


def keep(number: int, doer: Doer) -> None:
    doer.kept = [*(doer.kept or ()), number]


class Keep:
    """A command that is kept, of a type of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, doer: Doer) -> None:
        doer.kept = [*(doer.kept or ()), self.number]


class KeepToo(Keep):
    """Another type."""


def kept(doer: Doer) -> Any:
    return doer.kept


def many_bytes(doer: Doer) -> Any:
    return np.arange(5_000_000, dtype=np.int32)


def ask_until_it_fails(group: Any, first: int, among: set[int]) -> NoReturn:
    """Take replies, and ask the first worker again and again."""
    while True:
        group.ready(among)
        group.request(first, ("add", 1, 2))


def stop_int(doer: Doer) -> int:
    return doer.control[STOP]


@pytest.mark.parametrize("how", ENDS)
def test_however_a_worker_ends_the_call_that_waits_says_so(how: str) -> None:
    group = rpc_group([Doer] * 2)
    pids = [ask(group, worker, own_pid) for worker in range(2)]
    group.request(0, ("add", 1, 2))
    group.request(1, lambda _: die(how))
    with pytest.raises((WorkerRaised, WorkerDied)) as info:
        ask_until_it_fails(group, 0, {0, 1})
    failure, expected = info.value, ENDS[how]
    assert failure.worker == 1
    assert type(failure.__cause__) is expected if isinstance(failure, WorkerRaised) else failure.exit_code == expected
    assert not any(map(exists, pids))
    with pytest.raises(ClosedError):
        group.request(0, ("add", 1, 2))
    assert not has_agent()


def test_a_worker_that_ends_as_it_is_made() -> None:
    group = rpc_group([Dying("raise")] * 2)
    with pytest.raises(WorkerRaised, match=r"Raised in worker 1 during start") as info:
        ask(group, 1, ("add", 1, 2))
    assert "in die" in info.value.traceback


def test_the_others_are_served_and_one_is_replaced() -> None:
    group = rpc_group([Doer] * 2, on_failure="report")
    pid = ask(group, 0, own_pid)
    os.kill(pid, signal.SIGKILL)
    group.request(1, ("add", 1, 2))
    with pytest.raises(WorkerDied, match="Worker 0 was killed by SIGKILL"):
        ask_until_it_fails(group, 1, {1})
    group.abandon({1})
    assert ask(group, 1, ("add", 1, 2)) == 3
    group.replace(0, Doer)
    assert ask(group, 0, own_pid) != pid
    group.stop()


def test_large_arrays_arrive_as_they_were_and_are_counted() -> None:
    group = rpc_group([Doer])
    assert group.facts(0) == WorkerFacts(socket.gethostname() if group.facts(0).host else "", "", 0, 0.0)
    for _ in range(3):
        found = ask(group, 0, many_bytes)
        assert np.array_equal(found, np.arange(5_000_000, dtype=np.int32))
    facts = group.facts(0)
    assert facts.host == socket.gethostname()
    assert 60_000_000 < facts.bytes < 60_010_000
    assert facts.transfer_seconds > 0
    group.stop()


def test_a_posted_command_is_replaced_by_a_newer_one_of_its_type_while_the_worker_is_busy(tmp_path: Path) -> None:
    group, gate = rpc_group([Doer]), Gate(tmp_path)
    ask(group, 0, own_pid)
    group.request(0, gate.wait)
    for number in range(10):
        group.post(0, Keep(number))
        group.post(0, KeepToo(100 + number))
    carrier: Any = group.carrier
    assert len(carrier.lines[0].line.waiting) <= 3  # perhaps the command, and one of each type
    group.request(0, kept)
    gate.open()
    group.ready({0})
    found = group.ready({0})[1]
    assert found[-2:] == [109, 9] or found[-2:] == [9, 109]
    assert len(found) <= 3
    group.stop()


def test_what_is_posted_before_a_command_is_handled_before_it() -> None:
    group = rpc_group([Doer])
    for number in range(50):
        group.post(0, Keep(number))
        assert ask(group, 0, kept)[-1] == number
    group.stop()


def test_posts_from_other_threads() -> None:
    group = rpc_group([Doer])
    threads = [threading.Thread(target=group.post, args=(0, Keep(number))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ask(group, 0, kept)) <= set(range(8))
    group.stop()


def test_wishes_reach_a_worker_in_the_middle_of_a_command(tmp_path: Path) -> None:
    group, gate = rpc_group([Doer]), Gate(tmp_path)

    def waits_for_stop(doer: Doer) -> int:
        gate.wait(doer)
        while not doer.control[STOP]:
            time.sleep(0.001)
        return doer.control[STOP]

    group.clear(0)
    group.request(0, waits_for_stop)
    gate.open()
    group.stop_early(0)
    assert group.ready({0}) == (0, 1)
    group.clear(0)
    assert ask(group, 0, stop_int) == 0
    group.stop()


def test_a_worker_that_is_terminated_replies_and_goes(tmp_path: Path) -> None:
    group, gate = rpc_group([Doer], on_failure="report"), Gate(tmp_path)
    pid = ask(group, 0, own_pid)

    def waits_for_leave(doer: Doer) -> int:
        gate.wait(doer)
        while not doer.control[STOP] & LEAVE:
            time.sleep(0.001)
        return 42

    group.request(0, waits_for_leave)
    gate.open()
    os.kill(pid, signal.SIGTERM)
    assert group.ready({0}) == (0, 42)
    with pytest.raises(WorkerDied) as info:
        poll_until_it_fails(group)
    assert info.value.signal is signal.SIGTERM
    group.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_an_idle_worker_that_is_told_to_leave_goes_and_its_end_says_so(number: signal.Signals) -> None:
    group = rpc_group([Doer], on_failure="report")
    pid = ask(group, 0, own_pid)
    os.kill(pid, number)
    with pytest.raises(WorkerDied, match=f"pid {pid}: told to leave, by {number.name}$") as info:
        poll_until_it_fails(group)
    assert "Likely cause: something outside asked it to stop" in str(info.value)
    assert (info.value.exit_code, info.value.signal) == (-number, number)
    group.stop()


def test_nothing_listens_but_on_the_loopback_interface() -> None:
    group = rpc_group([Doer] * 2)
    pids = [ask(group, worker, own_pid) for worker in range(2)]
    found = [address for pid in (os.getpid(), *pids) for address in listening(pid)]
    assert set(found) == {"127.0.0.1"}
    assert len(found) == 3
    group.stop()
    assert not listening(os.getpid())


def test_nothing_is_left_of_a_group() -> None:
    rpc_group([Doer]).stop()
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        group = rpc_group([Doer] * 2)
        pids = [ask(group, worker, own_pid) for worker in range(2)]
        group.stop()
        assert not any(map(exists, pids))
    assert len(descriptors()) == len(before)
    assert threading.active_count() == threads


def test_a_group_that_is_dropped_is_stopped() -> None:
    group = rpc_group([Doer])
    ended = watch([ask(group, 0, own_pid)])
    del group
    assert have_ended(ended)
    assert not has_agent()


def test_descriptors_do_not_travel() -> None:
    group = rpc_group([Doer])
    with pytest.raises(OptionError, match="descriptors do not travel by RPC"):
        group.request(0, ("add", 1, 2), [0])
    group.stop()


def test_place_and_progress() -> None:
    group = rpc_group([Doer])
    pid = ask(group, 0, own_pid)
    assert group.describe(0) == ("working", f"pid {pid}")
    assert group.progress(0) is not None
    group.stop()


TRAINER = """
import os, sys, time
from reap.workers.rpc.group import rpc_group
from tests.workers.handlers import Doer, ask

if __name__ == "__main__":
    group = rpc_group([Doer] * 2)
    print(*[ask(group, worker, lambda doer: os.getpid()) for worker in range(2)], flush=True)
    if sys.stdin.readline() == "leave\\n":
        group.request(0, lambda doer: time.sleep(600))
        sys.exit(0)
    group.request(0, lambda doer: time.sleep(600))
    group.ready({0})
"""


def test_workers_end_with_the_process_that_has_them() -> None:
    with Script(TRAINER) as script:
        ended = watch(map(int, script.line().split()))
        script.tell("wait\n")
        script.process.send_signal(signal.SIGKILL)
        begun = time.monotonic()
        assert have_ended(ended)
        assert time.monotonic() - begun < patience(5.0)


def test_a_program_that_stops_nothing_ends_all_the_same() -> None:
    with Script(TRAINER) as script:
        ended = watch(map(int, script.line().split()))
        _, errors = script.communicate("leave\n")
        assert script.code == 0, errors
        assert have_ended(ended)


def test_ctrl_c_ends_a_wait() -> None:
    with Script(TRAINER) as script:
        ended = watch(map(int, script.line().split()))
        script.tell("wait\n")
        time.sleep(0.3)
        script.process.send_signal(signal.SIGINT)
        _, errors = script.communicate()
        assert "\nKeyboardInterrupt" in errors
        assert have_ended(ended)


def test_what_a_worker_is_told_can_be_pickled() -> None:
    address = agent.Address("trainer", 0, "uv://127.0.0.1:4711")
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.is_of_one_machine
    assert agent.Address("trainer", 0, "shm://abc").is_of_one_machine
    assert not agent.Address("trainer", 0, "uv://10.0.0.1:4711").is_of_one_machine
    assert sys.platform == "linux"
