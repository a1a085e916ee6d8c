"""`RPCDataCollector`: its frames, its workers' ends, its options, and the agents that others have."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from reap import MultiSyncDataCollector
from reap.collectors.distributed import RPCDataCollector
from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.recording.buffers import IDS
from reap.testing.marked import Marked
from tests.collectors.distributed.policies import Chooser, Locked
from tests.collectors.seams import pids_of
from tests.workers.rpc.agents import has_agent, users_agent

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

FRAMES = 40


class Killing(Marked):
    """Ends its process with its `at`-th step, the first time that a file can be made."""

    def __init__(self, at: int, path: Path, how: str) -> None:
        super().__init__()
        self._at, self._path, self._how = at, path, how

    def step(self, action: Any) -> Any:
        if self.all_steps + 1 == self._at and not self._path.exists():
            self._path.touch()
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("on purpose")
        return super().step(action)


def everything(collector: Any) -> list[Any]:
    with collector:
        return list(collector)


def test_same_seed_same_frames_as_multi_sync() -> None:
    found = []
    for make in (MultiSyncDataCollector, partial(RPCDataCollector, sync=True)):
        torch.manual_seed(3)
        with make(["CartPole-v1"] * 2, frames_per_batch=FRAMES, total_frames=3 * FRAMES) as collector:
            collector.set_seed(7)
            found.append(list(collector))
    for ours, theirs in zip(*found, strict=True):
        assert ours.batch_size == theirs.batch_size
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        assert all((ours[key] == theirs[key]).all() for key in ours.keys(True, True))
    assert not has_agent()


@pytest.fixture(params=[1, None], ids=["of a fixed size", "without a size"])
def own_agent(request: Any, tmp_path: Path) -> Iterator[None]:
    with users_agent(tmp_path, request.param, timeout=0.2):
        yield
        assert rpc.rpc_sync("me", torch.neg, args=(torch.ones(1),), timeout=60) == -1


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # init_rpc's
@pytest.mark.usefixtures("own_agent")
def test_two_collectors_at_once_in_a_process_that_has_an_agent() -> None:
    make = partial(RPCDataCollector, ["CartPole-v1"] * 2, frames_per_batch=FRAMES, total_frames=2 * FRAMES)
    with make(sync=True) as first, make(sync=False) as second:
        for one, other in zip(first, second, strict=False):
            assert (one.batch_size, other.batch_size) == (torch.Size([2, FRAMES // 2]), torch.Size([FRAMES]))
    assert [batch.numel() for batch in everything(make(sync=True))] == [FRAMES, FRAMES]


def test_weights_are_current_from_the_next_rollout_on() -> None:
    options: Any = {"frames_per_batch": FRAMES, "track_policy_version": True, "update_at_each_batch": True}
    with RPCDataCollector(["CartPole-v1"] * 2, Chooser(), sync=True, **options) as collector:
        versions = [collector.next()["collector", "policy_version"].unique().tolist() for _ in range(3)]
    assert versions == [[1], [2], [3]]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_worker_that_fails_in_a_rollout(sync: bool, how: str, tmp_path: Path) -> None:
    envs = [Marked, partial(Killing, 5, tmp_path / "once", how)]
    collector = RPCDataCollector(envs, sync=sync, frames_per_batch=FRAMES)
    with pytest.raises((WorkerDied, WorkerRaised)) as info:
        everything(collector)
    assert info.value.worker == 1
    assert type(info.value) is (WorkerDied if how == "kill" else WorkerRaised)
    assert collector.closed
    assert not has_agent()


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_worker_that_fails_in_a_rollout_is_replaced(sync: bool, how: str, tmp_path: Path) -> None:
    envs = [Marked, partial(Killing, 5, tmp_path / "once", how)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with RPCDataCollector(
            envs, sync=sync, frames_per_batch=FRAMES, total_frames=6 * FRAMES, on_worker_failure="restart"
        ) as collector:
            batches = list(collector)
            assert collector.stats().restarts == 1
    assert sum(batch.numel() for batch in batches) == 6 * FRAMES
    assert any("worker 1 is replaced now" in str(one.message) for one in caught)
    ids = torch.cat([batch[IDS].flatten() for batch in batches])
    assert (ids >= 0).all()


def test_a_worker_that_is_killed_while_idle() -> None:
    made: Any = RPCDataCollector([Marked] * 2, sync=True, frames_per_batch=FRAMES)
    with made as collector:
        collector.next()
        os.kill(pids_of(collector)[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
            list(collector)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launcher": "ssh"}, 'launcher: expected "mp", "submitit"'),
        ({"tensorpipe_options": 3}, "tensorpipe_options: expected a dict, got 3"),
        ({"tensorpipe_options": {"init_method": "env://"}}, "leave init_method out"),
        ({"tensorpipe_options": {"threads": 3}}, "tensorpipe_options: TypeError"),
        ({"tensorpipe_options": {"_transports": ["pigeon"]}}, "tensorpipe_options: RuntimeError"),
        ({"visible_devices": "cuda:0"}, "visible_devices: expected a list with an entry for each worker"),
        ({"visible_devices": ["cpu", None]}, "visible_devices: expected CUDA devices, got 'cpu'"),
        ({"tcp_port": 0}, "tcp_port: expected a port"),
        ({"timeout": -1}, "timeout: expected a positive number of seconds"),
        ({"address": "10.255.255.1"}, "address: expected an IP address of this machine"),
        ({"policy": Locked()}, "policy_factory"),
        ({"frames_per_bach": 3}, "frames_per_batch"),
        ({"collector_kwargs": {"visible_devices": None}}, "got 'visible_devices'; give it to RPCDataCollector itself$"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    make: Any = RPCDataCollector
    with pytest.raises(OptionError, match=message):
        make(["CartPole-v1"] * 2, **{"frames_per_batch": FRAMES, **options})
    assert not has_agent()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are CUDA devices")
def test_devices_where_there_are_none() -> None:
    with pytest.raises(OptionError, match="visible_devices: torch finds no CUDA devices here"):
        RPCDataCollector(["CartPole-v1"], frames_per_batch=FRAMES, visible_devices=["cuda:0"])


def test_torchrls_arguments_work() -> None:
    collector: Any = RPCDataCollector(
        ["CartPole-v1"] * 2,
        frames_per_batch=FRAMES,
        total_frames=2 * FRAMES,
        sync=True,
        collector_class="single",
        collector_kwargs={"max_frames_per_traj": 5},
        num_workers_per_collector=1,
        update_after_each_batch=True,
        launcher="mp",
        backend="gloo",
        tcp_port="10003",
        tensorpipe_options={"num_worker_threads": 8, "_transports": ["uv"]},
    )
    assert collector.launcher == "mp"
    assert collector.sync
    assert [batch["step_count"].max() < 5 for batch in everything(collector)] == [True, True]
