"""Workers that a scheduler starts: here submitit's local executor, whose jobs tell nobody of their ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import submitit

from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.workers.launchers.base import Task
from reap.workers.launchers.mp import ForkedJob, MpLauncher
from reap.workers.launchers.submitit import SubmititLauncher
from reap.workers.progress import STOP
from reap.workers.remote import guard
from reap.workers.rpc import agent, member
from reap.workers.rpc.agent import Address
from reap.workers.rpc.carrier import RpcOptions
from reap.workers.rpc.group import rpc_group
from reap.workers.rpc.vigil import Vigil
from tests.machine import of_another_version
from tests.workers.handlers import Doer, ask, have_ended, poll_until_it_fails, watch
from tests.workers.rpc.agents import has_agent
from tests.workers.scripts import Script

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


class Far:
    """Starts processes of this machine, and treats them as those of another: no descriptor, no shared ints.

    Args:
        changed: what is changed of a task; nothing if None.

    Attributes:
        jobs: those that it has launched.
    """

    is_local = False

    def __init__(self, changed: Callable[[Task], Task] | None = None) -> None:
        self._launcher, self._changed = MpLauncher(), changed
        self.jobs: list[FarJob] = []

    @property
    def context(self) -> Any:
        return self._launcher.context

    def launch(self, task: Task) -> Any:
        self.jobs.append(FarJob(self._launcher.launch(self._changed(task) if self._changed else task)))
        return self.jobs[-1]

    def close(self) -> None:
        self._launcher.close()


class FarJob:
    """See `Far`."""

    control = None
    is_silent = False

    def __init__(self, job: ForkedJob) -> None:
        self.job = job

    @property
    def has_ended(self) -> bool:
        return False if self.is_silent else self.job.has_ended

    def fileno(self) -> int:
        return -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)


def own_pid(_doer: Doer) -> int:
    return os.getpid()


def hold_the_interpreter(_doer: Any, seconds: int = 600) -> int:
    """As code in C may."""
    return ctypes.PyDLL(None).sleep(seconds)


def far_group(count: int = 1, launcher: Any = None, **options: Any) -> Any:
    merged: Any = {"timeout": 100.0, **options}
    given = RpcOptions(**merged)
    return rpc_group([Doer] * count, launcher=launcher or Far(), options=given, on_failure="report")


def test_submitit(tmp_path: Path) -> None:
    group = far_group(2, SubmititLauncher(submitit.LocalExecutor(tmp_path)))
    pids = [ask(group, worker, own_pid) for worker in range(2)]
    ended = watch(pids)
    assert f"pid {pids[0]} on {socket.gethostname()}" in group.describe(0)[1]
    assert group.progress(0) is None
    os.kill(pids[0], signal.SIGKILL)
    group.request(1, ("add", 1, 2))
    with pytest.raises(WorkerDied):
        poll_until_it_fails(group)
    assert group.ready({1}) == (1, 3)
    group.stop(20)
    assert have_ended(ended)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_worker_whose_group_is_gone_ends_within_five_seconds(is_stuck: bool, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    os.mkfifo(busy)
    code = f"""
import time
from tests.workers.rpc.test_elsewhere import *
group = far_group(1, SubmititLauncher(submitit.LocalExecutor({str(tmp_path)!r})), lost_after=2.0)
print(ask(group, 0, own_pid), flush=True)
def work(doer):
    Path({str(busy)!r}).write_text("busy")
    hold_the_interpreter(doer) if {is_stuck} else time.sleep(600)
