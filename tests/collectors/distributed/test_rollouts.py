"""Rollouts of workers that gloo and RPC reach; those of Ray's are in `test_ray.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reap.collectors.distributed import DistributedDataCollector, RPCDataCollector
from tests.collectors.distributed.rollouts import check_landing, check_slots, check_travel, check_waiting

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("kind", [DistributedDataCollector, RPCDataCollector], ids=["gloo", "RPC"]),
]


@pytest.mark.parametrize("is_sync", [True, False], ids=["sync", "async"])
def test_workers_wait_for_a_trainer_that_takes_nothing(kind: Any, is_sync: bool) -> None:
    check_waiting(kind, is_sync)


def test_memory_grows_with_results_that_wait(kind: Any) -> None:
    check_slots(kind)


def test_an_observation_travels_once_and_a_rollout_in_one_piece(kind: Any) -> None:
    check_travel(kind)


def test_a_rollout_lands_by_one_copy(kind: Any) -> None:
    check_landing(kind)


def test_a_rollout_lands_without_another_copy(kind: Any) -> None:
    code = f"from tests.collectors.distributed.rollouts import print_memory_of_landing as run; run({kind.__name__!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    pixels, highest = map(int, done.stdout.split())
    assert pixels == 200 * 84 * 84 * 4
    assert highest < pixels / 2
