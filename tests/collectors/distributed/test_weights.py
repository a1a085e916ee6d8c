"""When the weights of a distributed collector's policy are sent, and that an update returns at once."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from reap.collectors import MultiSyncDataCollector
from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector, RPCDataCollector
from reap.testing import Count
from tests.collectors.distributed.updates import ONLY_ONE, Shows, Whole, check_leaves, when_only_one_worker_is_updated
from tests.collectors.worker_kinds import VERSION, take

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def acted(make: Any, policy: Shows, **options: Any) -> list[float]:
    """The weight that acted in each of six batches; it grows by one after each."""
    found = []
    with make([partial(Count, 50)] * 2, policy, frames_per_batch=4, **options) as collector:
        for batch in take_one_by_one(collector, 6):
            found.append(batch["action"].max().item())
            policy.weight += 1
    return found


def take_one_by_one(collector: Any, count: int) -> Any:
    for _ in range(count):
        yield collector.next()


SYNC = partial(DistributedDataCollector, sync=True)
CASES: dict[str, tuple[Any, dict[str, Any], list[float]]] = {
    "never": (SYNC, {}, [0, 0, 0, 0, 0, 0]),
    "after each": (SYNC, {"update_after_each_batch": True}, [0, 1, 2, 3, 4, 5]),
    "after two": (SYNC, {"max_weight_update_interval": 2}, [0, 0, 2, 2, 4, 4]),
    "interval": (SYNC, {"update_interval": 3}, [0, 0, 0, 3, 3, 3]),
    "sync class": (DistributedSyncDataCollector, {}, [0, 1, 2, 3, 4, 5]),
    "sync class, two": (DistributedSyncDataCollector, {"update_interval": 2}, [0, 0, 2, 2, 4, 4]),
    "sync class, at most": (DistributedSyncDataCollector, {"max_weight_update_interval": 4}, [0, 0, 0, 0, 4, 4]),
}


@pytest.mark.parametrize("case", CASES)
def test_when_weights_are_sent(case: str) -> None:
    make, options, expected = CASES[case]
    assert acted(make, Shows(), **options) == expected


ENGINES = pytest.mark.parametrize("kind", [DistributedDataCollector, RPCDataCollector], ids=["gloo", "RPC"])


@ENGINES
def test_no_worker_goes_without_an_update_for_longer_than_the_interval(kind: Any) -> None:
    assert when_only_one_worker_is_updated(kind) == ONLY_ONE


@ENGINES
def test_the_interval_of_a_worker_that_records_ahead(kind: Any) -> None:
    """An update before a batch acts in the rollout after it: that of the batch has begun already."""
    options: Any = {"frames_per_batch": 4, "track_policy_version": True, "max_weight_update_interval": 2}
    with kind([partial(Count, 50)], Shows(), **options) as collector:
        assert [batch[VERSION].unique().tolist() for batch in take_one_by_one(collector, 7)] == [
            [n] for n in (1, 1, 1, 2, 2, 3, 3)
        ]


LEAVES: dict[str, dict[str, Any]] = {
    "sync": {"sync": True, "frames_per_batch": 32},
    "async": {"frames_per_batch": 16},
    "a class": {"sync": True, "frames_per_batch": 32, "collector_class": MultiSyncDataCollector},
    "a factory": {"sync": True, "frames_per_batch": 32, "policy": None, "policy_factory": Whole},
}


@pytest.mark.parametrize("case", LEAVES)
def test_all_of_a_policy_reaches_the_workers_of_workers(case: str) -> None:
    check_leaves(DistributedDataCollector, **LEAVES[case])


def test_all_of_a_policy_reaches_the_workers_of_workers_by_rpc() -> None:
    check_leaves(RPCDataCollector, **LEAVES["sync"])


def test_the_latest_of_many_updates_acts_in_the_next_rollout() -> None:
    policy = Shows(5_000_000)
    with SYNC([partial(Count, 50)] * 2, policy, frames_per_batch=4) as collector:
        for _ in range(5):
            policy.weight += 1
            collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [5.0]


def test_an_update_waits_for_no_worker() -> None:
    policy = Shows(10_000_000)
    with DistributedDataCollector([partial(Count, 50)] * 2, policy, frames_per_batch=4) as collector:
        take(collector, 2)
        collector.update_policy_weights_()
        packing, update = [], []
        for _ in range(5):
            begun = time.perf_counter()
            policy.weight.clone()
            packing.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            collector.update_policy_weights_()
            update.append(time.perf_counter() - begun)
        # A copy and what surrounds it; the transfer alone would take several times as long.
        assert min(update) < 5 * max(packing)