group.request(0, work)
time.sleep(600)
"""
    with Script(code) as script:
        ended = watch([int(script.line())])
        assert busy.read_text() == "busy"
        script.process.send_signal(signal.SIGKILL)
        assert have_ended(ended)
    assert max(guard.GRACE, member.GRACE) < 5.0  # what it is given to end by itself; the rest is how fast the machine is


def test_wishes_travel_as_messages() -> None:
    group = far_group()

    def waits_for_stop(doer: Doer) -> int:
        while not doer.control[STOP]:
            threading.Event().wait(0.001)
        return doer.control[STOP]

    group.clear(0)
    group.request(0, waits_for_stop)
    group.stop_early(0)
    assert group.ready({0}) == (0, 1)
    group.clear(0)
    assert ask(group, 0, lambda doer: doer.control[STOP]) == 0
    group.stop()


def wait_until_watched(group: Any) -> None:
    """Until each worker has answered the calls of the group's vigil once: from then on silence counts."""
    watched = group.carrier._watch._vigil._watched
    while not watched or not all(one._is_known for one in watched.values()):
        threading.Event().wait(0.05)


def test_a_death_that_the_launcher_does_not_tell_of() -> None:
    launcher = Far()
    group = far_group(launcher=launcher, lost_after=2.0)
    pid = ask(group, 0, own_pid)
    (job,) = launcher.jobs
    wait_until_watched(group)
    job.is_silent = True
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="it can no longer be reached: "):
        poll_until_it_fails(group)
    job.is_silent = False
    group.stop()


def test_a_machine_that_is_silent() -> None:
    group = far_group(lost_after=2.0)
    pid = ask(group, 0, own_pid)
    wait_until_watched(group)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerDied, match="it can no longer be reached: "):
        poll_until_it_fails(group)
    group.stop()


def test_slow_is_not_dead() -> None:
    group = far_group(lost_after=1.0)
    ask(group, 0, own_pid)

    assert ask(group, 0, partial(hold_the_interpreter, seconds=4)) == 0
    hold_the_interpreter(None, 4)
    assert ask(group, 0, ("add", 1, 2)) == 3
    group.stop()


def test_a_worker_that_ends_before_it_calls() -> None:
    group = far_group(launcher=Far(lambda task: Task("reap.workers.launchers.mp:example", b"", task.name)))
    with pytest.raises(
        WorkerRaised, match=r"ended before it called \(the address that it was given: uv://.*exit code 3"
    ) as info:
        ask(group, 0, own_pid)
    assert type(info.value.error) is ConnectionError
    group.stop()


def test_a_worker_with_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    of_another_version(monkeypatch)
    group = far_group()
    with pytest.raises(WorkerRaised, match=r"a worker on .* has other versions: reap 0\.0\.1 here, ") as info:
        ask(group, 0, own_pid)
    assert type(info.value.error) is OptionError
    group.stop()


def sleep_long(_data: bytes, _control: Any) -> int:
    threading.Event().wait(60)
    return 0


def test_a_worker_that_does_not_call() -> None:
    launcher = Far(lambda task: Task(f"{__name__}:sleep_long", b"", task.name))
    group = far_group(launcher=launcher, timeout=1.0)
    with pytest.raises(WorkerRaised, match="the worker has not called within 1 s") as info:
        ask(group, 0, own_pid)
    assert type(info.value.error) is TimeoutError
    assert "running" in str(info.value)
    group.stop()


def test_the_address_that_is_listened_on() -> None:
    group = far_group(address="127.0.0.1")
    assert group.carrier.own.host == "127.0.0.1"
    assert ask(group, 0, ("add", 1, 2)) == 3
    group.stop()
    with pytest.raises(
        OptionError, match=r"address: expected an IP address of this machine \(.*127\.0\.0\.1.*got '10\.9\.8\.7'"
    ):
        far_group(address="10.9.8.7")
    assert not has_agent()


def test_who_cannot_be_called_is_not_lost() -> None:
    agent.shared.take({}, is_local=False)
    lost: list[str] = []
    vigil = Vigil(1.0)
    address = Address("nobody", 99, "uv://127.0.0.1:9")
    agent.admit(address)
    vigil.watch(address, lost.append)
    threading.Event().wait(1.5)
    vigil.close()
    assert not lost
    agent.dismiss(address)
    agent.shared.give_back()
