"""Rollouts of workers that gloo and RPC reach; those of Ray's are in `test_ray.py`."""

from __future__ import annotations

from typing import Any

import pytest

from reap.collectors.distributed import DistributedDataCollector, RPCDataCollector
from tests.collectors.distributed.rollouts import check_landing, check_slots, check_travel, check_waiting

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
