"""Sections that Ctrl-C does not come into, and the places in them where it may."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from reap.system.interrupts import deferring_interrupts, interrupts_allowed


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_waits_for_the_end_of_the_body() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            ctrl_c()
            ctrl_c()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_it_comes_once() -> None:
    with pytest.raises(KeyboardInterrupt), deferring_interrupts():
        ctrl_c()
    with deferring_interrupts():
        pass


def test_an_exception_of_the_body_is_its_context() -> None:

    def work() -> None:
        with deferring_interrupts():
            ctrl_c()
            raise ValueError

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_it_comes_where_it_may() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts(), interrupts_allowed():
            done.append(1)
            ctrl_c()
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_what_came_before_is_raised_there() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            ctrl_c()
            done.append(1)
            with interrupts_allowed():
                done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_after_that_place_it_waits_again() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            with interrupts_allowed():
                pass
            ctrl_c()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_a_second_one_waits_while_the_first_is_on_its_way() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            try:
                with interrupts_allowed():
                    ctrl_c()
            finally:
                ctrl_c()
                done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_bodies_in_bodies() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts():
            with deferring_interrupts():
                ctrl_c()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_a_body_in_a_place_where_it_may_come() -> None:
    done = []

    def work() -> None:
        with deferring_interrupts(), interrupts_allowed():
            with deferring_interrupts():
                ctrl_c()
                done.append(1)
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]


def test_a_handler_that_raises_nothing() -> None:
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with deferring_interrupts():
            ctrl_c()
            assert came == []
            with interrupts_allowed():
                assert came == [signal.SIGINT]
                ctrl_c()
                ctrl_c()
                assert len(came) == 3
            ctrl_c()
            assert len(came) == 3
        assert len(came) == 4
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_ctrl_c_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferring_interrupts(), interrupts_allowed():
            ctrl_c()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread() -> None:
    seen: list[Any] = []

    def work() -> None:
        with deferring_interrupts(), interrupts_allowed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1])
def test_other_signals_that_raise_wait_too(number: signal.Signals) -> None:
    class TooLateError(Exception):
        pass

    def raise_it(*_: Any) -> None:
        raise TooLateError

    before = signal.signal(number, raise_it)
    done = []

    def work() -> None:
        with deferring_interrupts():
            signal.raise_signal(number)
            done.append("body")
            with pytest.raises(TooLateError), interrupts_allowed():
                done.append("never")
            signal.raise_signal(number)
            done.append("behind")

    try:
        with pytest.raises(TooLateError):
            work()
        assert done == ["body", "behind"]
        assert signal.getsignal(number) is raise_it
    finally:
        signal.signal(number, before)


FORKED = """
import os, signal, sys, threading
from reap.system.interrupts import deferring_interrupts

reads, writes = os.pipe()
def fork():
    if os.fork():
        return
    came = 0
    for _ in range(3):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            came += 1
    os.write(writes, str(came).encode())
    os._exit(0)

with deferring_interrupts():
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    print(os.read(reads, 1).decode())
"""


@pytest.mark.processes
def test_a_fork_of_another_thread_defers_nothing() -> None:
    """It has not the thread that would end it."""
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=180, check=True)
    assert run.stdout.strip() == "3"
