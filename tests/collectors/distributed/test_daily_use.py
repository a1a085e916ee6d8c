"""What people do all day beside collecting, with workers on engines: progress, loggers, any episode again, evaluation."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import reap
from reap import GymEnv, SerialEnv
from reap.collectors import Collector
from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector, RPCDataCollector
from reap.testing import Const, Count
from tests.collectors.worker_kinds import steps

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

KINDS: dict[str, Callable[..., Any]] = {
    "gloo, async": DistributedDataCollector,
    "gloo, sync": DistributedSyncDataCollector,
    "RPC, async": RPCDataCollector,
    "RPC, sync": partial(RPCDataCollector, sync=True),
}
WORKERS, FRAMES, BATCHES = 2, 80, 4


def two_pendulums() -> SerialEnv:
    return SerialEnv(2, lambda: GymEnv("Pendulum-v1", max_episode_steps=15))


@pytest.mark.parametrize("kind", KINDS)
def test_progress_logs_and_episodes_again(kind: str, tmp_path: Path) -> None:
    """One collection with all of it: a collector on an engine takes seconds to start."""
    screen = Console(file=StringIO(), force_terminal=True, width=120)
    scalars: list[dict[str, float]] = []
    with KINDS[kind](
        [two_pendulums] * WORKERS, frames_per_batch=FRAMES, total_frames=BATCHES * FRAMES, record_episodes=True
    ) as collector:
        collector.set_seed(5)
        for batch in reap.progress(collector, console=screen):
            assert batch.numel() == FRAMES
            scalars.append(reap.log(collector, tmp_path / "run.csv"))
        records = list(collector.episodes.values())
        stats = collector.stats()
    assert "320" in screen.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    written = list(csv.DictReader((tmp_path / "run.csv").read_text(encoding="utf-8").splitlines()))
    assert [float(line["frames/delivered"]) for line in written] == [FRAMES * number for number in range(1, BATCHES + 1)]
    assert [one["frames/delivered"] for one in scalars] == [float(line["frames/delivered"]) for line in written]
    assert scalars[-1]["episodes/finished"] == stats.finished_episodes == len(records) > 0
    found = [reap.replay(None, record) for record in records]
    assert [str(one) for one in found if not one.equal] == []
    assert {record.length for record in records} == {15}


def test_a_collector_whose_jobs_submitit_starts(tmp_path: Path) -> None:
    conf = {"folder": str(tmp_path), "cluster": "local", "timeout_min": 3}
    with Collector(
        partial(Count, 50),
        Const(),
        frames_per_batch=8,
        backend="submitit",
        num_collectors=2,
        sync=True,
        backend_options={"slurm_kwargs": conf, "address": "127.0.0.1"},
    ) as collector:
        assert isinstance(collector, DistributedDataCollector)
        assert steps(collector.next()) == [[0, 1, 2, 3]] * 2
        assert list(tmp_path.glob("*_result.pkl")) == [], "the jobs run until the collector is shut down"
    assert len(list(tmp_path.glob("*_submitted.pkl"))) == 2
