"""`check_collector` on `RPCDataCollector`, with both schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reap import GymEnv, SerialEnv
from reap.collectors.distributed import RPCDataCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

ENVS, WORKERS = 3, 2


def maker(sync: bool) -> Callable[..., Any]:
    def build_env(env_factory: Callable[[int], Any], worker: int) -> SerialEnv:
        numbers = range(worker * ENVS, (worker + 1) * ENVS)
        return SerialEnv(ENVS, [partial(build_row, env_factory, number) for number in numbers])

    def build_row(env_factory: Callable[[int], Any], number: int) -> GymEnv:
        return GymEnv(env_factory(number))

    def make(env_factory: Callable[[int], Any], policy: Any, **options: Any) -> Any:
        envs = [partial(build_env, env_factory, worker) for worker in range(WORKERS)]
        return RPCDataCollector(envs, policy, sync=sync, **options)

    return make


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("sync", [True, False], ids=["together", "as they come"])
def test_every_fact(sync: bool, fact: Fact) -> None:
    check_collector(maker(sync), [fact])
