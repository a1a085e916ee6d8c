"""`check_collector` over `RayCollector`, for both schedules: real actors, which the collectors of this file use in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reap import GymEnv, SerialEnv
from reap.collectors.distributed import RayCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures
from tests.workers.ray.pool import PooledCluster

pytestmark = on_ray()

ENVS, WORKERS = 3, 2


class Pooled(RayCollector):
    """A collector whose actors are used again."""

    def _make_cluster(self) -> PooledCluster:
        return PooledCluster("Pooled")


def build_row(env_factory: Callable[[int], Any], number: int) -> GymEnv:
    return GymEnv(env_factory(number))


def build_env(env_factory: Callable[[int], Any], worker: int) -> SerialEnv:
    numbers = range(worker * ENVS, (worker + 1) * ENVS)
    return SerialEnv(ENVS, [partial(build_row, env_factory, number) for number in numbers])


def maker(sync: bool) -> Callable[..., Any]:
    def make(env_factory: Callable[[int], Any], policy: Any, **options: Any) -> Any:
        envs = [partial(build_env, env_factory, worker) for worker in range(WORKERS)]
        return Pooled(envs, policy, sync=sync, **options)

    return make


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_every_fact_holds(sync: bool, fact: Fact) -> None:
    check_collector(maker(sync), [fact])
