"""Settings and fixtures of all tests: one torch thread, a fixed seed, and nothing left running behind a test."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reap.workers.processes import fork_client
from tests.groups import pytest_collection_modifyitems  # noqa: F401  a hook
from tests.kept import stop_all

# Two test processes share the cores; and matrix products may differ in the last bits with the number of threads.
torch.set_num_threads(1)
# Nothing may look for a display.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# A shell has its background jobs ignore Ctrl-C, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes of `multiprocessing` start in milliseconds where their server has imported what they need; all tests share it.
multiprocessing.set_forkserver_preload(
    [
        "tests.data.test_slices_written",
        "tests.data.test_trees",
        "tests.envs.test_objects",
        "tests.envs.vector_envs",
        "tests.system.test_sending",
        "tests.weights.receivers",
        "tests.weights.test_mailbox",
        "tests.weights.test_schemes",
    ]
)

TESTS = Path(__file__).parent

collect_ignore = ["forks.py"]  # for the server that forks workers alone: it is not to be looked through for doctests

WITH_WORKERS = ("collectors", "data", "envs", "replaying", "testing", "values", "workers")
"""Folders of tests whose envs and policies are made in workers: the server that forks these has imported the files."""

GRACE = 60.0
"""Seconds that threads and processes have to end after their test."""

SERVERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "reap.workers.processes.fork_server", "tests.warm")
"""Children that live until this process ends, by a piece of their command line; what they fork has the same one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Start the server that forks workers, unless this process only hands tests out to others.

    A worker imports the file of the test that its env is from, and with it pytest and perhaps torchrl: half a second for each
    worker, if the server has not done so.
    """
    gc.disable()  # what is collected stays; to look through it again and again would take a fifth of the time
    if session.config.getoption("numprocesses", None):
        return
    chosen = [Path(argument.split("::")[0]).absolute() for argument in session.config.args]
    files = [file for folder in WITH_WORKERS for file in (TESTS / folder).glob("*.py")]
    ours = [file for file in files if any(file.is_relative_to(one) for one in chosen)]
    modules = [".".join(file.relative_to(TESTS.parent).with_suffix("").parts) for file in ours]
    fork_client.warm_up(("tests.forks", *fork_client.MODULES, *modules))


def pytest_collection_finish() -> None:
    """What is imported stays: no `gc.collect()` of a test looks through it, which would take 0.2 s each time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # torch's loggers, fifty of them, keep what they say from the root; pytest would add its handlers to each, in each test.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True


def pytest_sessionfinish() -> None:
    """What tests have kept for others ends with them."""
    stop_all()


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Every test starts from the same torch generator, whichever tests ran before it."""
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` writes the stack down three times, for devices to come
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves a thread or a process (children of children too) behind."""
    stop_all()
    threads, processes = set(threading.enumerate()), descendants()
    yield
    deadline = time.monotonic() + GRACE
    left = [repr(thread) for thread in set(threading.enumerate()) - threads if not _joined(thread, deadline)]
    left += [_command(pid) for pid in descendants() - processes if not _ended(pid, deadline)]
    assert not left, f"left running: {', '.join(left)}"


def descendants(pid: int | None = None) -> set[int]:
    """The ids of a process's children (None: of this one's), and of theirs; empty where there is no /proc."""
    found: set[int] = set()
    parents = [os.getpid() if pid is None else pid]
    while parents:
        children = [int(pid) for pid in _children(parents.pop()) if int(pid) not in found]
        found.update(children)
        parents += children
    return found


def _children(pid: int) -> list[str]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return [child for one in lists for child in one.read_text().split()]
    except OSError:  # the process, or one of its threads, has just ended
        return []


def _joined(thread: threading.Thread, deadline: float) -> bool:
    thread.join(max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()


def _ended(pid: int, deadline: float) -> bool:
    """Wait for a process's end; true also for one that is meant to stay."""
    if str(pid) in _children(os.getpid()) and any(server in _command(pid) for server in SERVERS):
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(descriptor)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"process {pid}"
    return f"process {pid}: {b' '.join(words).decode(errors='replace').strip()}"
