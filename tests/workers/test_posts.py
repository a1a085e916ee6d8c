"""Posts and commands keep their order on the way to a worker, as each engine's own line sends them.

That of Ray has a file of its own: `tests/workers/ray/test_line.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
import torch

from reap.workers.gloo.kinds import COMMAND, POST
from reap.workers.gloo.outbox import Outbox
from reap.workers.messages import Encoded
from reap.workers.rpc.line import Line, Told, Waiting


class Way(Protocol):
    """The way to a worker, which takes one item after the other."""

    def command(self, text: bytes) -> None: ...

    def post(self, text: bytes) -> None: ...

    def sent(self) -> list[bytes]:
        """All items, in the order in which they are sent."""
        ...


class GlooWay:
    def __init__(self) -> None:
        self._outbox = Outbox()

    def command(self, text: bytes) -> None:
        self._outbox.put(COMMAND, Encoded(text))

    def post(self, text: bytes) -> None:
        self._outbox.put(POST, Encoded(text), b"Weights")

    def sent(self) -> list[bytes]:
        found = [bytes(self._outbox._next().encoded.body) for _ in range(len(self._outbox.waiting))]
        self._outbox.close()
        return found


class RpcWay:
    def __init__(self) -> None:
        self._line = Line("the key of this test", lambda: None)

    def command(self, text: bytes) -> None:
        self._line.put(Waiting(of(text)))

    def post(self, text: bytes) -> None:
        self._line.post(Waiting(of(text), bytes))

    def sent(self) -> list[bytes]:
        found: list[bytes] = []
        while self._line.waiting:
            call: torch.futures.Future[Any] = torch.futures.Future()
            self._line.fetch(call)
            for told, _, (part,) in call.wait():
                found.append(bytes(part.tolist()))
                if told == Told.POST:
                    self._line.took()
        self._line.cut()
        return found


def of(text: bytes) -> tuple[torch.Tensor]:
    return (torch.tensor(list(text), dtype=torch.uint8),)


@pytest.fixture(params=[GlooWay, RpcWay])
def way(request: pytest.FixtureRequest) -> Way:
    make: Callable[[], Way] = request.param
    return make()


def test_a_post_never_overtakes_a_command_that_was_there_before(way: Way) -> None:
    way.command(b"attach")
    way.post(b"weights")
    assert way.sent() == [b"attach", b"weights"]


def test_a_post_is_sent_before_later_commands(way: Way) -> None:
    way.post(b"weights")
    way.command(b"collect")
    assert way.sent() == [b"weights", b"collect"]


def test_the_newest_post_takes_the_place_of_one_that_waits(way: Way) -> None:
    way.command(b"attach")
    way.post(b"old")
    way.command(b"collect")
    way.post(b"new")
    assert way.sent() == [b"attach", b"new", b"collect"]
