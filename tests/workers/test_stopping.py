"""A group that is stopped, dropped or left behind by its process ends in time, and nothing of it stays."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest

from reap.errors import ClosedError
from reap.workers.processes.group import ProcessGroup
from tests.workers.handlers import (
    Doer,
    Telling,
    ask,
    descriptors,
    exists,
    have_ended,
    wait_for_byte,
    watch,
)
from tests.workers.scripts import Script


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


FAR = 1_000.0
"""A deadline in seconds that no test waits for."""


def keep(doer: Doer, fd: int) -> None:
    doer.kept = fd


def block(doer: Doer, fd: int) -> None:
    """Say so, and wait for ever, in Python."""
    os.write(fd, b".")
    while True:
        time.sleep(600)


def block_in_c(doer: Doer, fd: int) -> None:
    """Say so, and wait for ever, in C and deaf to SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(fd, b".")
    while True:
        ctypes.CDLL(None).pause()


def test_an_idle_worker_closes_its_handler(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Telling])
    group.request(0, keep, [pipe[1]])
    group.ready({0})
    group.stop(FAR)
    assert os.read(pipe[0], 10) == b"closed"


def test_a_worker_in_the_middle_of_a_command_closes_its_handler(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Telling] * 2)
    group.request(1, keep, [pipe[1]])
    group.ready({1})
    group.request(1, block, [pipe[1]])
    assert os.read(pipe[0], 1) == b"."
    group.stop(FAR)
    assert os.read(pipe[0], 10) == b"closed"
    assert not any(map(exists, group.pids))


def test_a_worker_that_cannot_be_asked_is_killed_at_the_deadline(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Doer] * 3)
    group.request(1, block_in_c, [pipe[1]])
    os.read(pipe[0], 1)
    started = time.monotonic()
    group.stop(0.3)
    assert time.monotonic() - started > 0.25
    assert not any(map(exists, group.pids))


def test_a_worker_that_has_replied_to_nobody_does_not_hold_up_the_end() -> None:
    group = ProcessGroup([Doer])
    group.request(0, lambda doer: bytes(10 << 20))
    group.stop(FAR)
    assert not exists(group.pids[0])


def test_a_worker_that_is_starting_is_stopped() -> None:
    def make(worker: int, control: memoryview) -> Doer:
        time.sleep(600)
        return Doer(worker, control)

    group = ProcessGroup([make])
    group.stop(1.0)
    assert not exists(group.pids[0])


def test_stop_from_another_thread_frees_one_that_waits(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Doer] * 2)
    group.request(0, wait_for_byte, [pipe[0]])
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            group.ready({0})
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    group.stop(0.5)
    thread.join()
    assert [str(error) for error in raised] == ["these workers are stopped"]
    assert not any(map(exists, group.pids))


def test_stop_from_a_signals_handler_frees_the_call_below(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Doer])
    group.request(0, wait_for_byte, [pipe[0]])
    before = signal.signal(signal.SIGALRM, lambda number, frame: group.stop(0.5))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ClosedError, match="these workers are stopped"):
            group.ready({0})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not exists(group.pids[0])


