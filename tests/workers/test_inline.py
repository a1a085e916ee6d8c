"""Handlers in this process: replies in order, exceptions as they are, closed once."""

from __future__ import annotations

from typing import Any

import pytest

from reap.errors import ClosedError
from reap.workers.base import Call
from reap.workers.inline import InlineGroup


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
