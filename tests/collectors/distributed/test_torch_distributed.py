"""`DistributedDataCollector` and `DistributedSyncDataCollector` keep what all collectors keep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reap.collectors.distributed import DistributedDataCollector, DistributedSyncDataCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.testing.makers import maker

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

KINDS: dict[str, Callable[..., Any]] = {
    "async": DistributedDataCollector,
    "sync": partial(DistributedDataCollector, sync=True),
    "sync class": DistributedSyncDataCollector,
}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_fact(kind: str, fact: Fact) -> None:
    check_collector(maker(KINDS[kind]), [fact])
