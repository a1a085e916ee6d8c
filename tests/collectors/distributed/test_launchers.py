"""Distributed collectors whose workers are started by submitit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reap import optional
from reap.collectors.distributed import (
    DistributedDataCollector,
    DistributedSyncDataCollector,
    submitit_delayed_launcher,
)
from reap.errors import OptionError
from reap.testing import Const, Count
from reap.workers.launchers.delayed import VARIABLE
from tests.collectors.distributed.policies import Locked
from tests.collectors.worker_kinds import steps, take

pytestmark = pytest.mark.distributed


def test_jobs_of_submitit(tmp_path: Path) -> None:
    conf = {"folder": str(tmp_path), "cluster": "local", "timeout_min": 3}
    with DistributedSyncDataCollector(
        [partial(Count, 50)] * 2,
        Const(),
        frames_per_batch=8,
        launcher="submitit",
        slurm_kwargs=conf,
        address="127.0.0.1",
        timeout=100,
    ) as collector:
        batches = take(collector, 2)
    assert [steps(batch) for batch in batches] == [[[0, 1, 2, 3]] * 2, [[4, 5, 6, 7]] * 2]


def test_an_executor_of_the_users(tmp_path: Path) -> None:
    import submitit

    executor = submitit.LocalExecutor(folder=tmp_path)
    with DistributedDataCollector(
        [partial(Count, 50)], Const(), frames_per_batch=4, launcher=executor, address="127.0.0.1", timeout=100
    ) as collector:
        assert steps(collector.next()) == [0, 1, 2, 3]


def program() -> list[Any]:
    found = []
    for _ in range(2):  # the jobs serve a second collector too
        with DistributedSyncDataCollector(
            ["CartPole-v1"] * 2, frames_per_batch=8, launcher="submitit_delayed", address="127.0.0.1", timeout=100
        ) as collector:
            found += [tuple(batch.shape) for batch in take(collector, 2)]
    return found


def test_a_program_that_is_submitted_with_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    conf = {"folder": str(tmp_path / "%j"), "cluster": "local", "timeout_min": 3}
    main = submitit_delayed_launcher(2, submitit_main_conf=conf, submitit_collection_conf=conf)(program)
    assert main() == [(2, 4)] * 4


def test_a_program_that_was_not() -> None:
    with pytest.raises(OptionError, match="submitit_delayed_launcher has submitted"):
        DistributedDataCollector(["CartPole-v1"], frames_per_batch=4, launcher="submitit_delayed")


def test_more_workers_than_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(OSError, match="all 1 jobs that were submitted with this program have a worker: increase num_jobs"):
        DistributedDataCollector(
            ["CartPole-v1"] * 2, frames_per_batch=4, launcher="submitit_delayed", address="127.0.0.1", timeout=5
        )


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nccl": ({"backend": "nccl"}, '"nccl" needs CUDA devices'),
    "mpi": ({"backend": "mpi"}, 'expected "gloo"'),
    "launcher": ({"launcher": "ssh"}, 'launcher: expected "mp"'),
    "parameters": ({"slurm_kwargs": {"timeout_min": 1}}, 'they are for launcher="submitit"'),
    "parameter": ({"launcher": "submitit", "slurm_kwargs": {"nothing": 1, "cluster": "local"}}, "slurm_kwargs: NameError"),
    "debug": ({"launcher": "submitit", "slurm_kwargs": {"cluster": "debug"}}, "debug executor runs jobs in this process"),
    "port": ({"tcp_port": "http"}, "tcp_port: expected a port"),
    "timeout": ({"timeout": 0}, "timeout: expected a positive number of seconds"),
    "lost_after": ({"lost_after": -1}, "lost_after: expected a positive number of seconds"),
    "workers": ({"num_workers_per_collector": 0}, "num_workers_per_collector: expected a positive number"),
    "single": ({"num_workers_per_collector": 2, "collector_class": "single"}, 'collector_class="single" has one env'),
    "interval": ({"update_interval": 0}, "update_interval: expected a positive number of batches"),
    "intervals": ({"update_interval": 2, "max_weight_update_interval": 3}, "expected one of them"),
    "both": ({"collector_kwargs": {"frames_per_batch": 4}}, r"frames_per_batch and collector_kwargs\['frames_per_batch'\]"),
    "kwargs": ({"collector_kwargs": [{"reset_at_each_iter": True}, {}]}, "has to be the same for all workers"),
    "kwargs count": ({"collector_kwargs": [{}]}, "expected one dict for each of 2 workers, got 1"),
    "kwargs interval": (
        {"collector_kwargs": {"update_interval": 1}},
        "got 'update_interval'; give it to Distributed.* itself$",
    ),
    "kwargs link": ({"collector_kwargs": [{"timeout": 9}, {}]}, "got 'timeout'; give it to DistributedDataCollector itself$"),
    "kwargs sync": ({"collector_kwargs": {"sync": True}}, "got 'sync'; give it to DistributedDataCollector itself$"),
    "kwargs unknown": ({"collector_kwargs": {"frames": 3}}, "unknown option 'frames'"),
    "min_workers": ({"min_workers": 3}, "expected at most the number of workers, 2"),
    "policy": ({"policy": Locked()}, "policy_factory"),
    "unknown": ({"frames": 3}, "unknown option 'frames'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_work(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options, text = WRONG[case]
    with pytest.raises(OptionError, match=text):
        DistributedDataCollector(["CartPole-v1"] * 2, frames_per_batch=4, **options)


@pytest.mark.parametrize("sync", [False, True])
def test_the_synchronous_collector_takes_no_sync(sync: bool) -> None:
    message = (
        f"sync: a DistributedSyncDataCollector is always sync, got sync={sync}; .*DistributedDataCollector, which takes sync"
    )
    with pytest.raises(OptionError, match=message):
        DistributedSyncDataCollector(["CartPole-v1"], frames_per_batch=4, sync=sync)


def test_without_submitit_the_line_that_installs_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="submitit")

    monkeypatch.setattr(optional.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'submitit is not installed.*pip install "reap\[slurm\]"'):
        DistributedDataCollector(["CartPole-v1"], frames_per_batch=4, launcher="submitit")


def test_min_workers_with_sync() -> None:
    with pytest.raises(OptionError, match="every batch holds a rollout of every worker"):
        DistributedDataCollector(["CartPole-v1"] * 2, sync=True, frames_per_batch=4, min_workers=1)


def test_options_can_be_read() -> None:
    with DistributedDataCollector(["CartPole-v1"], frames_per_batch=4, timeout=50, max_weight_update_interval=3) as collector:
        assert (collector.sync, collector.launcher, collector.timeout, collector.backend) == (False, "mp", 50, "gloo")
        assert (collector.max_weight_update_interval, collector.frames_per_batch) == (3, 4)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_workers_with_collectors_of_their_own(kind: str) -> None:
    with DistributedSyncDataCollector(
        [partial(Count, 50)] * 2, Const(), frames_per_batch=16, collector_class=kind, num_workers_per_collector=2
    ) as collector:
        assert collector.next().numel() == 16
