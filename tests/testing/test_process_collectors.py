"""`check_collector` on the collectors with worker processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reap import GymEnv, MultiaSyncDataCollector, MultiSyncDataCollector, SerialEnv, aSyncDataCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact

KINDS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "MultiSync, two workers of three envs": (MultiSyncDataCollector, 2, {}),
    "MultiSync, rows side by side": (MultiSyncDataCollector, 2, {"cat_results": 0}),
    "MultiaSync": (MultiaSyncDataCollector, 2, {}),
    "aSync": (aSyncDataCollector, 1, {}),
}
ENVS = 3


def maker(kind: str) -> Callable[..., Any]:
    collector_class, workers, given = KINDS[kind]

    def build_env(env_factory: Callable[[int], Any], worker: int) -> SerialEnv:
        numbers = range(worker * ENVS, (worker + 1) * ENVS)
        return SerialEnv(ENVS, [partial(build_row, env_factory, number) for number in numbers])

    def build_row(env_factory: Callable[[int], Any], number: int) -> GymEnv:
        return GymEnv(env_factory(number))

    def make(env_factory: Callable[[int], Any], policy: Any, **options: Any) -> Any:
        envs = [partial(build_env, env_factory, worker) for worker in range(workers)]
        return collector_class(envs, policy, **options, **given)

    return make


@pytest.mark.processes
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_collectors_with_processes_keep_every_fact(kind: str, fact: Fact) -> None:
    check_collector(maker(kind), [fact])
