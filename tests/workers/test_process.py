"""Handlers in child processes: replies in order of arrival, commands one at a time, stopped without a trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reap.errors import ClosedError
from reap.workers.process import ProcessGroup
from tests.workers.handlers import Doer

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def workers() -> Iterator[ProcessGroup]:
    group = ProcessGroup([Doer] * 3)
    yield group
    group.stop()


def test_a_reply_comes_from_the_worker_that_was_asked(workers: ProcessGroup) -> None:
    for worker in range(3):
        workers.request(worker, ("add", worker, 10))
    assert sorted(workers.ready(range(3)) for _ in range(3)) == [(0, 10), (1, 11), (2, 12)]


def test_a_stopped_group_is_closed(workers: ProcessGroup) -> None:
    workers.stop()
    workers.stop()
    with pytest.raises(ClosedError, match="these workers are stopped"):
        workers.request(0, "anything")
