"""`ProcessLock`: whatever moment Ctrl-C comes at, other processes and threads get the lock."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest

from reap.system.locks import ProcessLock
from tests.architecture import ROOT
from tests.interruptions import each_moment
from tests.machine import impatient
from tests.warned import on_warning

OTHER = """
import fcntl, sys
for line in sys.stdin:
    try:
        fcntl.lockf(int(line), fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(int(line), fcntl.LOCK_UN)
        print("free", flush=True)
    except OSError:
        print("taken", flush=True)
"""


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("lock")
    yield made
    os.close(made)


@pytest.fixture
def other(fd: int) -> Iterator[Any]:
    """Another process, which says whether it can have the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True
    ) as process:

        def ask() -> str:
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{fd}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        assert process.stdin
        process.stdin.close()


def test_it_excludes_other_processes(fd: int, other: Any) -> None:
    lock = ProcessLock(fd)
    with lock:
        assert other() == "taken"
    assert other() == "free"


def in_thread(lock: ProcessLock) -> bool:
    """Whether another thread gets the lock."""
    done = Event()

    def take() -> None:
        with lock:
            done.set()

    thread = Thread(target=take, daemon=True)
    thread.start()
    thread.join(100)
    return done.is_set() and not thread.is_alive()


def test_ctrl_c_leaves_it_free(fd: int, other: Any) -> None:
    lock = ProcessLock(fd)

    def take() -> None:
        with lock:
            pass

    def check(_: Any) -> None:
        assert other() == "free"
        assert in_thread(lock)

    assert each_moment(take, 1, check) > 3


def test_ctrl_c_after_an_exception_leaves_it_free(fd: int, other: Any) -> None:
    lock = ProcessLock(fd)

    def take() -> None:
        with pytest.raises(ValueError, match="no"), lock:
            raise ValueError("no")

    each_moment(take, 1, lambda _: other() == "free" or pytest.fail("it is taken"))
    assert in_thread(lock)


def test_a_wait_for_another_thread_ends(fd: int) -> None:
    lock, taken, waits = ProcessLock(fd), Event(), Event()

    def hold() -> None:
        with lock:
            taken.set()
            waits.wait(100)

    holder = Thread(target=hold)
    holder.start()
    assert taken.wait(100)
    waiter = Thread(target=lambda: in_thread(lock) and taken.clear())
    waiter.start()
    waits.set()
    holder.join()
    waiter.join()
    assert not taken.is_set()


def test_ctrl_c_ends_a_wait(fd: int, other: Any) -> None:
    lock, taken, interrupted = ProcessLock(fd), Event(), Event()

    def hold() -> None:
        with lock:
            taken.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            interrupted.wait(100)

    holder = Thread(target=hold)
    try:
        holder.start()
        taken.wait()
        with lock:
            pytest.fail("two have it")
    except KeyboardInterrupt:
        interrupted.set()
    holder.join()
    assert other() == "free"
    assert in_thread(lock)


def test_it_is_kept_where_other_descriptors_of_the_memory_are_closed(fd: int, other: Any) -> None:
    lock = ProcessLock(fd)
    with lock:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        again = os.dup(fd)
        second = ProcessLock(again)
        os.close(again)
        with second:
            pass
        del second
        gc.collect()
        assert other() == "taken"
    assert other() == "free"


def test_the_inner_of_two_uses_leaves_it_to_the_outer(fd: int, other: Any) -> None:
    lock = ProcessLock(fd)
    with lock:
        with lock, lock:
            assert other() == "taken"
        assert other() == "taken"
        with pytest.raises(ValueError, match="no"), lock:
            raise ValueError("no")
        assert other() == "taken"
    assert other() == "free"


HOLDER = """
import os, sys
from reap.system.locks import ProcessLock
lock = ProcessLock(int(sys.argv[1]))
begun, go_on = os.pipe(), os.pipe()
if not (child := os.fork()):
    os.close(go_on[1])
    os.write(begun[1], b".")
    os.read(go_on[0], 1)  # to the end of its parent
    with lock:
        print("the fork has it", flush=True)
    sys.exit()
os.read(begun[0], 1)
with lock:
    print("taken", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(fd: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock, whose fork waits until it is gone."""
    command = [sys.executable, "-c", HOLDER, str(fd)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True, cwd=ROOT
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_it_is_free_when_its_owner_is_killed_though_a_fork_of_that_lives_on(
    fd: int, other: Any, holder: subprocess.Popen[str]
) -> None:
    assert other() == "taken"
    holder.kill()
    holder.wait()
    with ProcessLock(fd):
        assert other() == "taken"
    assert holder.stdout
    assert holder.stdout.readline() == "the fork has it\n"


def test_a_fork_is_excluded_by_its_parent(fd: int) -> None:
    lock = ProcessLock(fd)
    ready, said = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.read(ready[0], 1)
        with lock:
            os.write(said[1], b"child")
        os._exit(0)
    with lock:
        os.write(ready[1], b".")
        os.write(said[1], b"parent ")
        assert select.select([], [], [], 0.1) == ([], [], [])  # time in which the child would have taken it
        assert os.read(said[0], 20) == b"parent "
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(said[0], 20) == b"child"
    for descriptor in (*ready, *said):
        os.close(descriptor)


def test_who_is_stopped_with_it_is_named(fd: int, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, 0.05)
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)

    def let_go() -> None:
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.stdin
        holder.stdin.write("\n")
        holder.stdin.flush()

    warned: list[tuple[str, Any]] = []

    def warn(message: str, kind: Any) -> None:
        if not warned:  # on a busy machine it may take a while to go on
            let_go()
        warned.append((message, kind))

    with on_warning(warn), ProcessLock(fd):
        pass
    message, kind = warned[0]
    assert kind is RuntimeWarning
    assert re.match(
        rf"waited for \d+ s: process {holder.pid} \(.*python.*\), which is stopped .* kill -CONT {holder.pid} lets it "
        rf"continue, kill -KILL {holder.pid} ends it\): it has the lock of memory that it shares with this process\. "
        "The wait continues",
        message,
    )
