"""`check_collector` on the collectors with worker processes."""

from __future__ import annotations

from typing import Any

import pytest

from reap import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.testing.makers import maker

KINDS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "MultiSync, two workers of three envs": (MultiSyncDataCollector, 2, {}),
    "MultiSync, rows side by side": (MultiSyncDataCollector, 2, {"cat_results": 0}),
    "MultiaSync": (MultiaSyncDataCollector, 2, {}),
    "aSync": (aSyncDataCollector, 1, {}),
}


@pytest.mark.processes
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_collectors_with_processes_keep_every_fact(kind: str, fact: Fact) -> None:
    collector_class, workers, given = KINDS[kind]
    check_collector(maker(collector_class, workers, **given), [fact])