def test_stop_from_two_threads_ends_both_times() -> None:
    group = ProcessGroup([Doer] * 2)
    threads = [threading.Thread(target=group.stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(map(exists, group.pids))
    with pytest.raises(ClosedError):
        group.request(0, "anything")


def wait_and_be_interrupted(group: ProcessGroup) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # here: on a busy machine it may ring at once
    group.ready({0})


def test_ctrl_c_leaves_the_replies_for_later(pipe: tuple[int, int]) -> None:
    group = ProcessGroup([Doer] * 2)
    group.request(0, wait_for_byte, [pipe[0]])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_and_be_interrupted(group)
    finally:
        signal.signal(signal.SIGALRM, before)
    os.write(pipe[1], b"x")
    assert group.ready({0}) == (0, b"x")
    group.stop()


def test_many_ctrl_cs_lose_no_reply_and_mix_up_none() -> None:
    gc.collect()  # nothing of another test is to be collected, and interrupted, here
    group = ProcessGroup([Doer] * 2, stall_after=None)
    for worker in range(2):
        ask(group, worker, ("neg", 1))
    armed = [False]

    def interrupt(number: int, frame: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    def interrupted(call: Callable[[], Any]) -> bool:
        try:
            armed[0] = True
            call()
            armed[0] = False
        except KeyboardInterrupt:
            return True
        return False

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    body = bytes(300_000)
    count = sent = received = 0
    gc.disable()
    try:
        while count < 200:
            was_interrupted = interrupted(lambda: group.request(0, ("concat", body, b".")))
            count += was_interrupted + interrupted(lambda: group.request(1, ("concat", body, b"..")))
            sent += not was_interrupted
            while sent > received + 3:
                count += interrupted(lambda: group.ready({0}))
                received += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    for worker in range(2):
        group.request(worker, ("neg", 1))
        while (reply := group.ready({worker})[1]) != -1:  # those that an interruption has left are answered too
            assert reply == body + b"." * (worker + 1)
    group.stop()


def test_a_dropped_group_leaves_nothing(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reap.workers.carrier.DROP_TIMEOUT", 100.0)  # workers on a busy machine are killed before they close
    ask(started := ProcessGroup([Doer]), 0, ("neg", 1))
    started.stop()
    before = descriptors()
    group = ProcessGroup([Telling] * 2)
    group.request(0, keep, [pipe[1]])
    group.ready({0})
    processes = watch(group.pids)
    reference = ref(group)
    del group
    assert reference() is None, "at once: nothing in it refers to it"
    assert have_ended(processes)
    assert descriptors() == before
    assert os.read(pipe[0], 10) == b"closed"


# Whole processes

GROUP = """
from reap.workers.processes import fork_client as launch
launch.warm_up(())
import os, sys
from reap.workers.processes.group import ProcessGroup

class Doer:
    def __init__(self, worker, control):
        self.worker = worker
    def handle(self, command):
        return command(self)
    def handle_with(self, command, fds):
        return command(self, *fds)
    def close(self):
        os.write(1, b"closed\\n")

class Boss(Doer):
    def __init__(self, worker, control):
        self.group = ProcessGroup([Doer])
    def close(self):
        self.group.stop()

def ask(group, worker, command):
    group.request(worker, command)
    return group.ready({worker})[1]
"""


@pytest.mark.processes
def test_an_interpreter_that_ends_without_stop_leaves_nothing() -> None:
    code = """
from reap.workers import carrier
carrier.DROP_TIMEOUT = 100.0  # workers on a busy machine are killed before they close
group = ProcessGroup([Doer] * 2)
for worker in range(2):
    ask(group, worker, lambda doer: None)
print(*group.pids, launch.server().pid, flush=True)
"""
    with Script(GROUP + code) as script:
        pids = script.line().split()
        out, err = script.communicate()
        assert (script.code, out.split(), err) == (0, ["closed"] * 2, "")
        assert not any(exists(int(pid)) for pid in pids)


@pytest.mark.processes
def test_an_interpreter_that_ends_while_its_server_imports_leaves_nothing() -> None:
    code = "from reap.workers.processes import fork_client as launch; launch.warm_up(); print(launch.server().pid)"
    with Script(code) as script:
        pid = int(script.line())
        assert script.communicate() == ("", "")
        assert script.code == 0
        assert not exists(pid)


@pytest.mark.processes
def test_a_killed_process_takes_everything_with_it() -> None:
    code = """
group = ProcessGroup([Boss] * 2)
below = [ask(group, worker, lambda boss: boss.group.pids[0]) for worker in range(2)]
print(*group.pids, *below, launch.server().pid, flush=True)
group.request(0, lambda boss: ask(boss.group, 0, lambda doer: __import__("time").sleep(600)))
print("waiting", flush=True)
group.ready({0})
"""
    with Script(GROUP + code) as script:
        pids = [int(pid) for pid in script.line().split()]
        assert script.line() == "waiting\n"
        assert len(pids) == 5
        pidfds = watch(pids)
        script.process.kill()
        assert have_ended(pidfds)


@pytest.mark.processes
def test_a_copy_of_the_socket_in_a_fork_does_not_keep_workers_alive() -> None:
    code = """
group = ProcessGroup([Doer])
ask(group, 0, lambda doer: None)
if os.fork() == 0:
    group.stop()
    del group
    print("fork", os.getpid(), flush=True)
    __import__("signal").pause()
sys.stdin.readline()
print(ask(group, 0, lambda doer: doer.worker + 5), *group.pids, launch.server().pid, flush=True)
sys.stdin.readline()
"""
    with Script(GROUP + code) as script:
        fork = int(script.line().split()[1])
        script.tell("\n")
        five, *pids = map(int, script.line().split())
        assert five == 5
        pidfds = watch(pids)
        script.process.kill()
        assert have_ended(pidfds)
        assert exists(fork)
        os.kill(fork, signal.SIGKILL)


@pytest.mark.processes
def test_ctrl_c_reaches_the_process_alone() -> None:
    code = """
group = ProcessGroup([Doer] * 2)
for worker in range(2):
    ask(group, worker, lambda doer: None)
reader, writer = os.pipe()
group.request(1, lambda doer, gate: os.read(gate, 1), [reader])
try:
    print("waiting", flush=True)
    group.ready({1})
except KeyboardInterrupt:
    os.write(writer, b"x")
    print("interrupted,", group.ready({1}), flush=True)
default = ask(group, 0, lambda doer: __import__("subprocess").run(
    [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT).__name__)"],
    capture_output=True, text=True).stdout)
print(default, end="")
group.stop(100)
"""
    with Script(GROUP + code) as script:
        assert script.line() == "waiting\n"
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.line() == "interrupted, (1, b'x')\n"
        out, err = script.communicate()
        assert (script.code, out.split(), err) == (0, ["default_int_handler", "closed", "closed"], "")


@pytest.mark.processes
def test_ctrl_c_in_a_script_that_does_not_catch_it_leaves_nothing() -> None:
    code = """
group = ProcessGroup([Doer])
ask(group, 0, lambda doer: None)
group.request(0, lambda doer: __import__("time").sleep(600))
pids = (*group.pids, launch.server().pid)
print(*pids, flush=True)
group.ready({0})
"""
    with Script(GROUP + code) as script:
        pids = [int(pid) for pid in script.line().split()]
        os.killpg(script.process.pid, signal.SIGINT)
        _, err = script.communicate()
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert err.count("Traceback") == 1
        assert not any(map(exists, pids))


@pytest.mark.processes
def test_an_exception_in_close_is_shown() -> None:
    code = """
from reap.workers.processes.group import ProcessGroup
class Doer:
    def __init__(self, worker, control): ...
    def handle(self, command):
        return command
    def close(self):
        raise ValueError("the last word")
group = ProcessGroup([Doer])
group.request(0, 5)
print(group.ready({0}))
group.stop()
"""
    with Script(code) as script:
        out, err = script.communicate()
    assert (out, script.code) == ("(0, 5)\n", 0)
    assert "ValueError: the last word\nreap: raised while a worker was closed" in err
