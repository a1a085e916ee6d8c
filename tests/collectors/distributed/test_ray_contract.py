"""`check_collector` over `RayCollector`, for both schedules: real actors, which the collectors of this file use in turn."""

from __future__ import annotations

import pytest

from reap.collectors.distributed import RayCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.testing.makers import maker
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures
from tests.workers.ray.pool import PooledCluster

pytestmark = on_ray()


class Pooled(RayCollector):
    """A collector whose actors are used again."""

    def _make_cluster(self) -> PooledCluster:
        return PooledCluster("Pooled")


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_every_fact_holds(sync: bool, fact: Fact) -> None:
    check_collector(maker(Pooled, sync=sync), [fact])
