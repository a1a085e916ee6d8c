"""`Collector(backend="ray")`, with workers in a Ray of this machine, and what people do with it all day."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import reap
from reap import GymEnv
from reap.collectors import Collector
from reap.collectors.distributed import RayCollector
from reap.testing import Const, Count
from tests.collectors.worker_kinds import steps
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures

ray = pytest.importorskip("ray")

pytestmark = on_ray()


def pendulum() -> GymEnv:
    return GymEnv("Pendulum-v1", max_episode_steps=15)


@pytest.mark.parametrize("sync", [True, False])
def test_the_workers_are_actors_of_ray(sync: bool) -> None:
    with Collector(
        partial(Count, 50), Const(), frames_per_batch=8, total_frames=32, backend="ray", num_collectors=2, sync=sync
    ) as collector:
        assert isinstance(collector, RayCollector)
        assert (collector.num_workers, collector.sync) == (2, sync)
        batches = list(collector)
    if sync:
        assert [steps(batch) for batch in batches] == [[list(range(first, first + 4))] * 2 for first in (0, 4, 8, 12)]
        return
    by_worker: dict[int, list[float]] = {}  # either may deliver more often
    for batch in batches:
        (trajectory,) = batch["collector", "traj_ids"].unique().tolist()
        by_worker.setdefault(trajectory, []).extend(steps(batch))
    assert sum(map(len, by_worker.values())) == 32
    assert all(own == list(range(len(own))) for own in by_worker.values())


def test_logs_and_episodes_again(tmp_path: Path) -> None:
    with Collector(
        pendulum, frames_per_batch=40, total_frames=120, backend="ray", num_collectors=1, record_episodes=True
    ) as collector:
        scalars = [reap.log(collector, tmp_path / "run.csv") for _ in reap.progress(collector)]
        records = list(collector.episodes.values())
    assert [one["frames/delivered"] for one in scalars] == [40, 80, 120]
    assert len(records) == 8
    assert all(reap.replay(None, record).equal for record in records)
