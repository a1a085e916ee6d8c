"""`check_collector` on `RPCDataCollector`, with both schedules."""

from __future__ import annotations

import pytest

from reap.collectors.distributed import RPCDataCollector
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.testing.makers import maker

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize("sync", [True, False], ids=["together", "as they come"])
def test_every_fact(sync: bool, fact: Fact) -> None:
    check_collector(maker(RPCDataCollector, sync=sync), [fact])
