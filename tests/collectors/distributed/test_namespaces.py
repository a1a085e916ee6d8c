"""Trainer and workers on two machines, as far as the network can tell: over a slow link, and when it is cut."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.collectors.distributed.namespaces import ROOT, Cable, Program, laid, needs_root, running
from tests.workers.handlers import patience

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300), needs_root]

TRAINER = "tests.collectors.distributed.far_trainer"
MACHINE = "tests.collectors.distributed.far_machine"
LOST_AFTER = 3.0
SLACK = 60.0
"""Seconds that processes may take beside; a connection that nobody watches would be there for many minutes."""


def cable_number(worker_id: str) -> int:
    """Of a process of xdist."""
    return 1 + int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 0


@pytest.fixture(scope="module")
def machines(worker_id: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cable, Program]]:
    """A cable, and a trainer at one end; a scheduler is at the other. Each takes seconds to import torch."""
    socket = str(tmp_path_factory.mktemp("far") / "socket")
    with laid(cable_number(worker_id)) as cable, ExitStack() as stack:
        far = stack.enter_context(running(cable.far, MACHINE, socket))
        near = stack.enter_context(running(cable.near, TRAINER, "gloo", socket, cable.near_address, str(LOST_AFTER)))
        cable.staying = {far.process.pid, near.process.pid}
        yield cable, near


@pytest.fixture
def cable(machines: tuple[Cable, Program]) -> Iterator[Cable]:
    yield machines[0]
    machines[0].mend()


@contextmanager
def trainer_with(machines: tuple[Cable, Program], kind: str) -> Generator[Program]:
    """The trainer, with a collector for as long as the body runs."""
    trainer = machines[1]
    assert trainer.ask(f"make {kind}") == "made"
    yield trainer
    assert trainer.ask("close") == "closed"


def workers_of(cable: Cable) -> set[int]:
    """The processes at the other end that are not to stay."""
    return set(cable.pids(cable.far)) - cable.staying


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_workers_of_another_machine(machines: tuple[Cable, Program], cable: Cable, kind: str) -> None:
    with trainer_with(machines, kind) as trainer:
        shape = "(2, 100)" if kind == "sync" else "(200,)"
        assert [trainer.ask("next") for _ in range(4)] == [shape] * 4
        listening = set(cable.listening())
        assert listening == {cable.near_address}, "nothing listens on all interfaces"


def lands_behind_training(cable: Cable, trainer: Program, delivered: int) -> None:
    """Over a slow link two blocks are delivered, and those that both workers send after them land without a call of `next`."""
    cable.slow("200mbit")
    before = float(trainer.ask("transfer"))
    assert [trainer.ask("next") for _ in range(2)] == ["(200,)"] * 2
    assert trainer.ask(f"land {delivered + 4}") == "landed"
    assert float(trainer.ask("transfer")) - before > 0.4, "5.6 MB take 0.23 s at 200 Mbit/s"


def test_a_slow_link_is_hidden_behind_training(machines: tuple[Cable, Program], cable: Cable) -> None:
    with trainer_with(machines, "async") as trainer:
        trainer.ask("next")
        lands_behind_training(cable, trainer, 1)


@pytest.mark.parametrize("moment", ["in a rollout", "while idle", "with a block half sent"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_link_that_is_cut(machines: tuple[Cable, Program], cable: Cable, kind: str, moment: str) -> None:
    with trainer_with(machines, kind) as trainer:
        trainer.ask("next")
        assert len(workers_of(cable)) >= 2
        if moment == "while idle":
            if kind == "async":
                trainer.ask("land 3")  # what both record meanwhile is there
        elif moment == "with a block half sent":
            cable.slow("2mbit")  # a block takes ten seconds
            before = cable.carried()
            trainer.tell("next")
            while cable.carried() < before + 200_000:
                time.sleep(0.05)
        else:
            trainer.tell("next")
        cable.cut()
        cut = time.monotonic()
        answer = trainer.hear(LOST_AFTER + patience(SLACK)) if moment != "while idle" else ""
        while "WorkerDied" not in answer:
            answer = trainer.ask("next", LOST_AFTER + patience(SLACK))
        assert " on " in answer, "it names the machine"
        while workers_of(cable):
            assert time.monotonic() < cut + LOST_AFTER + 5 + patience(SLACK), "the far workers are gone"
            time.sleep(0.1)


# ---------------------------------------------------------------------- Ray, with a token

QUICK = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "500", "RAY_health_check_failure_threshold": "3"}
"""Ray's own limits, shorter than they are."""


class RayNodes:
    """A head in the trainer's namespace, which takes no actors, and a node in the workers'.

    Args:
        cable: the cable.
        folder: where the token is.
    """

    def __init__(self, cable: Cable, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.address = f"{cable.near_address}:6379"
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), **QUICK}
        common = ["--block", "--disable-usage-stats", "--object-store-memory", str(200 << 20)]
        self.place = tempfile.mkdtemp(prefix="ray-")  # in /tmp/ray programs would look for this Ray when it is gone
        head = ["--head", "--port", "6379", "--num-cpus", "0", "--include-dashboard", "false", "--temp-dir", self.place]
        self._cable, self._processes = cable, list[subprocess.Popen[bytes]]()
        self._start(cable.near, *head, "--node-ip-address", cable.near_address, *common)
        cable.wait_for_listener(cable.near, 6379)
        node = ["--address", self.address, "--num-cpus", "2", "--node-manager-port", "6380"]
        self._start(cable.far, *node, "--node-ip-address", cable.far_address, *common)
        cable.wait_for_listener(cable.far, 6380)

    def _start(self, namespace: str, *arguments: str) -> None:
        ray = Path(sys.executable).parent / "ray"
        command = ["ip", "netns", "exec", namespace, sys.executable, str(ray), "start", *arguments]
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._processes.append(process)

    def close(self) -> None:
        """End the nodes, and all that they have started."""
        self._cable.end_all()
        for process in self._processes:
            process.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    @contextmanager
    def trainer(self, kind: str) -> Generator[Program]:
        """A trainer that has the token, with a collector."""
        with running(self._cable.near, TRAINER, "ray", self.address, environment=self.environment) as trainer:
            assert trainer.ask(f"make {kind}") == "made"
            yield trainer


def names_of_those_who_show(token: str, folder: Path) -> list[str]:
    """The processes of this machine with a token in their command line, and the logs of a Ray that it is in."""
    lines = Path("/proc").glob("[0-9]*/cmdline")
    logs = [*folder.rglob("*.log"), *folder.rglob("*.out"), *folder.rglob("*.err")]
    assert logs
    found = []
    for file in (*lines, *logs):
        with suppress(OSError):  # the process has ended
            if token.encode() in file.read_bytes():
                found.append(str(file))
    return found


def test_ray_on_two_machines(worker_id: str, tmp_path: Path) -> None:
    with (
        laid(50 + cable_number(worker_id)) as cable,
        closing(RayNodes(cable, tmp_path)) as nodes,
        nodes.trainer("async") as trainer,
    ):
        assert [trainer.ask("next") for _ in range(4)] == ["(200,)"] * 4
        assert names_of_those_who_show((tmp_path / "token").read_text(), Path(nodes.place)) == []
        lands_behind_training(cable, trainer, 4)
        cable.cut()
        answer = trainer.ask("next", 60.0)
        while "WorkerDied" not in answer:
            answer = trainer.ask("next", 60.0)
        assert "node" in answer
