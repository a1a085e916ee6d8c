"""However a worker ends, its group ends at once, the cause is named in the call that waits, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys
import time
import types
from collections.abc import Callable

import pytest

from reap.errors import ClosedError, WorkerDied, WorkerRaised
from reap.workers.processes import fork_client as launch
from reap.workers.processes.group import ProcessGroup
from tests.workers.handlers import (
    Doer,
    Dying,
    ask,
    descriptors,
    die,
    exists,
    have_ended,
    poll_until_it_fails,
    wait_for_byte,
    watch,
)
from tests.workers.scripts import Script

ENDS = {"raise": ValueError, "SystemExit": SystemExit, "os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11}


def checked(failure: BaseException, how: str, worker: int, phase: str) -> None:
    expected = ENDS[how]
    if isinstance(expected, type):
        assert isinstance(failure, WorkerRaised)
        assert type(failure.__cause__) is expected
        assert "in die" in failure.traceback
    else:
        assert isinstance(failure, WorkerDied)
        assert failure.exit_code == expected
    assert (failure.worker, failure.phase) == (worker, phase)


def gone(group: ProcessGroup, failure: BaseException, calls: list[Callable[[], object]]) -> None:
    """Nothing is left of the group, and it says why."""
    assert not any(map(exists, group.pids))
    for call in calls:
        with pytest.raises(ClosedError, match="ended when one failed: .*orker 1 ") as info:
            call()
        assert info.value.__cause__ is failure


@pytest.mark.parametrize("how", ENDS)
def test_in_a_command_while_another_worker_is_waited_for(how: str) -> None:
    launch.server()
    before = descriptors()
    group = ProcessGroup([Doer] * 3, phases=("resting", "working hard"))
    reader, writer = os.pipe()
    group.request(0, wait_for_byte, [reader])

    def fail(doer: Doer) -> None:
        doer.control[0] = 1
        die(how)

    group.request(1, fail)
    with pytest.raises((WorkerDied, WorkerRaised)) as info:
        group.ready({0})
    checked(info.value, how, 1, "working hard")
    gone(group, info.value, [lambda: group.ready({0}), lambda: group.poll({0}), lambda: group.request(0, "more")])
    group.stop()
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert descriptors() == before


@pytest.mark.parametrize("how", ENDS)
def test_as_the_handler_is_made(how: str) -> None:
    group = ProcessGroup([Dying(how)] * 2, phases=("resting",))
    with pytest.raises((WorkerDied, WorkerRaised)) as info:
        ask(group, 0, lambda doer: time.sleep(600))
    checked(info.value, how, 1, "start")
    gone(group, info.value, [lambda: group.ready({0}), lambda: group.replace(1, Doer)])


def test_between_commands() -> None:
    group = ProcessGroup([Doer] * 2)
    ask(group, 1, ("neg", 1))
    os.kill(group.pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
        poll_until_it_fails(group)


def test_while_a_large_command_is_being_sent() -> None:
    group = ProcessGroup([Doer] * 2)
    group.request(1, lambda doer: die("os._exit"))
    with pytest.raises(WorkerDied, match="Worker 1 ended with exit code 3"):
        group.request(1, ("neg", bytes(10 << 20)))


def test_an_outside_sigterm_is_named_as_such() -> None:
    group = ProcessGroup([Doer] * 2)
    ask(group, 1, ("neg", 1))
    os.kill(group.pids[1], signal.SIGTERM)
    with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGTERM"):
        poll_until_it_fails(group)


@pytest.mark.processes
def test_the_death_of_the_server_ends_the_group_and_the_next_one_has_a_new_server() -> None:
    group = ProcessGroup([Doer] * 2)
    ask(group, 1, ("neg", 1))
    old = launch.server().pid
    assert old
    processes = watch([old, *group.pids])
    os.kill(old, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        poll_until_it_fails(group)
    assert have_ended(processes, timeout=0)
    group = ProcessGroup([Doer])
    assert ask(group, 0, ("neg", 1)) == -1
    assert launch.server().pid != old
    group.stop()


def test_a_module_that_only_this_process_has_is_named_with_a_way_out() -> None:
    module = types.ModuleType("only_here")
    sys.modules["only_here"] = module
    try:
        Local = type("Local", (Doer,), {"__module__": "only_here", "__qualname__": "Local"})  # noqa: N806  a class
        module.Local = Local  # pyright: ignore[reportAttributeAccessIssue]
        group = ProcessGroup([Local])
        with pytest.raises(WorkerRaised, match="ModuleNotFoundError: No module named 'only_here'") as info:
            ask(group, 0, ("neg", 1))
    finally:
        del sys.modules["only_here"]
    assert info.value.phase == "start"
    assert info.value.__cause__
    assert "register_pickle_by_value" in info.value.__cause__.__notes__[0]


def test_an_exception_that_cannot_travel_has_a_stand_in() -> None:
    class AwkwardError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fail(doer: Doer) -> None:
        raise AwkwardError(1, 2)

    group = ProcessGroup([Doer])
    group.request(0, fail)
    with pytest.raises(WorkerRaised, match="RuntimeError: AwkwardError: 1 and 2"):
        group.ready({0})


def test_an_exception_of_a_local_class_keeps_its_class() -> None:
    class LocalError(Exception):
        pass

    def fail(doer: Doer) -> None:
        raise LocalError("here")

    group = ProcessGroup([Doer])
    group.request(0, fail)
    with pytest.raises(WorkerRaised) as info:
        group.ready({0})
    assert type(info.value.__cause__) is LocalError


def test_a_worker_that_closed_its_channel_is_no_victim_of_the_kernel() -> None:
    group = ProcessGroup([Doer])
    group.request(0, lambda doer: os.closerange(3, 100))
    with pytest.raises(WorkerDied, match=r"ended with exit code 0 .*closes file descriptors that are not its own"):
        group.ready({0})


@pytest.mark.processes
def test_a_program_that_ignores_the_ends_of_children() -> None:
    code = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from reap.errors import WorkerDied
from reap.workers.processes.group import ProcessGroup
class Doer:
    def __init__(self, worker, control): ...
    def handle(self, code):
        __import__("os")._exit(code)
    def close(self): ...
for _ in range(2):
    group = ProcessGroup([Doer])
    group.request(0, 5)
    try:
        group.ready({0})
    except WorkerDied as death:
        print(death.exit_code)
"""
    with Script(code) as script:
        assert (*script.communicate(), script.code) == ("5\n5\n", "", 0)
