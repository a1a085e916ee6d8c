"""The one agent of a process: shared by groups, the user's where one runs, ended when nobody uses it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from reap.errors import ClosedError
from reap.workers.rpc import agent
from reap.workers.rpc.group import rpc_group
from tests.workers.handlers import Doer, ask
from tests.workers.rpc.agents import has_agent, users_agent

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


@pytest.fixture(params=[1, None], ids=["of a fixed size", "without a size"])
def own_agent(request: Any, tmp_path: Path) -> Iterator[None]:
    with users_agent(tmp_path, request.param, timeout=0.3):
        yield


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # init_rpc's
@pytest.mark.usefixtures("own_agent")
def test_the_users_agent_is_used_and_runs_on() -> None:
    for _ in range(2):
        groups = [rpc_group([Doer] * 2) for _ in range(2)]
        # Longer than the agent's own timeout.
        assert [ask(group, 1, lambda _: time.sleep(0.6) or 5) for group in groups] == [5, 5]
        assert not agent.shared.is_ours
        for group in groups:
            group.stop()
        assert rpc.rpc_sync("me", torch.neg, args=(torch.ones(1),), timeout=60) == -1
    assert [info.name for info in agent.api._get_current_rpc_agent().get_worker_infos()] == ["me"]


def test_groups_share_an_agent_that_ends_with_the_last_of_them() -> None:
    first, second = rpc_group([Doer]), rpc_group([Doer])
    assert agent.shared.is_ours
    first.stop()
    assert has_agent()
    assert ask(second, 0, ("add", 1, 2)) == 3
    second.stop()
    assert not has_agent()
    third = rpc_group([Doer])
    assert ask(third, 0, ("add", 1, 2)) == 3
    third.stop()
    assert not has_agent()


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # init_rpc's
def test_the_user_can_start_one_afterwards(tmp_path: Path) -> None:
    rpc_group([Doer]).stop()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store")
    rpc.init_rpc("me", rank=0, world_size=1, rpc_backend_options=options)
    assert rpc.rpc_sync("me", torch.neg, args=(torch.ones(1),)) == -1
    rpc.shutdown()


def test_an_agent_does_not_work_in_a_fork() -> None:
    group = rpc_group([Doer])
    if not (child := os.fork()):
        try:
            rpc_group([Doer])
        except ClosedError:
            os._exit(5)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    group.stop()


def test_the_interface_that_the_user_has_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rpc_group([Doer]).stop()
    assert agent.INTERFACE not in os.environ
    monkeypatch.setenv(agent.INTERFACE, "lo")
    rpc_group([Doer]).stop()
    assert os.environ[agent.INTERFACE] == "lo"
