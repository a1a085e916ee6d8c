"""What the workers of these tests do, and how the tests see what became of them."""

from __future__ import annotations

import ctypes
import operator
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, NamedTuple, NoReturn

from reap.workers.group import Group
from reap.workers.processes.group import ProcessGroup


class Doer:
    """Does what a command says: the name of an operator and its arguments, or a function of the handler."""

    def __init__(self, worker: int, control: memoryview) -> None:
        self.worker = worker
        self.control = control
        self.kept: Any = None

    def handle(self, command: Any) -> Any:
        if callable(command):
            return command(self)
        name, *arguments = command
        return getattr(operator, name)(*arguments)

    def handle_with(self, command: Any, fds: list[int]) -> Any:
        return command(self, *fds)

    def close(self) -> None:
        """Nothing to release."""


class Telling(Doer):
    """Writes a byte when it is closed, to a descriptor that it was sent."""

    def close(self) -> None:
        if self.kept is not None:
            os.write(self.kept, b"closed")


class Harmless(NamedTuple):
    """A command that fails without consequences."""

    number: int
    harmless: ClassVar[bool] = True

    def __call__(self, doer: Doer) -> float:
        return 1 / self.number


def wait_for_byte(doer: Doer, gate: int) -> bytes:
    """Wait until the test writes to the gate."""
    return os.read(gate, 1)


def die(how: str) -> Any:
    """End in one of many ways."""
    match how:
        case "raise":
            raise ValueError("on purpose")
        case "SystemExit":
            sys.exit(3)
        case "os._exit":
            os._exit(3)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        case _:
            ctypes.string_at(0)


class Dying:
    """Makes handlers that end as they are made."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, worker: int, control: memoryview) -> Doer:
        if worker == 1:
            die(self.how)
        return Doer(worker, control)


class Boss(Doer):
    """Has a worker of its own."""

    def __init__(self, worker: int, control: memoryview) -> None:
        super().__init__(worker, control)
        self.group = ProcessGroup([Doer])

    def close(self) -> None:
        self.group.stop()


def ask(workers: Group, worker: int, command: Any) -> Any:
    """Send a command and wait for its reply."""
    workers.request(worker, command)
    return workers.ready({worker})[1]


def poll_until_it_fails(workers: Group, among: Collection[int] = (0,)) -> NoReturn:
    """Poll, and nothing else."""
    while True:
        workers.poll(among)


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def watch(pids: Iterable[int]) -> list[int]:
    """Descriptors of processes, to be waited for."""
    return [os.pidfd_open(pid) for pid in pids]


def patience(seconds: float) -> float:
    """The seconds for what takes this long where nobody else needs the cores: more of them where others do."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def have_ended(pidfds: list[int], timeout: float = 100.0) -> bool:
    """Whether these processes end in time, which is far more than they need; closes the descriptors."""
    deadline = time.monotonic() + timeout
    ended = [bool(select.select([one], [], [], max(0.0, deadline - time.monotonic()))[0]) for one in pidfds]
    for one in pidfds:
        os.close(one)
    return all(ended)


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{name}: {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # the listing's own
            continue
    return found
