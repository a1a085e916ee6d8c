"""Ctrl-C while a collector is built on gloo or RPC: it is raised, and nothing is left of what had started."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector, RPCDataCollector
from reap.testing import Count
from reap.workers.processes import fork_client
from reap.workers.rpc import agent
from tests.collectors.distributed.starts import Interrupted, NeverMeets, Point
from tests.collectors.worker_kinds import nothing_left
from tests.workers.rpc.agents import has_agent

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

KINDS: dict[str, Callable[..., Any]] = {
    "gloo": DistributedDataCollector,
    "gloo, sync class": DistributedSyncDataCollector,
    "RPC": RPCDataCollector,
    "RPC, sync": partial(RPCDataCollector, sync=True),
}


@pytest.fixture(autouse=True, scope="module")
def _open_already() -> None:
    """The server that forks workers, and what torch's RPC opens once, are there before."""
    fork_client.server()
    agent.shared.take({}, is_local=True)
    agent.shared.give_back()


@pytest.mark.parametrize("when", ["rendezvous", "making an env"])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_while_workers_start(kind: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    point = Point(tmp_path)
    envs: list[Any] = [partial(Count, 5), point if when == "making an env" else partial(Count, 5)]
    options = {"launcher": NeverMeets(point)} if when == "rendezvous" else {}
    with nothing_left() as pids:
        pids.append(point.interrupts(lambda: KINDS[kind](envs, frames_per_batch=8, **options)))
    assert list(folder.iterdir()) == []
    assert not has_agent()


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_before_anybody_knows_of_a_process(kind: str) -> None:
    with nothing_left() as pids:
        launcher = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            KINDS[kind]([partial(Count, 5)] * 2, frames_per_batch=8, launcher=launcher)
        assert len(launcher.pids) == 1
        pids.extend(launcher.pids)
    assert not has_agent()
