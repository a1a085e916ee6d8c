"""`Line`: the order in which commands and posts go to an actor. The actor is a list, and the sender takes its turns by hand."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from reap import optional
from reap.workers.messages import Encoded, MessageKind
from reap.workers.ray.channel import Fetched, Wish
from reap.workers.ray.line import Item, Line
from reap.workers.ray.store import Post, SharedObjects


class Sending:
    """A line whose sender thread is this test.

    Attributes:
        sent: the texts that the actor was sent, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._queue: deque[Item] = deque()
        take = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._take))
        self.line = Line(SimpleNamespace(take=take), b"", self._queue.append, lambda: None)
        self._objects = SharedObjects()

    def _take(self, number: int, kind: int, _name: str, body: bytes) -> None:
        assert number == len(self.sent)
        self.sent.append(body.decode() or str(kind))

    def post(self, text: str, name: str = "weights") -> None:
        self.line.post(Post(name, Encoded(text.encode())))

    def command(self, text: str) -> None:
        self._queue.append(Item(self.line, MessageKind.COMMAND, Encoded(text.encode())))

    def wish(self, wish: Wish) -> None:
        self._queue.append(Item(self.line, wish))

    def deliver(self, turns: int | None = None) -> None:
        """The sender thread takes some of its turns, or all."""
        for _ in range(len(self._queue) if turns is None else turns):
            self.line.deliver(self._queue.popleft(), self._objects)

    def arrived(self, posts: int) -> None:
        """The actor says how many posts it has got so far."""
        self.line._took(Fetched(None, b"", (), posts, 0.0))


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Sending:
    running: Any = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(optional, "load", lambda _name: running)
    return Sending()


def test_a_post_never_overtakes_a_command_that_was_there_before(sending: Sending) -> None:
    """The weights of a successor were there before the command that makes their mailbox."""
    sending.command("attach")
    sending.post("weights")
    sending.deliver()
    assert sending.sent == ["attach", "weights"]


def test_a_post_that_waits_for_another_comes_after_earlier_commands(sending: Sending) -> None:
    sending.post("old", "other")
    sending.deliver()
    sending.command("attach")
    sending.post("weights")
    sending.deliver()
    assert sending.sent == ["old", "attach"]
    sending.arrived(1)
    sending.deliver()
    assert sending.sent == ["old", "attach", "weights"]


def test_posts_made_before_a_command_are_sent_before_it(sending: Sending) -> None:
    sending.post("first")
    sending.deliver()
    sending.post("weights")
    sending.post("other", "other")
    sending.deliver()
    assert sending.sent == ["first"]  # one at a time, while no command follows
    sending.command("collect")
    sending.post("late", "third")
    sending.deliver()
    assert sending.sent == ["first", "weights", "other", "collect"]


def test_the_newest_post_of_a_type_takes_the_place_of_one_that_waits(sending: Sending) -> None:
    sending.post("old")
    sending.command("collect")
    sending.post("new")
    sending.deliver()
    assert sending.sent == ["new", "collect"]


def test_a_post_made_after_its_predecessor_was_sent_keeps_its_own_place(sending: Sending) -> None:
    sending.post("old")
    sending.command("collect")
    sending.deliver(1)
    sending.post("new")
    sending.deliver()
    sending.arrived(1)
    sending.deliver()
    assert sending.sent == ["old", "collect", "new"]


def test_requests_wait_for_no_post(sending: Sending) -> None:
    sending.post("old")
    sending.deliver()
    sending.post("new")
    sending.wish(Wish.STOP_EARLY)
    sending.deliver()
    assert sending.sent == ["old", str(int(Wish.STOP_EARLY))]
