"""Clusters as their users start them: programs that are submitted as jobs, and nodes that Ray adds when they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.collectors.distributed.ray_head import RAY, ray_head
from tests.workers.ray.local import ONE_RAY

pytest.importorskip("ray")

pytestmark = [pytest.mark.distributed, pytest.mark.ray, ONE_RAY, pytest.mark.timeout(300)]

MODULE = """
from reap.testing import Count

class Mine(Count):
    '''An env that only this program has.'''
"""

JOB = """
from functools import partial

from my_envs import Mine
from reap.collectors.distributed import RayCollector

with RayCollector([partial(Mine, 5)] * 2, frames_per_batch=20, total_frames=60, sync=True) as collector:
    for batch in collector:
        print("a batch", tuple(batch.shape))
    print(collector.stats().workers[1].place)
"""

GROWS = """
import sys

from reap.collectors.distributed import RayCollector

options = {"ray_init_config": {"address": sys.argv[1], "log_to_driver": False}}
with RayCollector("CartPole-v1", num_collectors=3, frames_per_batch=30, total_frames=60, sync=True, **options) as collector:
    print("on", len({worker.place.node for worker in collector.stats().workers}), "nodes")
    print(sum(batch.numel() for batch in collector), "frames")
"""


def test_a_program_that_is_submitted_as_a_job(tmp_path: Path) -> None:
    """It is part of its cluster, and its folder is sent along to the workers."""
    program = tmp_path / "program"
    program.mkdir()
    (program / "my_envs.py").write_text(MODULE)
    (program / "train.py").write_text(JOB)
    with ray_head(tmp_path, dashboard=True) as head:
        submit = [*RAY, "job", "submit", "--address", head.dashboard, "--working-dir", str(program)]
        out = head.run(*submit, "--", sys.executable, "train.py", timeout=240, cwd=tmp_path)
    assert out.count("a batch (2, 10)") == 3, out
    assert "up on" in out
    assert "succeeded" in out


def test_workers_for_which_there_is_no_room_wait_for_nodes_that_ray_adds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GROWS)
    node_types = {"one": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}}
    with ray_head(tmp_path, node_types=node_types, cpus=1) as head:
        out = head.run(sys.executable, "train.py", head.address, timeout=240, cwd=tmp_path)
    assert "on 3 nodes\n60 frames" in out, out
