"""Handlers in this process: replies in order, exceptions as they are, closed once."""

from __future__ import annotations

import select
from typing import Any

import pytest

from reap.errors import ClosedError, WorkerDied
from reap.workers.base import Call
from reap.workers.inline import InlineGroup
from reap.workers.progress import COLUMN, PHASE, PUBLISHED, STOP, Progress, new_control
from tests.workers.handlers import descriptors


class Echo:
    """Replies with its name and the command; raises commands that are exceptions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closings = 0

    def handle(self, command: Any) -> Any:
        if isinstance(command, BaseException):
            raise command
        return f"{self.name} {command}"

    def close(self) -> None:
        self.closings += 1


def group(size: int = 3) -> InlineGroup:
    return InlineGroup([Echo(name) for name in "abc"[:size]])


def test_replies_come_in_the_order_of_the_requests() -> None:
    workers = group()
    for worker in (2, 0, 1):
        workers.request(worker, "go")
    everyone = {0, 1, 2}
    assert [workers.ready(everyone) for _ in range(3)] == [(2, "c go"), (0, "a go"), (1, "b go")]


def test_only_replies_of_those_asked_for() -> None:
    workers = group()
    for worker in (2, 0, 0):
        workers.request(worker, worker)
    assert workers.ready({0}) == (0, "a 0")
    assert workers.ready({0, 1}) == (0, "a 0")
    assert workers.ready([2]) == (2, "c 2")


def test_nothing_under_way() -> None:
    workers = group()
    workers.request(1, "go")
    with pytest.raises(RuntimeError, match=r"^no request is under way to workers \[0, 2\]$"):
        workers.ready({2, 0})


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_exceptions_come_through_and_leave_no_reply(error: BaseException) -> None:
    workers = group()
    with pytest.raises(type(error)) as caught:
        workers.request(0, error)
    assert caught.value is error
    with pytest.raises(RuntimeError, match="no request is under way"):
        workers.ready({0})
    workers.request(0, "again")
    assert workers.ready({0}) == (0, "a again")


def test_poll_does_not_wait() -> None:
    workers = group()
    workers.request(1, "go")
    assert workers.poll({0, 2}) is None
    assert workers.poll({0, 1}) == (1, "b go")
    assert workers.poll({0, 1}) is None


def test_abandoned_replies_never_come() -> None:
    workers = group()
    for worker in (0, 1, 0):
        workers.request(worker, "go")
    workers.abandon([0])
    assert workers.ready({0, 1}) == (1, "b go")
    assert workers.poll({0, 1}) is None


def test_its_descriptor_is_readable_while_there_is_a_reply() -> None:
    workers = group()
    workers.request(0, "go")
    assert select.select([workers], [], [], 0)[0] == [workers]
    workers.request(1, "go")
    workers.ready({0})
    assert select.select([workers], [], [], 0)[0] == [workers]
    workers.abandon({1})
    assert select.select([workers], [], [], 0)[0] == []
    workers.request(1, "go")
    assert select.select([workers], [], [], 0)[0] == [workers]
    workers.stop()
    with pytest.raises(ClosedError, match="^these workers are stopped$"):
        workers.fileno()


def test_a_descriptor_that_was_made_is_closed_with_the_group() -> None:
    before = descriptors()
    workers = group()
    workers.fileno()
    assert len(descriptors()) == len(before) + 1
    del workers
    assert descriptors() == before


def test_progress_and_wishes_are_in_the_ints_of_each_handler() -> None:
    controls = [new_control() for _ in range(2)]
    workers = InlineGroup([Echo("a"), Echo("b")], controls)
    workers.stop_early(1)
    controls[1][PHASE], controls[1][COLUMN], controls[1][PUBLISHED] = 2, 5, 30
    assert [list(control) for control in controls] == [[0, -1, 0, 0], [2, 5, 1, 30]]
    assert workers.progress(1) == Progress(2, 5, 30)
    workers.clear(1)
    workers.clear_published(1)
    assert workers.progress(1) == Progress(2, -1, 0)
    assert controls[1][STOP] == 0


def test_without_ints_progress_is_unknown() -> None:
    workers = group()
    for wish in (workers.stop_early, workers.clear, workers.clear_published):
        wish(0)
    assert workers.progress(0) is None


def test_a_handler_that_is_replaced_is_closed() -> None:
    old = Echo("old")
    workers = InlineGroup([Echo("a"), old])
    workers.request(1, "go")
    workers.replace(1, lambda worker, control: Echo(f"new {worker} {list(control)}"))
    assert old.closings == 1
    assert workers.poll({1}) is None
    workers.request(1, "go")
    assert workers.ready({1}) == (1, "new 1 [0, -1, 0, 0] go")
    assert workers.progress(1) == Progress(0, -1, 0)


def test_no_worker_fails_on_its_own() -> None:
    workers = group()
    workers.ensure_own()
    with workers.failures_only_of(1), pytest.raises(ValueError, match="no"):
        workers.request(0, ValueError("no"))
    assert workers.failures() == []
    failure = WorkerDied(0, 3)
    with pytest.raises(WorkerDied) as info:
        workers.withdraw(failure)
    assert info.value is failure


def test_stop_closes_each_handler_once() -> None:
    handlers = [Echo("a"), Echo("b")]
    workers = InlineGroup(handlers)
    workers.stop()
    workers.stop(timeout=0.0)
    assert [handler.closings for handler in handlers] == [1, 1]
    with pytest.raises(ClosedError, match="^these workers are stopped$"):
        workers.request(0, "go")


def test_a_call_is_a_value() -> None:
    assert Call("reset") == Call("reset", ())
    assert group(2).size == 2
