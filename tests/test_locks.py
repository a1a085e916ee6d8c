"""`ProcessLock`: whatever moment Ctrl-C comes at, other processes and threads get the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest

from reap.locks import ProcessLock
from tests.interruptions import each_moment

pytestmark = pytest.mark.timeout(60)

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
    thread.join(20)
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


def test_ctrl_c_behind_an_exception_leaves_it_free(fd: int, other: Any) -> None:
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
            waits.wait(20)

    holder = Thread(target=hold)
    holder.start()
    assert taken.wait(20)
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
            interrupted.wait(20)

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
