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
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.collectors.distributed.namespaces import ROOT, Cable, Trainer, laid, needs_root, running

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), needs_root]

MODULE = "tests.collectors.distributed.far_trainer"
LOST_AFTER = 3.0
SLACK = 10.0
"""Seconds that a busy machine may take beside."""


@pytest.fixture
def cable(worker_id: str) -> Iterator[Cable]:
    number = 1 + int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 0
    with laid(number) as cable:
        yield cable


def arguments(cable: Cable, kind: str) -> tuple[str, ...]:
    return "gloo", cable.far, cable.near_address, kind, str(LOST_AFTER)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_workers_of_another_machine(cable: Cable, kind: str) -> None:
    with running(cable, MODULE, *arguments(cable, kind)) as trainer:
        assert trainer.hear() == "made"
        shape = "(2, 100)" if kind == "sync" else "(200,)"
        assert [trainer.ask("next") for _ in range(4)] == [shape] * 4
        listening = set(cable.listening())
        assert listening == {cable.near_address}, "nothing listens on all interfaces"


def lands_behind_training(cable: Cable, trainer: Trainer, delivered: int) -> None:
    """Over a slow link two blocks are delivered, and those that both workers send after them land without a call of `next`."""
    cable.slow("200mbit")
    before = float(trainer.ask("transfer"))
    assert [trainer.ask("next") for _ in range(2)] == ["(200,)"] * 2
    assert trainer.ask(f"land {delivered + 4}") == "landed"
    assert float(trainer.ask("transfer")) - before > 0.4, "5.6 MB take 0.23 s at 200 Mbit/s"


def test_a_slow_link_is_hidden_behind_training(cable: Cable) -> None:
    with running(cable, MODULE, *arguments(cable, "async")) as trainer:
        assert trainer.hear() == "made"
        trainer.ask("next")
        lands_behind_training(cable, trainer, 1)


@pytest.mark.parametrize("moment", ["in a rollout", "while idle", "with a block half sent"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_link_that_is_cut(cable: Cable, kind: str, moment: str) -> None:
    with running(cable, MODULE, *arguments(cable, kind)) as trainer:
        assert trainer.hear() == "made"
        trainer.ask("next")
        workers = cable.pids(cable.far)
        assert len(workers) >= 2
        if moment == "while idle":
            trainer.ask("train 2")  # what async workers record meanwhile is there
        elif moment == "with a block half sent":
            cable.slow("2mbit")  # a block takes ten seconds
            trainer.tell("next")
            time.sleep(2.0)
        else:
            trainer.tell("next")
        cable.cut()
        cut = time.monotonic()
        answer = trainer.hear(LOST_AFTER + SLACK) if moment != "while idle" else ""
        while "WorkerDied" not in answer:
            answer = trainer.ask("next", LOST_AFTER + SLACK)
        assert " on " in answer, "it names the machine"
        while cable.pids(cable.far):
            assert time.monotonic() < cut + LOST_AFTER + 5 + SLACK, "the far workers are gone"
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
        self._place = tempfile.mkdtemp(prefix="ray-")  # in /tmp/ray programs would look for this Ray when it is gone
        head = ["--head", "--port", "6379", "--num-cpus", "0", "--include-dashboard", "false", "--temp-dir", self._place]
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
        """End the nodes."""
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._place, ignore_errors=True)

    @contextmanager
    def trainer(self, kind: str) -> Generator[Trainer]:
        """A trainer that has the token."""
        with running(self._cable, MODULE, "ray", self.address, kind, environment=self.environment) as trainer:
            assert trainer.hear(100.0) == "made"
            yield trainer


@pytest.mark.timeout(240)
def test_ray_on_two_machines(cable: Cable, tmp_path: Path) -> None:
    with closing(RayNodes(cable, tmp_path)) as nodes, nodes.trainer("async") as trainer:
        assert [trainer.ask("next") for _ in range(4)] == ["(200,)"] * 4
        lands_behind_training(cable, trainer, 4)
        cable.cut()
        answer = trainer.ask("next", 60.0)
        while "WorkerDied" not in answer:
            answer = trainer.ask("next", 60.0)
        assert "node" in answer
