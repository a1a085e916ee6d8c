"""Workers that are taken to be on other machines: a TCPStore on one interface, jobs of submitit, and what goes wrong there."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import submitit

from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.workers.gloo.group import made_meeting
from reap.workers.launchers.base import await_ends
from reap.workers.launchers.mp import MpLauncher
from reap.workers.launchers.submitit import SubmititLauncher
from reap.workers.process_context import RemoteContext
from reap.workers.processes import fork_client
from reap.workers.progress import STOP
from reap.workers.remote import guard
from tests.machine import of_another_version
from tests.workers.gloo.groups import group_of, listening, pid_of
from tests.workers.gloo.test_group import LOOPBACK
from tests.workers.handlers import Doer, ask, descriptors, exists, have_ended, watch
from tests.workers.scripts import Script

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


class Elsewhere:
    """Processes of this machine whose ints nobody sees, as if they were on another."""

    is_local = False

    def __init__(self, entry: str = "") -> None:
        self._own, self._entry = MpLauncher(), entry

    @property
    def context(self) -> RemoteContext:
        return RemoteContext.capture()

    def launch(self, task: Any) -> Any:
        job = self._own.launch(type(task)(self._entry, task.data, task.name) if self._entry else task)
        job.control = None
        return job

    def close(self) -> None:
        """Nothing is held."""


def never_comes(_data: bytes, _control: Any) -> int:
    time.sleep(60)
    return 0


def ends_at_once(_data: bytes, _control: Any) -> int:
    return 5


HERE = "127.0.0.1"


def test_over_a_tcp_store_bound_to_one_interface() -> None:
    fork_client.server()
    made_meeting(Elsewhere(), HERE, None).close()  # the first of a process opens a pipe that stays
    before = descriptors()
    group = group_of([Doer] * 2, launcher=Elsewhere(), address=HERE)
    for worker in range(2):
        assert ask(group, worker, ("add", worker, 1)) == worker + 1
    assert set(listening()) == {LOOPBACK}
    assert group.facts(1).host == socket.gethostname()
    pids = [pid_of(group, worker) for worker in range(2)]
    group.stop()
    assert not any(map(exists, pids))
    assert descriptors() == before


def test_wishes_travel_as_messages() -> None:
    group = group_of([Doer], launcher=Elsewhere(), address=HERE)

    def until_told(doer: Doer) -> int:
        while not doer.control[STOP]:
            time.sleep(0.001)
        return doer.control[STOP]

    group.request(0, until_told)
    group.stop_early(0)
    assert group.ready([0])[1] == 1
    group.clear(0)
    assert ask(group, 0, lambda doer: doer.control[STOP]) == 0
    group.stop()


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_worker_whose_group_is_gone_ends_within_five_seconds(is_stuck: bool, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    os.mkfifo(busy)
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent.parent.parent.parent)!r})
from tests.workers.gloo.test_elsewhere import *
parameters = {{"folder": {str(tmp_path)!r}, "cluster": "local"}}
group = group_of([Doer], launcher=SubmititLauncher(parameters=parameters), address=HERE, timeout=100)
print(ask(group, 0, lambda doer: os.getpid()), flush=True)
def work(doer):
    Path({str(busy)!r}).write_text("busy")
    stuck() if {is_stuck} else time.sleep(600)
group.request(0, work)
time.sleep(600)
"""
    with Script(code) as script:
        workers = watch([int(script.line())])
        assert busy.read_text() == "busy"
        os.kill(script.process.pid, signal.SIGKILL)
        assert have_ended(workers)
    assert guard.GRACE < 5.0  # what it is given to end by itself; the rest is how fast the machine is


def stuck() -> None:
    """Hold the interpreter's lock, as code in C may."""
    import ctypes

    ctypes.PyDLL(None).sleep(600)


def test_jobs_of_submitit(tmp_path: Path) -> None:
    launcher = SubmititLauncher(parameters={"folder": tmp_path, "cluster": "local", "timeout_min": 3})
    group = group_of([Doer] * 2, launcher=launcher, address=HERE, on_failure="report", timeout=100)
    for worker in range(2):
        assert ask(group, worker, ("add", worker, 1)) == worker + 1
    pids = [pid_of(group, worker) for worker in range(2)]
    ended = watch(pids)
    assert "job " in group.carrier.place(0)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied) as info:
        ask(group, 0, ("add", 1, 1))
    assert info.value.exit_code is None
    group.stop()
    assert have_ended(ended)


def deaf(doer: Doer) -> None:
    """For a minute, ended by SIGKILL alone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)


@pytest.mark.parametrize("setup", [[], ["true"]], ids=["plain", "with a setup"])
@pytest.mark.parametrize("state", ["idle", "deaf", "starting"])
def test_jobs_of_this_machine_end_without_a_word(
    state: str, setup: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The controller of a job that submitit cancels would print a traceback."""
    executor = submitit.LocalExecutor(tmp_path)
    executor.update_parameters(timeout_min=3, setup=setup)
    group = group_of([Doer] * 2, launcher=SubmititLauncher(executor), address=HERE, timeout=100)
    jobs = [line.job for line in group.carrier.lines.values()]
    ended = watch([int(job.place.removeprefix("job ")) for job in jobs])
    if state != "starting":
        ended += watch([pid_of(group, worker) for worker in range(2) if ask(group, worker, ("add", 1, 1))])
    if state == "deaf":
        group.request(1, deaf)
    group.stop(2.0)
    assert have_ended(ended)
    assert await_ends(jobs, 30.0) == []
    assert capfd.readouterr() == ("", "")


def test_workers_that_do_not_come_are_named() -> None:
    with pytest.raises(WorkerRaised) as info:
        ask(group_of([Doer] * 2, launcher=Elsewhere(f"{__name__}:never_comes"), address=HERE, timeout=1.0), 0, ("add", 1, 1))
    text = str(info.value)
    assert type(info.value.__cause__) is TimeoutError
    assert "these workers did not connect to 127.0.0.1:" in text
    assert "worker 0 (pid" in text
    assert "worker 1 (pid" in text
    assert "running" in text


def test_a_worker_that_ends_at_its_start_is_believed_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(WorkerDied) as info:
        ask(group_of([Doer], launcher=Elsewhere(f"{__name__}:ends_at_once"), address=HERE), 0, ("add", 1, 1))
    assert (info.value.exit_code, info.value.phase) == (5, "start")
    assert time.monotonic() - begun < 30.0


def test_a_job_that_fails_at_its_start_shows_its_log(tmp_path: Path) -> None:
    launcher = SubmititLauncher(parameters={"folder": tmp_path, "cluster": "local"})
    launcher.launch, launch = lambda task: launch(type(task)("reap.nothing:here", b"", "x")), launcher.launch  # type: ignore[method-assign]
    with pytest.raises(WorkerRaised, match="No module named 'reap.nothing'") as info:
        ask(group_of([Doer], launcher=launcher, address=HERE, timeout=100), 0, ("add", 1, 1))
    assert str(tmp_path) in str(info.value)


def test_a_worker_with_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    of_another_version(monkeypatch)
    group = group_of([Doer], launcher=Elsewhere(), address=HERE)
    with pytest.raises(WorkerRaised, match=r"a worker on .* has other versions: reap 0\.0\.1 here, ") as caught:
        ask(group, 0, ("add", 1, 1))
    assert isinstance(caught.value.error, OptionError)
    group.stop()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HERE, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken(taken: int) -> None:
    with pytest.raises(OptionError, match=rf"tcp_port={taken}, address 127.0.0.1: cannot listen there: Address already in use"):
        group_of([Doer], launcher=Elsewhere(), address=HERE, port=taken)


@pytest.mark.parametrize(
    ("address", "text"),
    [("0.0.0.0", "is every interface"), ("somewhere", "IP address"), ("203.0.113.7", "cannot listen there")],
)
def test_addresses_that_cannot_be(address: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        group_of([Doer], launcher=Elsewhere(), address=address)


@pytest.mark.parametrize("found", [[], ["10.0.0.1", "10.1.0.1"]])
def test_an_address_that_is_not_clear_has_to_be_given(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reap.workers.gloo.group.own_addresses", lambda: found)
    with pytest.raises(OptionError, match="give the address"):
        made_meeting(Elsewhere(), None, None)
